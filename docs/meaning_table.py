"""Writes docs/reference/meaning.md: what is known of nine datasets before and after conversions.

    python docs/meaning_table.py

Eight are small datasets as their writers lay them out (tests/support); Bridge is read from
$RLDS_BEAM_REAL_DATA, and its row stays as it is without it.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import hdf5_robots  # noqa: E402
import ros2_bags  # noqa: E402
import zarr_data  # noqa: E402
from checkout import REAL_DATA  # noqa: E402
from small_datasets import minari_hdf5  # noqa: E402

import rlds_beam  # noqa: E402
from rlds_beam.connectors.cleaning.pixels import INTRINSICS  # noqa: E402
from rlds_beam.jobs.inspect import is_vector  # noqa: E402
from rlds_beam.testing import make_episode, write_dataset  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "meaning.md"
BRIDGE = REAL_DATA / "bridge_dataset" / "1.0.0"
BRIDGE_TITLE = "Bridge (RLDS)"
JOINTS = [
    f"{joint}.pos" for joint in ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
]
HEAD = """# What survives a conversion

Whether a policy drives the robot right depends on what the numbers mean. This table shows what is known of nine
datasets: what their formats say, what [`inspect`](commands.md#rlds-beam-inspect) shows, and what is left after
`--to=lerobot`, `--to=rlds`, and `--to=rlds` and back to LeRobot. `docs/meaning_table.py` writes this page.

A cell has the robot, the rate, the number of named vectors among those of the observation and the action, the tasks,
the calibrated cameras, and whether the action of a last step is real. What is unknown is left out: give it with
`--robot_type`, `--fps`, `--names`, `--task`. Rates of outputs that need one and whose source has none were given
(`--fps=10`).

| dataset | the format says | `inspect` | `--to=lerobot` | `--to=rlds` | and back |
|---|---|---|---|---|---|
"""


def so101(path: Path) -> dict[str, Any]:
    """As LeRobot records an SO-101."""
    episodes = [make_episode(20, seed=i, observation={"state": 6}, action=6) for i in range(3)]
    source = write_dataset(path.parent / "made", episodes)
    added = ("reward", "discount", "is_first", "is_last", "is_terminal")
    convert(source, path, to="lerobot", fps=30, task="pick the cube", map=tuple(f"-{name}" for name in added))
    (path / "meta" / "rlds_beam.json").unlink()
    (path / "plan.json").unlink()
    info = json.loads((path / "meta" / "info.json").read_text())
    info["robot_type"] = "so101_follower"
    for name in ("action", "observation.state"):
        info["features"][name]["names"] = JOINTS
    (path / "meta" / "info.json").write_text(json.dumps(info))
    return {}


def ros2(path: Path) -> dict[str, Any]:
    path.mkdir()
    ros2_bags.write_mcap(path / "bag.mcap", [ros2_bags.camera_info(ros2_bags.T0), *ros2_bags.robot()])
    camera = "{topic: /camera/camera_info, field: k, max_age_s: null}"
    matrix = f"  episode_metadata/observation/image_intrinsics: {camera}\n"
    (path.parent / "topics.yaml").write_text(ros2_bags.MAPPING + matrix)
    return {"from_": "ros2", "topics": str(path.parent / "topics.yaml")}


def push_t(path: Path) -> dict[str, Any]:
    random = np.random.default_rng(0)
    arrays = {
        "img": random.uniform(0, 255, (12, 32, 32, 3)).astype(np.float32),
        "state": random.uniform(0, 512, (12, 5)).astype(np.float32),
        "action": random.uniform(0, 512, (12, 2)).astype(np.float32),
    }
    zarr_data.write_buffer(path, arrays, (5, 7))
    return {}


def d4rl(path: Path) -> dict[str, Any]:
    import h5py

    path.mkdir()
    with h5py.File(path / "hopper.hdf5", "w") as file:
        file["observations"], file["actions"] = np.zeros((10, 2), np.float32), np.zeros((10, 1), np.float32)
        file["rewards"], file["terminals"] = np.zeros(10, np.float32), np.arange(10) == 3
        file["timeouts"] = np.arange(10) == 7
    return {}


def minari(path: Path) -> dict[str, Any]:
    minari_hdf5(path)
    about = json.loads((path / "data" / "metadata.json").read_text())
    spec = {"id": "Acrobot-v1", "entry_point": "gymnasium.envs.classic_control.acrobot:AcrobotEnv"}
    (path / "data" / "metadata.json").write_text(json.dumps({**about, "env_spec": json.dumps(spec)}))
    return {}


def hdf5(name: str) -> Callable[[Path], dict[str, Any]]:
    def write(path: Path) -> dict[str, Any]:
        getattr(hdf5_robots, name)(path, [5, 6])
        return {}

    return write


DATASETS: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "LeRobot, SO-101": (so101, "robot, rate, a name for each joint, a task for each frame"),
    "ALOHA (ACT)": (hdf5("aloha"), "the layout: 14 joints at 50 Hz"),
    "robomimic": (hdf5("robomimic"), "`env_args`: environment, robot, rate, controller"),
    "LIBERO": (hdf5("libero"), "task text; 20 Hz by its authors"),
    "ROS 2 bag": (ros2, "names of joints, stamps of messages, a topic with the task, the calibration of a camera"),
    "push-T (zarr)": (push_t, "nothing but arrays"),
    "D4RL": (d4rl, "nothing but arrays; the file's name"),
    "Minari": (minari, "spaces; the environment, whose rate is known"),
}


def convert(*arguments: Any, **options: Any) -> None:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        rlds_beam.convert(*arguments, progress="none", workers=1, accept=("duplicate_episode",), **options)


def known(path: Path, **options: Any) -> str:
    """What `inspect` says of a dataset."""
    survey = rlds_beam.inspect(path, **options)
    source, card = survey.source, survey.card
    vectors = [field for field in source.schema.steps.values() if is_vector(field) and field.shape]
    named = sum(bool(field.names) for field in vectors)
    tasks = sum(bool(text) for text in card["tasks"])
    calibrated = sum(path.endswith(INTRINSICS) for path in (*source.schema.steps, *source.schema.metadata))
    facts = [
        source.robot or "",
        f"{source.fps:g} Hz" if source.fps else "",
        f"{named} of {len(vectors)} named" if named else "",
        f"{tasks} task{'s' if tasks > 1 else ''}" if tasks else "",
        f"{calibrated} calibrated camera{'s' if calibrated > 1 else ''}" if calibrated else "",
        f"last action {source.last_action}" if source.last_action != "unknown" else "",
    ]
    return ", ".join(fact for fact in facts if fact) or "-"


def row(title: str, says: str, path: Path, folder: Path, **options: Any) -> str:
    """The row of a dataset."""
    rate = {} if rlds_beam.inspect(path, **options).source.fps else {"fps": 10}
    cells = [says, known(path, **options)]
    for name, source, chosen in (
        ("lerobot", path, {"to": "lerobot", **rate, **options}),
        ("rlds", path, {"to": "rlds", **options}),
        ("back", folder / "rlds", {"to": "lerobot", **rate}),
    ):
        convert(source, folder / name, **chosen)
        cells.append(known(folder / name))
    return f"| {' | '.join([title, *cells])} |\n"


def make_row(title: str, folder: Path) -> str:
    """The row of a dataset, made in an empty folder."""
    if title == BRIDGE_TITLE:
        return row(title, "task text; no rate, no names", BRIDGE, folder, repair="missing_is_last")
    write, says = DATASETS[title]
    options = write(folder / "data")
    return row(title, says, folder / "data", folder, **options)


def page() -> str:
    """The text of the page."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for number, title in enumerate((*DATASETS, *([BRIDGE_TITLE] if BRIDGE.exists() else []))):
            folder = Path(directory) / str(number)
            folder.mkdir()
            rows.append(make_row(title, folder))
    if not BRIDGE.exists() and PAGE.exists():
        rows += [line + "\n" for line in PAGE.read_text().splitlines() if line.startswith(f"| {BRIDGE_TITLE}")]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
