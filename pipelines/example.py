"""`rlds-beam example`: a small RLDS dataset to try the other commands on."""

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
    rlds-beam example data --episodes=1000 --shards=8
    rlds-beam example data --broken=3
"""


@dataclasses.dataclass(frozen=True)
class ExampleConfig(Options):
    """Writes a small RLDS dataset in TFDS layout: simulated episodes of a point that is pushed to a goal."""

    directory: str = option(
        dataclasses.MISSING, "where to write: the dataset is DIRECTORY/point_mass/1.0.0", positional=True
    )
    _: dataclasses.KW_ONLY
    episodes: int = option(32, "number of episodes", least=1)
    broken: int = option(0, "how many of them have no last step, as if the recording had been cut", least=0)
    shards: int = option(2, "number of TFRecord files", least=1)
    seed: int = option(0, "of the simulation; the same options give the same files")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.broken <= self.episodes:
            raise UsageError(f"--broken={self.broken}: expected 0 to {self.episodes}, the number of episodes")
        if not 1 <= self.shards <= self.episodes:
            raise UsageError(f"--shards={self.shards}: expected 1 to {self.episodes}, the number of episodes")
        if self.seed < 0:
            raise UsageError(f"--seed={self.seed}: expected 0 or more")


def example(config: ExampleConfig) -> str:
    """Writes the dataset; needs no TensorFlow.

    Returns:
      The directory of the dataset.

    Raises:
      UsageError: it exists already, or cannot be written.
    """
    from rlds_beam import worker_status
    from rlds_beam.console.progress import Total, in_this_process
    from rlds_beam.encoding.tfds.rlds_dataset import write_dataset
    from rlds_beam.encoding.tfds.rlds_records import encode_example, schema_of
    from rlds_beam.jobs.example import NAME, VERSION, make_episodes

    path = os.path.join(config.directory, NAME, VERSION)
    if os.path.exists(path):
        raise UsageError(f"{path} exists already; remove it, or name another directory")
    schema = schema_of(next(make_episodes(1, seed=config.seed)))

    def records() -> Iterator[bytes]:
        for episode in make_episodes(config.episodes, broken=config.broken, seed=config.seed):
            yield encode_example(episode, schema)
            worker_status.count(records=1, steps=len(episode))

    try:
        with in_this_process(Total("example", episodes=config.episodes), "auto"):
            write_dataset(config.directory, records(), name=NAME, version=VERSION, shards=config.shards, schema=schema)
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise UsageError(f"{path} cannot be written: {error}") from error
    except KeyboardInterrupt:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def main(config: ExampleConfig) -> int:
    """The command: writes the dataset, says what to do with it, returns the exit code."""
    from rlds_beam.text import count

    path = example(config)
    print(f"wrote     {path}: {count(config.episodes, 'episode')} in {count(config.shards, 'shard')}")
    print(f"next      rlds-beam inspect {shlex.quote(path)}")
    return 0
