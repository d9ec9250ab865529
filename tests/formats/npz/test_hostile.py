"""Hostile and damaged .npz files: refused, or rejected with a reason; nothing is unpickled or allocated."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from npz_data import ogbench_arrays

import rlds_beam
from rlds_beam.errors import UsageError
from rlds_beam.formats.npz.members import open_npz
from rlds_beam.formats.npz.source import NpzSource


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def header(descr: str, shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def archive(path: Path, members: list[tuple[str, bytes]], kind: int = zipfile.ZIP_DEFLATED) -> str:
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, data in members:
            file.writestr(name, data)
    return str(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("observations.npy", npy(np.array([{}, {}], object)))], "Python objects, which only pickle reads"),
        ([("a.npy", npy(np.ones(2))), ("a.npy", npy(np.zeros(2)))], "two arrays named a"),
        ([("a.npy", header("<f8", (10**12,)))], "do not fit its shape"),
        ([("a.npy", header("<f8", (-1,)))], "do not fit its shape"),
        ([("a.npy", b"no array")], "damaged"),
        ([("a.npy", b"")], "damaged"),
        ([("readme.txt", b"x")], "holds no arrays"),
        ([], "holds no arrays"),
        ([("a.npy", npy(np.ones(3)) + b"more")], "do not fit its shape"),
        ([("a.npy", npy(np.ones(3)).replace(b"(3,)", b"(3,("))], "damaged: .*EOF in multi-line"),
    ],
)
def test_hostile_members_are_refused(tmp_path, members, said) -> None:
    path = archive(tmp_path / "x.npz", members)
    with pytest.raises(OSError, match=said), open_npz(path):
        pass
    with pytest.raises(UsageError, match="cannot be read"):
        NpzSource.open(path)


def test_an_error_is_short_whatever_a_file_says(tmp_path) -> None:
    path = Path(archive(tmp_path / "x.npz", [(f"{'a' * 9000}.npy", npy(np.ones(3)))]))
    path.write_bytes(path.read_bytes().replace(b"aaa", b"aba", 1))  # in the header only
    with pytest.raises(UsageError, match="File name in directory") as error:
        NpzSource.open(str(path))
    assert len(str(error.value)) < 1000


def test_a_bomb_is_refused_by_its_claimed_size(tmp_path) -> None:
    path = Path(archive(tmp_path / "x.npz", [("a.npy", header("<f8", (2**31,)))]))
    data = bytearray(path.read_bytes())
    size = 2**34 + len(header("<f8", (2**31,)))
    at = data.index(b"PK\1\2")
    data[at + 24 : at + 28] = (min(size, 2**32 - 2)).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(OSError, match="claims"), open_npz(str(path)):
        pass


def test_a_flag_other_than_0_or_1_is_a_reason(tmp_path) -> None:
    arrays = ogbench_arrays((4, 3))
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez(tmp_path / "b.npz", **{**arrays, "terminals": arrays["terminals"] * 0.5})
    report = rlds_beam.validate(tmp_path, from_="npz")
    assert (report.valid, report.rejected) == (2, 1)


@pytest.mark.parametrize("name", ["observations", "actions"])
def test_a_file_unlike_the_first_is_rejected(tmp_path, name) -> None:
    arrays = ogbench_arrays((4, 3))
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez(tmp_path / "b.npz", **{**arrays, name: arrays[name][:, :3]})
    np.savez(tmp_path / "c.npz", **{key: value for key, value in arrays.items() if key != "qvel"})
    report = rlds_beam.validate(tmp_path, from_="npz", accept=("duplicate_episode",))
    assert (report.valid, report.rejected) == (2, 4)
