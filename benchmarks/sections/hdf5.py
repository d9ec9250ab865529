"""`convert --from=hdf5` against the scripts that people use for ALOHA and LIBERO."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from measuring import (
    DATA,
    HERE,
    Figure,
    Measurement,
    Sizes,
    at_least,
    best,
    command,
    convert,
    ratios,
    table,
)

PEERS = HERE.parent / ".venv-peers-lerobot" / "bin" / "python"
TITLES = {"aloha": "ALOHA's HDF5 of JPEGs", "aloha_raw": "ALOHA's HDF5 of pixels", "libero": "LIBERO's HDF5"}
ALOHA_SCRIPT, LIBERO_SCRIPT = "openpi's convert_aloha_data_to_lerobot.py", "any4lerobot's libero_h5.py"


def hdf5(sizes: Sizes) -> list[Figure]:
    """One worker against scripts with as many threads and processes as they like. The scripts get fewer episodes."""
    lerobot = _has(PEERS, "lerobot", "h5py", "cv2")
    if not lerobot:
        print(f"\nhdf5: LeRobot's scripts are skipped, {PEERS} needs lerobot, h5py, and opencv-python-headless")
    figures: list[Figure] = []
    if lerobot:
        figures += _compared(sizes, "aloha", 10, 200, "aloha", ALOHA_SCRIPT, 50, "--to=lerobot")
        figures += _compared(sizes, "aloha_raw", 2, 50, "aloha", ALOHA_SCRIPT, 1, "--to=lerobot")
        flags = ("--to=lerobot", "--images=video", "--raw_images=raw")
        figures += _compared(sizes, "libero", 10, 100, "libero_lerobot", LIBERO_SCRIPT, 1, *flags)
    if _has(Path(sys.executable), "tensorflow_datasets", "h5py"):
        upright = DATA / "upright.json"
        upright.write_text(json.dumps([{"RotateImages": {"degrees": 180}}]))
        flags = ("--to=rlds", "--raw_images=jpeg", f"--connectors={upright}")  # as the builder, which stores JPEGs
        figures += _compared(sizes, "libero", 10, 100, "libero_rlds", "OpenVLA's LIBERO builder (TFDS)", 1, *flags)
    return figures


def _compared(
    sizes: Sizes, kind: str, episodes: int, steps: int, peer: str, name: str, target: float, *flags: str
) -> list[Figure]:
    """Our rate on all episodes next to the peer's on the first of them."""
    episodes, steps, theirs = sizes.of(episodes, 2), sizes.of(steps, 50), 1 if "aloha" in kind else 2
    folder = _made(kind, episodes, steps)
    python = sys.executable if peer == "libero_rlds" else PEERS
    peers, ours = [], []
    for _ in range(sizes.repeats):
        printed, _ = command([python, HERE / "peers/hdf5_peer.py", peer, folder, theirs])
        content = json.loads(printed.splitlines()[-1])
        peers.append(Measurement(content, content["steps_per_second"], peak_mb=content["peak_mb"]))
        ours.append(convert(folder, "--from=hdf5", f"--profile={kind.removesuffix('_raw')}", "--workers=1", *flags))
    one, other = best(ours), best(peers)
    table(
        f"hdf5, {kind}, {episodes} episodes of {steps:,} steps ({name}: {theirs}), one worker, {' '.join(flags[:2])}",
        ["", "steps/s", "peak MB", "ratio"],
        [name, f"{other.rate:,.1f}", f"{other.peak_mb:,.0f}", ""],
        ["ours", f"{one.rate:,.1f}", f"{one.peak_mb:,.0f}", f"{one.rate / other.rate:,.1f}"],
        ["ours, start-up included", f"{_overall(one):,.1f}", "", f"{_overall(one) / other.rate:,.1f}"],
    )
    to = flags[0].removeprefix("--to=")
    return [
        at_least(
            f"hdf5, {kind}, {to}: times {name}",
            one.rate / other.rate,
            target,
            what=f"{TITLES[kind]} to {to}",
            against=name,
            peer=name.partition(" ")[0] + " script",
            runs=ratios(ours, peers),
        )
    ]


def _overall(run: Measurement) -> float:
    return float(run.content["steps"] / (run.working + run.start_up))


def _made(kind: str, episodes: int, steps: int) -> Path:
    made = command([sys.executable, HERE / "robot_files.py", kind, episodes, steps, "--into", DATA])
    return Path(made[0].strip())


def _has(python: Path, *modules: str) -> bool:
    """Whether an environment has these modules. They are not imported here."""
    check = f"import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in {modules}))"
    return python.exists() and subprocess.run([python, "-c", check], check=False).returncode == 0
