"""A damaged file of another program gives a one-line error or rejections with reasons, not a traceback."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export, open_job
from npz_data import ogbench_arrays

from rlds_beam.errors import RldsBeamError
from rlds_beam.testing import make_episode, write_dataset

SOURCES = {
    "numpy": "*/observation.npy",
    "d3rlpy": "*.h5",
    "minari": "data/*.hdf5",
    "zarr": "*.zarr.zip",
    "trajectories": "*.tfrecord-?????-of-?????",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    episodes = [make_episode(9, seed=i, observation=4) for i in range(6)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes)


@pytest.fixture(scope="module", params=[*SOURCES, "d4rl", "npz"])
def made(request, data, tmp_path_factory) -> tuple[str, Path, Path]:
    """A format, its dataset, and the file to damage."""
    to, output = request.param, tmp_path_factory.mktemp("made") / "out"
    if to == "d4rl":
        h5py = pytest.importorskip("h5py")
        output.mkdir()
        with h5py.File(output / "x.hdf5", "w") as file:
            file["observations"], file["actions"] = np.ones((54, 4), np.float32), np.ones((54, 2), np.float32)
            file["rewards"], file["terminals"] = np.ones(54, np.float32), np.arange(54) % 9 == 8
        return to, output, output / "x.hdf5"
    if to == "npz":
        output.mkdir()
        np.savez_compressed(output / "x.npz", **ogbench_arrays((9, 9, 9)))
        return to, output, output / "x.npz"
    export(data, output, to, **({"items": "frames"} if to == "trajectories" else {}))
    (file,) = output.glob(SOURCES[to])
    return to, output, file


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def zeros(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content))
    return content[:start] + bytes(len(content[start : start + 200])) + content[start + 200 :]


def noise(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(min(len(content), 2000))  # where the headers are
    return content[:start] + rng.randbytes(16) + content[start + 16 :]


def nothing(content: bytes, rng: random.Random) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [cut, zeros, noise, nothing])
def test_damage_is_reported_or_rejected(made, tmp_path, damage):
    from_, where, file = made
    whole = file.read_bytes()
    try:
        for seed in range(5 if damage is not nothing else 1):
            file.write_bytes(damage(whole, random.Random(f"{from_} {seed}")))
            _judge(convert(where, tmp_path / str(seed), from_), file)
    finally:
        file.write_bytes(whole)


def convert(where: Path, output: Path, from_: str) -> Any:
    try:
        job = open_job(where, output, "rlds", from_=from_)
        for work in job.open():
            job.converter.convert(work, {})
        return job.committer.commit()
    except RldsBeamError as error:
        return error


def _judge(outcome: Any, file: Path) -> None:
    if isinstance(outcome, RldsBeamError):
        told = str(outcome)
        assert "\n" not in told and len(told) < 400, told
        assert file.name in told or file.parent.name in told, told
        return
    assert outcome.records == outcome.valid + outcome.rejected
    for rule, counted in outcome.rules.items():
        assert counted, rule
