"""`rlds-beam example`: writes a small RLDS dataset to try the other commands on."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil

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

    directory: str = option(
        dataclasses.MISSING, "directory to write to; the dataset is DIRECTORY/point_mass/1.0.0", positional=True
    )
    _: dataclasses.KW_ONLY
    episodes: int = option(32, "number of episodes", least=1)
    broken: int = option(0, "number of episodes without a last step, as if the recording was interrupted", least=0)
    shards: int = option(2, "number of TFRecord files", least=1)
    seed: int = option(0, "seed of the simulation; the same options give the same files", least=0)
    robot: bool = option(
        False,
        "simulate an arm instead, which puts blocks on trays and sometimes misses: two 128x128 cameras, named joints, "
        "10 Hz, instructions; the dataset is DIRECTORY/planar_arm/1.0.0",
    )


def example(config: ExampleConfig) -> str:
    """Writes the dataset, without TensorFlow, and returns its directory.

    Raises:
      UsageError: the dataset already exists or cannot be written.
    """
    from rlds_beam.encoding.metadata import encode
    from rlds_beam.encoding.tfds.rlds_dataset import write_dataset
    from rlds_beam.jobs.example import MEANING, PLANAR_ARM, POINT_MASS, VERSION, make_episodes
    from rlds_beam.reading import meaning

    name = PLANAR_ARM if config.robot else POINT_MASS
    path = os.path.join(config.directory, name, VERSION)
    if os.path.exists(path):
        raise UsageError(f"{path} already exists: remove it, or name another directory")
    episodes = make_episodes(config.episodes, broken=config.broken, seed=config.seed, robot=config.robot)
    try:
        write_dataset(config.directory, episodes, name=name, version=VERSION, shards=config.shards)
        if config.robot:
            storage.write_text(storage.join(path, meaning.MEANING), encode(MEANING.to_json()))
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise UsageError(f"{path} cannot be written: {error}") from error
    return path


def main(config: ExampleConfig) -> int:
    """Writes the dataset, prints the next commands to try, and returns the exit code."""
    path = example(config)
    dataset = shlex.quote(path)
    print(f"wrote     {path}: {count(config.episodes, 'episode')} in {count(config.shards, 'shard')}")
    print(f"next      rlds-beam inspect {dataset}")
    if config.robot:
        repair = " --repair=missing_is_last" if config.broken else ""
        print(f"          rlds-beam show {dataset} --output=strip.png")
        print(f"          rlds-beam convert {dataset} lerobot --to=lerobot{repair}")
    return 0
