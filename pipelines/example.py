"""`rlds-beam example`: writes a small RLDS dataset to try the other commands on."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from collections.abc import Iterator

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option

__all__ = ["ExampleConfig", "example"]

USAGE = "DIRECTORY"
EXAMPLES = """
    rlds-beam example data
    rlds-beam example data --broken=3
    rlds-beam example data --camera
"""


@dataclasses.dataclass(frozen=True)
class ExampleConfig(Options):
    """Write a small RLDS dataset in TFDS layout: simulated episodes of a point mass pushed to a goal."""

    directory: str = option(
        dataclasses.MISSING, "directory to write to; the dataset is DIRECTORY/point_mass/1.0.0", positional=True
    )
    _: dataclasses.KW_ONLY
    episodes: int = option(32, "number of episodes", least=1)
    broken: int = option(0, "number of episodes without a last step, as if the recording was interrupted", least=0)
    shards: int = option(2, "number of TFRecord files", least=1)
    seed: int = option(0, "seed of the simulation; the same options give the same files")
    camera: bool = option(
        False,
        "add a 96x96 camera image, an instruction, and idle steps at the start; "
        "the dataset is DIRECTORY/point_mass_camera/1.0.0",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.broken <= self.episodes:
            raise UsageError(f"--broken={self.broken}: expected 0 to {self.episodes}, the number of episodes")
        if not 1 <= self.shards <= self.episodes:
            raise UsageError(f"--shards={self.shards}: expected 1 to {self.episodes}, the number of episodes")
        if self.seed < 0:
            raise UsageError(f"--seed={self.seed}: expected 0 or more")


def example(config: ExampleConfig) -> str:
    """Writes the dataset, without TensorFlow.

    Returns:
      The dataset directory.

    Raises:
      UsageError: the dataset already exists or cannot be written.
    """
    from rlds_beam import worker_status
    from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example, write_dataset
    from rlds_beam.jobs.example import CAMERA_NAME, NAME, VERSION, make_episodes
    from rlds_beam.terminal.job_progress import Total, in_this_process

    name = CAMERA_NAME if config.camera else NAME
    path = os.path.join(config.directory, name, VERSION)
    if os.path.exists(path):
        raise UsageError(f"{path} already exists: remove it, or name another directory")
    schema = default_schema(next(make_episodes(1, seed=config.seed, camera=config.camera)))

    def records() -> Iterator[bytes]:
        episodes = make_episodes(config.episodes, broken=config.broken, seed=config.seed, camera=config.camera)
        for episode in episodes:
            yield encode_example(episode, schema)
            worker_status.count(records=1, steps=len(episode))

    try:
        with in_this_process(Total("example", episodes=config.episodes), "auto"):
            write_dataset(config.directory, records(), name=name, version=VERSION, shards=config.shards, schema=schema)
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise UsageError(f"{path} cannot be written: {error}") from error
    except KeyboardInterrupt:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def main(config: ExampleConfig) -> int:
    """Writes the dataset, prints the next command to try, and returns the exit code."""
    from rlds_beam.text import count

    path = example(config)
    print(f"wrote     {path}: {count(config.episodes, 'episode')} in {count(config.shards, 'shard')}")
    print(f"next      rlds-beam inspect {shlex.quote(path)}")
    return 0
