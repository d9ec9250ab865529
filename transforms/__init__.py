"""Beam transforms over episodes, for a pipeline of your own.

Each transform is thin: a function or class of `rlds_beam` that does not need Beam does the work. The transforms of the
jobs, which work on whole ranges, are private: `define_pipeline` of a job uses them.
"""

from rlds_beam.transforms.checking import CheckResult, ValidateEpisodes
from rlds_beam.transforms.connecting import ConnectEpisodes
from rlds_beam.transforms.converting import ConvertToTrajectories, ConvertToTrajectoriesResult
from rlds_beam.transforms.duplicates import FindDuplicateEpisodes
from rlds_beam.transforms.reading import ReadFromRlds
from rlds_beam.transforms.reporting import WriteReport
from rlds_beam.transforms.reverb import WriteToReverb, WriteToReverbResult
from rlds_beam.transforms.writing import WriteRejected, WriteToTrajectoryRecords, WriteToTrajectoryRecordsResult

__all__ = [
    "CheckResult",
    "ConnectEpisodes",
    "ConvertToTrajectories",
    "ConvertToTrajectoriesResult",
    "FindDuplicateEpisodes",
    "ReadFromRlds",
    "ValidateEpisodes",
    "WriteRejected",
    "WriteReport",
    "WriteToReverb",
    "WriteToReverbResult",
    "WriteToTrajectoryRecords",
    "WriteToTrajectoryRecordsResult",
]


def __dir__() -> list[str]:
    return __all__
