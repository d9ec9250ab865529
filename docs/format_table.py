"""Writes the tables of all formats into `reference/formats.md`, from `rlds_beam.formats.registry`.

    python docs/format_table.py

`make docs` runs it, and a test fails if the table differs from what it writes.
"""

import os
import re
from pathlib import Path

from rlds_beam.formats.registry import FORMATS, Format

PAGE = Path(__file__).parent / "reference" / "formats.md"
PAGES = {
    "rlds": "../how_to/clean.md",
    "merged": "../how_to/merge.md",
    "trajectories": "output_files.md",
    "columns": "columns.md",
    "lerobot": "lerobot.md",
    "numpy": "../how_to/hdf5.md",
    "npz": "../how_to/hdf5.md",
    "hdf5": "../how_to/hdf5.md",
    "zarr": "../how_to/zarr.md",
    "envlogger": "formats.md#reading",
    "ros2": "../how_to/ros2.md",
    "scope_rl": "scope_rl.md",
}
"""The page that says more of a format."""

DESCRIPTIONS = {
    "rlds": "RLDS episodes, as stored by TFDS and EnvLogger",
    "merged": "several datasets, of any formats, as one",
    "trajectories": "TF-Agents trajectories: pairs, sequences, episodes",
    "columns": "a row per transition, or columns from connectors",
    "lerobot": "LeRobot datasets, v3.0 and v2.1",
    "numpy": "a .npy array per field",
    "npz": "NumPy's .npz files: ExoRL, OGBench, arrays as in D4RL",
    "zarr": "replay buffers of diffusion policy and UMI (zarr)",
    "hdf5": "HDF5: ALOHA, robomimic, LIBERO, D4RL, Minari, ...",
    "envlogger": "EnvLogger's Riegeli logs",
    "ros2": "ROS 2 bags and MCAP files",
    "scope_rl": "SCOPE-RL's logged dataset (pickle)",
}

OTHERS = {
    "rlds": ("`tfds.builder_from_directory`, `rlds_beam.open_dataset`", "`arrayrecord` (ArrayRecord files)"),
    "merged": ("", ""),
    "trajectories": ("`rlds_beam.load_trajectories`, TF-Agents, TFDS", ""),
    "columns": ("`rlds_beam.open_dataset`, TFDS, pandas, Ray Data", "`arrayrecord` (`--format=array_record`)"),
    "lerobot": ("`LeRobotDataset`, GR00T, openpi", "`lerobot` (videos)"),
    "numpy": ('`np.load(..., mmap_mode="r")`', ""),
    "npz": ("`numpy.load`", ""),
    "zarr": (
        "[diffusion policy](https://github.com/real-stanford/diffusion_policy): `ReplayBuffer.create_from_path`",
        "`zarr` (reading)",
    ),
    "hdf5": (
        "written by recorders, simulators, [D4RL](https://github.com/Farama-Foundation/D4RL), "
        "[Minari](https://minari.farama.org)",
        "`hdf5`",
    ),
    "envlogger": ("written by [EnvLogger](https://github.com/google-deepmind/envlogger)", "`envlogger`"),
    "ros2": ("written by `ros2 bag record`", "`ros`"),
    "scope_rl": ('`MultipleLoggedDataset("discrete", "out").get(name, 0)`', ""),
}
"""How other programs open a format, or which of them writes it; and the extra that it needs."""

README = Path(__file__).parents[1] / "README.md"

_TABLE = re.compile(r"(<!-- Written by docs/format_table.py -->\n)(?:\|.*\n)*")


def page() -> str:
    """The page with its tables up to date."""
    tables = iter((table(), recognized_by()))
    return _TABLE.sub(lambda marker: f"{marker[1]}{next(tables)}\n", PAGE.read_text())


def front_page() -> str:
    """The README with its table up to date."""
    return _TABLE.sub(lambda marker: f"{marker[1]}{short_table()}\n", README.read_text())


def short_table() -> str:
    """Reads, writes, opens in: what the README says about each format."""
    rows = ["| format | reads | writes | opens in |", "|---|:-:|:-:|---|"]
    for name, known in FORMATS.items():
        reads, writes = ("\N{CHECK MARK}" if kind else "" for kind in (known.source, known.output))
        about = f"{linked(name, README.parent)}: {DESCRIPTIONS[name]}"
        rows.append(f"| {about} | {reads} | {writes} | {OTHERS[name][0]} |".replace("|  ", "| "))
    return "\n".join(rows)


def linked(name: str, folder: Path) -> str:
    """The name of a format, with a link from a page in `folder` if the format has a page."""
    if name not in PAGES:
        return f"`{name}`"
    return f"[`{name}`]({os.path.relpath(PAGE.parent / PAGES[name], folder)})"


def table() -> str:
    head = ["| format | `--from` | `--to` | description | other programs | extra |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *(row(name, known) for name, known in FORMATS.items())])


def recognized_by() -> str:
    """The names that each format is recognized by."""
    rows = [
        f"| `{name}` | {', '.join(known.names).replace('*', '&#42;')} |"
        for name, known in FORMATS.items()
        if known.names
    ]
    return "\n".join(["| format | recognized by |", "|---|---|", *rows])


def row(name: str, known: Format) -> str:
    cells = [
        linked(name, PAGE.parent),
        "yes" if known.source else "",
        "yes" if known.output else "",
        DESCRIPTIONS[name],
        *OTHERS[name],
    ]
    return "| " + " | ".join(cells).replace("|  |", "| |") + " |"


if __name__ == "__main__":
    PAGE.write_text(page())
    README.write_text(front_page())
