"""Quality signals: numbers that describe each episode, and findings. No Beam, no decoding unless asked for.

context = Context.from_schema(source.schema, fps=source.fps, decoded=4)
table = EpisodeTable(context)                   # one row for each record: add, merge, finish
findings(row)                                   # what is beyond a threshold in one row, and where
conditions.mask(table.finish(), conditions.parse_conditions("frozen_camera > 0.2, steps < 10"))
"""

from rlds_beam.checking.signals import motions as motions
from rlds_beam.checking.signals import sensors as sensors
from rlds_beam.checking.signals.base import GROUPS as GROUPS
from rlds_beam.checking.signals.base import SIGNALS as SIGNALS
from rlds_beam.checking.signals.base import Measured as Measured
from rlds_beam.checking.signals.base import Signal as Signal
from rlds_beam.checking.signals.base import add_installed
from rlds_beam.checking.signals.base import signal as signal
from rlds_beam.checking.signals.episodes import Context as Context
from rlds_beam.checking.signals.results import DATASET_CHECKS as DATASET_CHECKS
from rlds_beam.checking.signals.results import Finding as Finding
from rlds_beam.checking.signals.results import findings as findings
from rlds_beam.checking.signals.table import EpisodeTable as EpisodeTable
from rlds_beam.checking.signals.table import measure as measure

__all__ = ["Measured", "signal"]
"""What other packages use to add signals."""

add_installed()
