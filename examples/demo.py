"""From a simulator to an agent that learns from recorded data. Run it with: make demo.

It records a robot arm with a camera, and writes a report to look at first. Then it records episodes without a camera,
two of them broken on purpose, and inspects, checks, and converts them with the commands that a user would type. It
reads the result with TF-Agents and TFDS, pushes it into a Reverb server, and trains an agent on samples from there.
Without TensorFlow, it writes columns and a LeRobot dataset instead. It ends with a report of what was converted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from train import import_quietly, say

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

HERE = Path(__file__).resolve().parent
RLDS_BEAM = str(Path(sys.executable).with_name("rlds-beam"))
RULE = "=" * 100
TABLE = "replay"

END_SECONDS = 30
"""Seconds that a server may take to stop."""

SIMULATORS = {
    "record_cheetah": ("A policy drives dm_control's half-cheetah.", 1000),
    "record_pendulum": ("A policy swings gymnasium's pendulum.", 200),
}
"""Module of a simulator -> what it does, and transitions per episode."""


class Read(NamedTuple):
    """What a reader found, enough to compare two readers."""

    items: int
    observation: tuple[int, ...]
    reward: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("demo_data"), help="output folder; emptied first")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--steps", type=int, help="transitions per episode")
    flags = parser.parse_args()
    start = time.monotonic()
    shutil.rmtree(flags.folder, ignore_errors=True)
    has_tensorflow = all(importlib.util.find_spec(name) for name in ("dm_control", "envlogger", "reverb", "tf_agents"))
    simulator = "record_cheetah" if has_tensorflow else "record_pendulum"
    what, steps = SIMULATORS[simulator]
    flags.steps = flags.steps or steps
    recorded, output = flags.folder / "recorded", flags.folder / "pairs"

    os.environ["PYTHONPATH"] = os.path.relpath(HERE)  # where the simulators are
    first = flags.folder / "arm.html"
    see_episodes(flags.folder, first)

    heading("2. Record more", f"{what} Two episodes go wrong, as happens in labs. --accept records them anyway.")
    rlds_beam(
        "record",
        recorded,
        f"--env={simulator}:simulator",
        f'--env_config={{"steps": {flags.steps}}}',
        f"--policy=TruncatedGaussianHead({simulator}:policy, sigma=0.3)",
        f"--episodes={flags.episodes}",
        "--name=recorded",
        "--shards=1",
        "--envs_per_worker=1",
        "--accept=non_finite",
    )

    heading("3. Inspect", "What is in the dataset? Nothing is written.")
    rlds_beam("inspect", recorded)

    heading("4. Validate", "Is every episode valid? Exit code 3: some are not, and the report says why.")
    rlds_beam("check", "--rules", recorded, expect=3)

    heading("5. Convert", "Good episodes become training items (pairs of frames). Bad ones are set aside, not lost.")
    rlds_beam("convert", recorded, output, "--items=pairs", "--max_rejected=2")

    heading("6. The rejected episodes", f"Their original bytes are in {output}/rejected, each with the reason.")
    for line in rejected_lines(output):
        say(f"{line['key']}: {line['rule']}: {line['detail']}")

    if has_tensorflow:
        train_from_reverb(output, flags)
    else:
        write_other_formats(recorded, flags)

    heading(f"{10 if has_tensorflow else 9}. See the result", "Curves, distributions, and the rejected episodes.")
    report = flags.folder / "report.html"
    rlds_beam("report", recorded, f"--output={report}")

    heading("What next", f"That took {time.monotonic() - start:.0f} s.")
    for line in (
        f"See the arm's episodes:          open {first}",
        f"See what was recorded:           open {report}",
        f"Convert your own dataset:        rlds-beam convert /data/my_dataset/1.0.0 {flags.folder}/mine",
        "Repair truncated episodes:       rlds-beam convert ... --repair=missing_is_last",
        "Sequences for a recurrent agent: rlds-beam convert ... --items=sequences --sequence_length=20",
        "A Reverb server that stays:      rlds-beam serve --like=... --tables=replay --port=8000",
        "Into Reverb in one go:           rlds-beam push /data/my_dataset/1.0.0 --reverb=127.0.0.1:8000 --table=replay",
        "All options:                     rlds-beam convert --help, push --help",
        "From Python, in your pipeline:   README.md",
    ):
        say(line)


def see_episodes(folder: Path, report: Path) -> None:
    """Records a robot arm with a camera, or writes the example episodes if nothing can draw; then a report of them."""
    if renderer := find_renderer():
        heading("1. Record with a camera", "dm_control's Jaco arm reaches for a ball.")
        arm = folder / "arm"
        rlds_beam(
            "record",
            arm,
            "--env=record_arm:simulator",
            "--policy=TruncatedGaussianHead(record_arm:policy, sigma=0.05)",
            "--episodes=6",
            "--max_episode_steps=60",
            '--connectors=FillLanguage("reach for the red ball")',
            "--name=jaco_arm",
            "--shards=1",
            "--envs_per_worker=1",
            MUJOCO_GL=renderer,
        )
    else:
        heading("1. See episodes", "A drawn arm with two cameras; one recording was interrupted.")
        say("MuJoCo cannot draw here (Debian: libosmesa6), so these are example episodes.")
        rlds_beam("example", folder, "--robot", "--episodes=8", "--broken=1")
        arm = folder / "planar_arm/1.0.0"
    rlds_beam("report", arm, f"--output={report}")
    say(f"Open {report} now: the grid at its top shows the episodes.")


def find_renderer() -> str | None:
    """The value of MUJOCO_GL with which MuJoCo draws here, tried in another process: OSMesa, or what the user chose."""
    chosen = os.environ.get("MUJOCO_GL", "disable")
    renderer = "osmesa" if chosen == "disable" else chosen
    try:
        draws = subprocess.run(
            [sys.executable, HERE / "record_arm.py"],
            env={**os.environ, "MUJOCO_GL": renderer},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=END_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return None if draws.returncode else renderer


def write_other_formats(recorded: Path, flags: argparse.Namespace) -> None:
    """Writes formats that need neither TensorFlow nor Reverb."""
    import rlds_beam as library

    due = (flags.episodes - 2) * flags.steps
    heading("7. Columns", "For PyTorch, JAX, grain, or a data frame: arrays of all transitions, read at random places.")
    rlds_beam("convert", recorded, flags.folder / "columns", "--to=columns", "--max_rejected=2")
    dataset = library.open_dataset(str(flags.folder / "columns"))
    say(f"{len(dataset):,} rows, sum of rewards {dataset.columns['rewards'].sum():.4f}")
    if len(dataset) != due:
        sys.exit(f"The demo ends here: {due:,} rows were expected.")

    heading("8. LeRobot", "The same episodes as a dataset that LeRobot trains from.")
    rlds_beam("convert", recorded, flags.folder / "lerobot", "--to=lerobot", "--fps=20", "--max_rejected=2")
    say("")
    say("Left out: TF-Agents, TFDS and Reverb. TensorFlow 2.15 needs Python 3.11:")
    say("install one, remove .venv, and run make demo again.")


def train_from_reverb(output: Path, flags: argparse.Namespace) -> None:
    """Reads the items with TF-Agents and TFDS, pushes them into Reverb, and trains an agent."""
    push = [RLDS_BEAM, "push", str(output), "--reverb=embedded", f"--table={TABLE}", "--keep_serving"]
    with background(push) as pushing:  # read the files while its server starts
        heading("7. Read it back", "With TF-Agents and with TFDS, without rlds-beam.")
        import_quietly()
        compare(read_with_tf_agents(output), read_with_tfds(output), flags)

        heading("8. Push into Reverb", "Each item goes into a table exactly once. The server keeps running.")
        show(push)
        address = served_address(pushing)

        heading("9. Train", "TF-Agents samples batches, and an agent learns to imitate the recorded actions.")
        run(
            [
                sys.executable,
                os.path.relpath(HERE / "train.py"),
                f"--reverb={address}",
                f"--table={TABLE}",
                f"--like={output}",
            ]
        )


def heading(title: str, text: str) -> None:
    print(f"\n{RULE}\n{title}\n{text}\n", flush=True)


def rlds_beam(*arguments: object, expect: int = 0, **variables: str) -> None:
    """Runs `rlds-beam` of this environment, as a user would; `variables` are added to the environment."""
    run([RLDS_BEAM, *map(str, arguments)], expect, **variables)


def run(command: Sequence[str], expect: int = 0, **variables: str) -> None:
    """Shows and runs a command; ends the demo if its exit code is not the expected one."""
    show(command, **variables)
    code = subprocess.run(command, env={**os.environ, **variables}, check=False).returncode
    if code != expect:
        sys.exit(f"The demo ends here: exit code {code}, where {expect} was expected.")
    if expect:
        say(f"(exit code {code}, as expected)")


def show(command: Sequence[str], **variables: str) -> None:
    settings = [f"{name}={value}" for name, value in variables.items()]
    print("$ " + " ".join([*settings, Path(command[0]).name, *map(shlex.quote, command[1:])]), flush=True)


@contextlib.contextmanager
def background(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Runs a command in the background until the context ends; then stops it like Ctrl-C."""
    # A shell's background job, and the processes that it starts, ignore Ctrl-C. This one must receive it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            rest, _ = process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    if process.returncode:
        sys.exit(f"{rest}The demo ends here: exit code {process.returncode} at the end of {' '.join(command[1:])}.")


