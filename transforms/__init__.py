"""Beam transforms over RLDS episodes. Each is thin: the work is done by its pure twin in `rlds_beam`."""

from rlds_beam.transforms.checking import CheckResult as CheckResult
from rlds_beam.transforms.checking import ValidateEpisodes as ValidateEpisodes
from rlds_beam.transforms.connecting import ConnectEpisodes as ConnectEpisodes
from rlds_beam.transforms.converting import ConvertToTrajectories as ConvertToTrajectories
from rlds_beam.transforms.duplicates import FindDuplicateEpisodes as FindDuplicateEpisodes
from rlds_beam.transforms.ranges import CommitDataset as CommitDataset
from rlds_beam.transforms.ranges import ConvertRanges as ConvertRanges
from rlds_beam.transforms.reading import ReadFromRlds as ReadFromRlds
from rlds_beam.transforms.reporting import WriteReport as WriteReport
from rlds_beam.transforms.reverb import WriteToReverb as WriteToReverb
from rlds_beam.transforms.writing import WriteRejected as WriteRejected
from rlds_beam.transforms.writing import WriteToTrajectoryRecords as WriteToTrajectoryRecords
