"""Beam transforms over episodes, for your pipeline.

Each transform wraps a function or class of `rlds_beam` that works without Beam. The transforms of the jobs, which work
on whole ranges, are private: use `define_pipeline` of a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_beam import lazy

if TYPE_CHECKING:
    from rlds_beam.checking.verdicts import Rejection as Rejection
    from rlds_beam.reverb.options import ReverbOptions as ReverbOptions
    from rlds_beam.transforms.checking import CheckResult as CheckResult
    from rlds_beam.transforms.checking import FindDuplicateEpisodes as FindDuplicateEpisodes
    from rlds_beam.transforms.checking import ValidateEpisodes as ValidateEpisodes
    from rlds_beam.transforms.checking import WriteReport as WriteReport
    from rlds_beam.transforms.connecting import ComputeStatistics as ComputeStatistics
    from rlds_beam.transforms.connecting import ConnectEpisodes as ConnectEpisodes
    from rlds_beam.transforms.connecting import ConnectEpisodesResult as ConnectEpisodesResult
    from rlds_beam.transforms.connecting import EpisodeModelHandler as EpisodeModelHandler
    from rlds_beam.transforms.converting import ConvertToTrajectories as ConvertToTrajectories
    from rlds_beam.transforms.converting import ConvertToTrajectoriesResult as ConvertToTrajectoriesResult
    from rlds_beam.transforms.reading import ReadAllFromRlds as ReadAllFromRlds
    from rlds_beam.transforms.reading import ReadFromRlds as ReadFromRlds
    from rlds_beam.transforms.reverb import WriteToReverb as WriteToReverb
    from rlds_beam.transforms.reverb import WriteToReverbResult as WriteToReverbResult
    from rlds_beam.transforms.rows import EpisodesToRows as EpisodesToRows
    from rlds_beam.transforms.rows import RejectionsToRows as RejectionsToRows
    from rlds_beam.transforms.writing import WriteEpisodes as WriteEpisodes
    from rlds_beam.transforms.writing import WriteRejected as WriteRejected
    from rlds_beam.transforms.writing import WriteResult as WriteResult
    from rlds_beam.transforms.writing import WriteToRlds as WriteToRlds
    from rlds_beam.transforms.writing import WriteToTrajectoryRecords as WriteToTrajectoryRecords

__getattr__, __dir__, __all__ = lazy.exports(__name__)