def served_address(pushing: subprocess.Popen[str]) -> str:
    """Prints the output of a push until its server has all items; returns the address. Its waits have deadlines."""
    assert pushing.stdout is not None
    for line in pushing.stdout:
        print(line, end="", flush=True)
        if found := re.match(r"serving +([\w.]+:\d+)", line):
            return found[1]
    sys.exit(f"The demo ends here: exit code {pushing.wait()}, where a server was expected.")


def rejected_lines(output: Path) -> list[dict[str, Any]]:
    """Returns the record of each rejected episode."""
    files = sorted((output / "rejected").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def read_with_tf_agents(output: Path) -> Read:
    """Reads every item with TF-Agents, batched to a Trajectory as `agent.train` takes it."""
    import tensorflow as tf
    from tf_agents.utils import example_encoding_dataset

    files = sorted(str(path) for path in output.glob("*.tfrecord-*") if not path.name.endswith(".spec"))
    dataset = example_encoding_dataset.load_tfrecord_dataset(files, as_trajectories=True, add_batch_dim=False)
    items, reward, shape = 0, 0.0, tf.TensorShape(())
    for batch in dataset.batch(1024):
        items += batch.reward.shape[0]
        reward += float(tf.reduce_sum(tf.cast(batch.reward, tf.float64)))
        shape = batch.observation.shape[1:]
    return Read(items, tuple(shape), reward)


def read_with_tfds(output: Path) -> Read:
    """Reads every item with TFDS."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(output))
    items, reward, shape = 0, 0.0, tf.TensorShape(())
    for batch in builder.as_dataset(split="train").batch(1024):
        items += batch["reward"].shape[0]
        reward += float(tf.reduce_sum(tf.cast(batch["reward"], tf.float64)))
        shape = batch["observation"].shape[1:]
    return Read(items, tuple(shape), reward)


def compare(agents: Read, tfds: Read, flags: argparse.Namespace) -> None:
    """Prints what both readers found; ends the demo if they differ from each other or from what is expected."""
    for name, read in (("TF-Agents load_tfrecord_dataset", agents), ("TFDS builder_from_directory", tfds)):
        say(f"{name:32} {read.items:,} items, observation {read.observation}, sum of rewards {read.reward:.4f}")
    due = (flags.episodes - 2) * flags.steps
    say(f"{'Expected':32} {flags.episodes - 2} good episodes x {flags.steps} pairs = {due:,} items")
    alike = agents.observation == tfds.observation and abs(agents.reward - tfds.reward) <= 1e-6 * abs(tfds.reward)
    if not (agents.items == tfds.items == due and alike):
        sys.exit("The demo ends here: the readers do not agree.")
    say("Both agree.")


if __name__ == "__main__":
    main()
