"""`rlds-beam example`: writes a small RLDS dataset to try the other commands on."""

from __future__ import annotations

import dataclasses
import os
import shlex

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option
from rlds_beam.text import count

__all__ = ["ExampleConfig", "example"]

USAGE = "DIRECTORY"
EXAMPLES = """
    rlds-beam example data
    rlds-beam example data --robot --broken=3
"""


@dataclasses.dataclass(frozen=True)
class ExampleConfig(Options):
    """Write a small RLDS dataset in TFDS layout: simulated episodes of a point mass pushed to a goal, or of an arm."""

    directory: str = option(dataclasses.MISSING, "directory to write to", positional=True)
    _: dataclasses.KW_ONLY
    episodes: int = option(32, "number of episodes", least=1)
    broken: int = option(0, "number of episodes without a last step, as if the recording was interrupted", least=0)
    robot: bool = option(False, "simulate an arm with two cameras, which puts blocks on trays, instead of a point mass")


def example(config: ExampleConfig) -> str:
    """Writes the dataset, without TensorFlow, and returns its directory: DIRECTORY/point_mass/1.0.0, or planar_arm.

    Raises:
      UsageError: the dataset already exists.
    """
    from rlds_beam.encoding.metadata import encode
    from rlds_beam.encoding.tfds.rlds_dataset import write_dataset
    from rlds_beam.jobs.example import MEANING, PLANAR_ARM, POINT_MASS, VERSION, make_episodes
    from rlds_beam.reading import meaning

    name = PLANAR_ARM if config.robot else POINT_MASS
    path = os.path.join(config.directory, name, VERSION)
    if os.path.exists(path):
        raise UsageError(f"{path} already exists: remove it, or name another directory")
    episodes = make_episodes(config.episodes, broken=config.broken, robot=config.robot)
    write_dataset(config.directory, episodes, name=name, version=VERSION, shards=2)
    if config.robot:
        storage.write_text(storage.join(path, meaning.MEANING), encode(MEANING.to_json()))
    return path


def main(config: ExampleConfig) -> int:
    """Writes the dataset, prints the next command to try, and returns the exit code."""
    path = example(config)
    print(f"wrote     {path}: {count(config.episodes, 'episode')} in 2 shards")
    print(f"next      rlds-beam inspect {shlex.quote(path)}")
    return 0
