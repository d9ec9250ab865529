"""`rlds-beam example`: writes a small RLDS dataset to try the other commands on."""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
import shutil
from collections.abc import Iterator

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.options import option
from rlds_beam.terminal.options import PrintOptions, print_json

__all__ = ["ExampleConfig", "example"]

USAGE = "DIRECTORY"
EXAMPLES = """
    rlds-beam example data
    rlds-beam example data --camera --broken=3
    rlds-beam example data --robot
"""


@dataclasses.dataclass(frozen=True)
class ExampleConfig(PrintOptions):
    """Write a small RLDS dataset in TFDS layout: simulated episodes of a point mass pushed to a goal, or of an arm."""

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
    robot: bool = option(
        False,
        "simulate an arm with a gripper instead, which puts blocks on trays and sometimes misses: two 128x128 cameras, "
        "named joints, 10 Hz, instructions; the dataset is DIRECTORY/planar_arm/1.0.0",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.broken <= self.episodes:
            raise UsageError(f"--broken={self.broken}: expected 0 to {self.episodes}, the number of episodes")
        if not 1 <= self.shards <= self.episodes:
            raise UsageError(f"--shards={self.shards}: expected 1 to {self.episodes}, the number of episodes")
        if self.camera and self.robot:
            raise UsageError("--camera and --robot are different datasets (--robot has two cameras): leave one out")
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
    from rlds_beam.jobs import example as point_mass
    from rlds_beam.jobs import example_robot
    from rlds_beam.output.files import to_json
    from rlds_beam.reading.meaning import MEANING
    from rlds_beam.terminal.job_progress import Total, in_this_process

    if config.robot:
        name, make_episodes = example_robot.NAME, example_robot.make_episodes
    else:
        name = point_mass.CAMERA_NAME if config.camera else point_mass.NAME
        make_episodes = functools.partial(point_mass.make_episodes, camera=config.camera)
    path = os.path.join(config.directory, name, point_mass.VERSION)
    if os.path.exists(path):
        raise UsageError(f"{path} already exists: remove it, or name another directory")
    schema = default_schema(next(make_episodes(1, seed=config.seed)))

    def records() -> Iterator[bytes]:
        for episode in make_episodes(config.episodes, broken=config.broken, seed=config.seed):
            yield encode_example(episode, schema)
            worker_status.count(records=1, steps=len(episode))

    try:
        with in_this_process(Total("example", episodes=config.episodes), config.progress):
            version = point_mass.VERSION
            write_dataset(config.directory, records(), name=name, version=version, shards=config.shards, schema=schema)
            if config.robot:
                storage.write_text(storage.join(path, MEANING), to_json(example_robot.MEANING.to_json()))
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise UsageError(f"{path} cannot be written: {error}") from error
    except KeyboardInterrupt:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def main(config: ExampleConfig) -> int:
    """Writes the dataset, prints the next commands to try, and returns the exit code."""
    from rlds_beam.text import count

    path = example(config)
    dataset = shlex.quote(path)
    commands = [f"rlds-beam inspect {dataset}"]
    if config.robot:
        repair = " --repair=missing_is_last" if config.broken else ""
        commands += [
            f"rlds-beam show {dataset} --output=strip.png",
            f"rlds-beam convert {dataset} lerobot --to=lerobot{repair}",
        ]
    if config.json:
        print_json({"path": path, "episodes": config.episodes, "shards": config.shards, "next": commands})
        return 0
    print(f"wrote     {path}: {count(config.episodes, 'episode')} in {count(config.shards, 'shard')}")
    for command in commands:
        print(f"{'next' if command is commands[0] else '':10}{command}")
    return 0
