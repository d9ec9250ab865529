"""rlds-beam: any episodic dataset in, any training data out, as Apache Beam pipelines.

The names below are the jobs as functions (`convert`, `validate`, `check`, `inspect`, `stats`, `push`, `record`,
`report`, `upload`, `example`) and the public core, without Beam: episodes, what can be done to them, and the contracts
of sources, connectors, and outputs. Each is imported on first use, so `import rlds_beam` costs nothing.
The other public modules are listed in the API reference (docs/reference/api); everything else is private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_beam import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlds_beam.checking.options import CheckOptions as CheckOptions
    from rlds_beam.checking.report import Report as Report
    from rlds_beam.checking.verdicts import Rejection as Rejection
    from rlds_beam.checking.verdicts import Verdict as Verdict
    from rlds_beam.checking.verdicts import validate_episode as validate_episode
    from rlds_beam.connectors.base import Batch as Batch
    from rlds_beam.connectors.base import Connector as Connector
    from rlds_beam.connectors.base import connect as connect
    from rlds_beam.datasets.batches import Batches as Batches
    from rlds_beam.datasets.dataset import Dataset as Dataset
    from rlds_beam.datasets.loading import mix_batches as mix_batches
    from rlds_beam.datasets.opening import open_dataset as open_dataset
    from rlds_beam.encoding.base import Damage as Damage
    from rlds_beam.encoding.base import Headers as Headers
    from rlds_beam.encoding.base import Record as Record
    from rlds_beam.encoding.base import RecordFormat as RecordFormat
    from rlds_beam.episodes.episode import Episode as Episode
    from rlds_beam.episodes.keys import EpisodeKey as EpisodeKey
    from rlds_beam.episodes.schema import Field as Field
    from rlds_beam.episodes.schema import Schema as Schema
    from rlds_beam.errors import BadEpisode as BadEpisode
    from rlds_beam.errors import FailedRuleError as FailedRuleError
    from rlds_beam.errors import NotVerifiedError as NotVerifiedError
    from rlds_beam.errors import RldsBeamError as RldsBeamError
    from rlds_beam.errors import UsageError as UsageError
    from rlds_beam.errors import Violation as Violation
    from rlds_beam.formats.sources import open_source as open_source
    from rlds_beam.formats.trajectories.loading import load_items as load_items
    from rlds_beam.formats.trajectories.loading import load_trajectories as load_trajectories
    from rlds_beam.images.encoded_images import EncodedImages as EncodedImages
    from rlds_beam.jobs.inspect import Survey as Survey
    from rlds_beam.jobs.write_rlds import WriteOutcome as WriteOutcome
    from rlds_beam.jobs.write_rlds import write_rlds as write_rlds
    from rlds_beam.options import Options as Options
    from rlds_beam.options import option as option
    from rlds_beam.output.base import Description as Description
    from rlds_beam.output.base import FileRangeWriter as FileRangeWriter
    from rlds_beam.output.base import Output as Output
    from rlds_beam.output.base import RangeWriter as RangeWriter
    from rlds_beam.output.capabilities import CostHint as CostHint
    from rlds_beam.output.capabilities import CostHints as CostHints
    from rlds_beam.output.capabilities import GlobalIndices as GlobalIndices
    from rlds_beam.output.capabilities import IgnoresValues as IgnoresValues
    from rlds_beam.output.capabilities import ItemCounts as ItemCounts
    from rlds_beam.output.capabilities import LearnerColumns as LearnerColumns
    from rlds_beam.output.capabilities import MergedFile as MergedFile
    from rlds_beam.output.capabilities import MergesRanges as MergesRanges
    from rlds_beam.output.capabilities import MetadataFiles as MetadataFiles
    from rlds_beam.output.capabilities import Notes as Notes
    from rlds_beam.output.capabilities import ReportsUnusedSteps as ReportsUnusedSteps
    from rlds_beam.output.capabilities import SeveralFiles as SeveralFiles
    from rlds_beam.output.capabilities import SeveralSplits as SeveralSplits
    from rlds_beam.output.capabilities import Sidecars as Sidecars
    from rlds_beam.output.capabilities import SizePrediction as SizePrediction
    from rlds_beam.output.capabilities import StoredNames as StoredNames
    from rlds_beam.output.capabilities import WholeShards as WholeShards
    from rlds_beam.output.commits import RangeCommit as RangeCommit
    from rlds_beam.output.shards import EpisodeWriter as EpisodeWriter
    from rlds_beam.output.shards import ShardInfo as ShardInfo
    from rlds_beam.output.shards import ShardWriter as ShardWriter
    from rlds_beam.output.shards import WrittenFile as WrittenFile
    from rlds_beam.pipelines.functions import check as check
    from rlds_beam.pipelines.functions import convert as convert
    from rlds_beam.pipelines.functions import example as example
    from rlds_beam.pipelines.functions import inspect as inspect
    from rlds_beam.pipelines.functions import push as push
    from rlds_beam.pipelines.functions import record as record
    from rlds_beam.pipelines.functions import report as report
    from rlds_beam.pipelines.functions import stats as stats
    from rlds_beam.pipelines.functions import upload as upload
    from rlds_beam.pipelines.functions import validate as validate
    from rlds_beam.reading.base import Decoder as Decoder
    from rlds_beam.reading.base import Segment as Segment
    from rlds_beam.reading.base import Shard as Shard
    from rlds_beam.reading.base import Source as Source
    from rlds_beam.reading.base import Split as Split
    from rlds_beam.reading.plan import WorkRange as WorkRange
    from rlds_beam.reverb.options import ReverbOptions as ReverbOptions
    from rlds_beam.reverb.verifying import Verified as Verified
    from rlds_beam.trajectories.frames import Frames as Frames
    from rlds_beam.trajectories.frames import to_frames as to_frames
    from rlds_beam.trajectories.items import Items as Items
    from rlds_beam.trajectories.items import windows as windows
    from rlds_beam.trajectories.options import FrameOptions as FrameOptions
    from rlds_beam.trajectories.options import ItemOptions as ItemOptions
    from rlds_beam.trajectories.spec import TrajectorySpec as TrajectorySpec
    from rlds_beam.trajectories.spec import trajectory_spec as trajectory_spec
    from rlds_beam.user_functions import configurable as configurable
    from rlds_beam.viewing.html import View as View
    from rlds_beam.viewing.showing import show as show

_HOMES = {
    # Jobs
    "convert": "rlds_beam.pipelines.functions",
    "upload": "rlds_beam.pipelines.functions",
    "validate": "rlds_beam.pipelines.functions",
    "check": "rlds_beam.pipelines.functions",
    "inspect": "rlds_beam.pipelines.functions",
    "push": "rlds_beam.pipelines.functions",
    "record": "rlds_beam.pipelines.functions",
    "report": "rlds_beam.pipelines.functions",
    "stats": "rlds_beam.pipelines.functions",
    "example": "rlds_beam.pipelines.functions",
    # Writing your own episodes
    "write_rlds": "rlds_beam.jobs.write_rlds",
    "WriteOutcome": "rlds_beam.jobs.write_rlds",
    # Looking at data
    "show": "rlds_beam.viewing.showing",
    "View": "rlds_beam.viewing.html",
    # Episodes
    "Episode": "rlds_beam.episodes.episode",
    "EpisodeKey": "rlds_beam.episodes.keys",
    "EncodedImages": "rlds_beam.images.encoded_images",
    "Field": "rlds_beam.episodes.schema",
    "Schema": "rlds_beam.episodes.schema",
    "Violation": "rlds_beam.errors",
    "BadEpisode": "rlds_beam.errors",
    # Sources
    "open_source": "rlds_beam.formats.sources",
    "Source": "rlds_beam.reading.base",
    "Split": "rlds_beam.reading.base",
    "Shard": "rlds_beam.reading.base",
    "Decoder": "rlds_beam.reading.base",
    "RecordFormat": "rlds_beam.encoding.base",
    "Record": "rlds_beam.encoding.base",
    "Damage": "rlds_beam.encoding.base",
    "Headers": "rlds_beam.encoding.base",
    "Options": "rlds_beam.options",
    "option": "rlds_beam.options",
    # Checks
    "CheckOptions": "rlds_beam.checking.options",
    "validate_episode": "rlds_beam.checking.verdicts",
    "Verdict": "rlds_beam.checking.verdicts",
    "Rejection": "rlds_beam.checking.verdicts",
    "Report": "rlds_beam.checking.report",
    # Connectors
    "configurable": "rlds_beam.user_functions",
    "Connector": "rlds_beam.connectors.base",
    "Batch": "rlds_beam.connectors.base",
    "connect": "rlds_beam.connectors.base",
    # Trajectories
    "FrameOptions": "rlds_beam.trajectories.options",
    "ItemOptions": "rlds_beam.trajectories.options",
    "to_frames": "rlds_beam.trajectories.frames",
    "Frames": "rlds_beam.trajectories.frames",
    "windows": "rlds_beam.trajectories.items",
    "Items": "rlds_beam.trajectories.items",
    "trajectory_spec": "rlds_beam.trajectories.spec",
    "TrajectorySpec": "rlds_beam.trajectories.spec",
    # Reading
    "open_dataset": "rlds_beam.datasets.opening",
    "Dataset": "rlds_beam.datasets.dataset",
    "Batches": "rlds_beam.datasets.batches",
    "mix_batches": "rlds_beam.datasets.loading",
    "load_items": "rlds_beam.formats.trajectories.loading",
    "load_trajectories": "rlds_beam.formats.trajectories.loading",
    # Outputs
    "Output": "rlds_beam.output.base",
    "Description": "rlds_beam.output.base",
    "RangeWriter": "rlds_beam.output.base",
    "FileRangeWriter": "rlds_beam.output.base",
    "SeveralFiles": "rlds_beam.output.capabilities",
    "MetadataFiles": "rlds_beam.output.capabilities",
    "Sidecars": "rlds_beam.output.capabilities",
    "ItemCounts": "rlds_beam.output.capabilities",
    "LearnerColumns": "rlds_beam.output.capabilities",
    "SeveralSplits": "rlds_beam.output.capabilities",
    "WholeShards": "rlds_beam.output.capabilities",
    "GlobalIndices": "rlds_beam.output.capabilities",
    "MergesRanges": "rlds_beam.output.capabilities",
    "MergedFile": "rlds_beam.output.capabilities",
    "SizePrediction": "rlds_beam.output.capabilities",
    "CostHints": "rlds_beam.output.capabilities",
    "CostHint": "rlds_beam.output.capabilities",
    "IgnoresValues": "rlds_beam.output.capabilities",
    "StoredNames": "rlds_beam.output.capabilities",
    "Notes": "rlds_beam.output.capabilities",
    "ReportsUnusedSteps": "rlds_beam.output.capabilities",
    "EpisodeWriter": "rlds_beam.output.shards",
    "ShardWriter": "rlds_beam.output.shards",
    "ShardInfo": "rlds_beam.output.shards",
    "WrittenFile": "rlds_beam.output.shards",
    "WorkRange": "rlds_beam.reading.plan",
    "Segment": "rlds_beam.reading.base",
    "RangeCommit": "rlds_beam.output.commits",
    # Reverb, and what the jobs return
    "ReverbOptions": "rlds_beam.reverb.options",
    "Verified": "rlds_beam.reverb.verifying",
    "Survey": "rlds_beam.jobs.inspect",
    # Errors
    "RldsBeamError": "rlds_beam.errors",
    "UsageError": "rlds_beam.errors",
    "FailedRuleError": "rlds_beam.errors",
    "NotVerifiedError": "rlds_beam.errors",
}

__all__ = [*_HOMES]
__getattr__, __dir__ = lazy.exports(__name__, _HOMES)
