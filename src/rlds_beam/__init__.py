"""rlds-beam: any episodic dataset in, any training data out, as Apache Beam pipelines.

The names below are the jobs as functions (`convert`, `check`, `inspect`, `stats`, `push`, `record`,
`report`, `compare`, `upload`, `example`) and what their users need, without Beam. Each is imported on first use, so
`import rlds_beam` costs nothing. The contracts of sources and outputs are in `rlds_beam.reading` and
`rlds_beam.output`.
The other public modules are listed in the API reference (docs/reference/api); everything else is private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_beam import lazy
from rlds_beam._version import __version__ as __version__

if TYPE_CHECKING:
    from rlds_beam.checking.rules import CheckOptions as CheckOptions
    from rlds_beam.checking.validation import validate_episode as validate_episode
    from rlds_beam.checking.verdicts import Verdict as Verdict
    from rlds_beam.cli.functions import check as check
    from rlds_beam.cli.functions import compare as compare
    from rlds_beam.cli.functions import convert as convert
    from rlds_beam.cli.functions import example as example
    from rlds_beam.cli.functions import inspect as inspect
    from rlds_beam.cli.functions import push as push
    from rlds_beam.cli.functions import record as record
    from rlds_beam.cli.functions import report as report
    from rlds_beam.cli.functions import stats as stats
    from rlds_beam.cli.functions import upload as upload
    from rlds_beam.connectors.base import connect as connect
    from rlds_beam.datasets.batches import Batches as Batches
    from rlds_beam.datasets.dataset import Dataset as Dataset
    from rlds_beam.datasets.opening import mix_batches as mix_batches
    from rlds_beam.datasets.opening import open_dataset as open_dataset
    from rlds_beam.episodes.episode import Episode as Episode
    from rlds_beam.episodes.episode import EpisodeKey as EpisodeKey
    from rlds_beam.episodes.schema import Field as Field
    from rlds_beam.episodes.schema import Schema as Schema
    from rlds_beam.errors import BadEpisode as BadEpisode
    from rlds_beam.errors import FailedRuleError as FailedRuleError
    from rlds_beam.errors import NotVerifiedError as NotVerifiedError
    from rlds_beam.errors import RldsBeamError as RldsBeamError
    from rlds_beam.errors import UsageError as UsageError
    from rlds_beam.errors import Violation as Violation
    from rlds_beam.formats.inputs import open_source as open_source
    from rlds_beam.formats.trajectories.loaders import decoder as decoder
    from rlds_beam.formats.trajectories.loaders import load_items as load_items
    from rlds_beam.formats.trajectories.loaders import load_trajectories as load_trajectories
    from rlds_beam.images.encoded_images import EncodedImages as EncodedImages
    from rlds_beam.jobs.inspect import Survey as Survey
    from rlds_beam.processing.report import Report as Report
    from rlds_beam.reverb.pushers import Verified as Verified
    from rlds_beam.trajectories.frames import Frames as Frames
    from rlds_beam.trajectories.frames import to_frames as to_frames
    from rlds_beam.trajectories.items import Items as Items
    from rlds_beam.trajectories.items import windows as windows
    from rlds_beam.trajectories.options import FrameOptions as FrameOptions
    from rlds_beam.trajectories.options import ItemOptions as ItemOptions
    from rlds_beam.trajectories.spec import TrajectorySpec as TrajectorySpec
    from rlds_beam.trajectories.spec import trajectory_spec as trajectory_spec
    from rlds_beam.user_functions import configurable as configurable
    from rlds_beam.viewing.show import View as View
    from rlds_beam.viewing.show import show as show
    from rlds_beam.writing.rlds import write_rlds as write_rlds

__getattr__, __dir__, __all__ = lazy.exports(__name__)
