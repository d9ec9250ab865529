"""`--cast` rejects episodes with values that it would change."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from rlds_beam.cli.main import main
from rlds_beam.episodes.columns import find_changed
from rlds_beam.testing import make_episode, read_items, read_rejected, write_dataset

VALUES = [
    0,
    1,
    -1,
    0.5,
    -1.5,
    1 / 3,
    127,
    128,
    200,
    255,
    256,
    300,
    2049,
    65504,
    65520,
    70000,
    2**24 + 1,
    2**31 - 1,
    2**31,
    -(2**31),
    -(2**31) - 1,
    2**32,
    2**53,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64 - 1,
    1e30,
    1e39,
    1e-30,
    float("nan"),
    float("inf"),
    -float("inf"),
]
SOURCES = [
    np.dtype(name)
    for name in (
        "bool",
        "uint8",
        "int8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
    )
] + [np.dtype(ml_dtypes.bfloat16)]


def is_changed(value, new: np.dtype, rounding: bool) -> bool:
    """Computed with Python's exact numbers."""
    old = float(value) if value.dtype.kind not in "biu" else int(value)
    if new.kind == "b":
        return old not in (0, 1)
    if new.kind in "iu":
        limits = np.iinfo(new)
        return (
            old != old
            or old in (float("inf"), -float("inf"))
            or old != int(old)
            or not (int(limits.min) <= int(old) <= int(limits.max))
        )
    with np.errstate(over="ignore"):
        after = float(value.astype(new))
    if isinstance(old, int):
        return abs(after) == float("inf") or int(after) != old
    if not rounding:
        return after != old and old == old
    return abs(old) < float("inf") and abs(after) == float("inf")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_changed(source):
    for new, rounding, value in itertools.product(SOURCES, [True, False], VALUES):
        if source.kind in "biu" and (value != value or not np.isfinite(value) or value != int(value)):
            continue
        if source.kind in "iu" and not np.iinfo(source).min <= int(value) <= np.iinfo(source).max:
            continue
        array = np.array([int(value) if source.kind in "iu" else value]).astype(source)
        found = find_changed(array, array.astype(new), rounding=rounding).tolist()
        assert found == [is_changed(array[0], new, rounding)], (value, new, rounding)


@pytest.fixture
def source(tmp_path):
    def episode(n, seed):
        count = np.arange(n, dtype=np.int64) + (300 if seed == 1 else 0)
        level = np.full((n, 2), -1.5 if seed == 2 else 2.0, np.float32)
        wide = np.full(n, 70000.0 if seed == 3 else 0.1)
        columns = {"observation/count": count, "observation/level": level, "observation/wide": wide}
        return make_episode(n, seed=seed, observation={"state": 3}, columns=columns)

    return str(write_dataset(tmp_path / "data", [episode(5, i) for i in range(5)]))


CAST = "--cast=observation/count=int8,observation/level=uint8,observation/wide=float16"


def test_an_episode_with_a_changed_value_is_rejected(source, tmp_path, capsys):
    assert main(["convert", source, str(tmp_path / "out"), CAST, "--items=frames"]) == 3
    out = capsys.readouterr().out
    assert "cast: 3 rejected" in out
    assert "--cast=LEAF=DTYPE! writes the changed value" in out
    lines = [line for line, _ in read_rejected(tmp_path / "out")]
    assert [line["rule"] for line in lines] == ["cast"] * 3
    assert [line["detail"] for line in lines] == [
        "observation/count: 300 at step 0 becomes 44 as int8 (5 such values in the episode)",
        "observation/level: -1.5 at step 0 becomes 255 as uint8 (10 such values in the episode)",
        "observation/wide: 70000.0 at step 0 becomes inf as float16 (5 such values in the episode)",
    ]
    items = read_items(tmp_path / "out")
    assert len(items) == 10
    assert items[3]["observation/count"] == 3
    assert items[0]["observation/wide"] == np.float16(0.1)  # rounded, like every shorter float


def test_an_exclamation_mark_forces_the_cast(source, tmp_path):
    flags = CAST.replace("int8,", "int8!,").replace("float16", "float16!")
    assert main(["convert", source, str(tmp_path / "out"), flags, "--items=frames", "--accept=non_finite"]) == 0
    items = read_items(tmp_path / "out")
    assert len(items) == 25
    assert items[5]["observation/count"] == 44
    assert items[15]["observation/wide"] == np.inf


def test_the_void_last_step_is_not_checked(tmp_path):
    action = np.zeros((4, 2), np.float32)
    action[-1] = np.inf
    path = write_dataset(tmp_path / "data", [make_episode(4, columns={"action": action})])
    flags = ["--cast=action=int32", "--accept=non_finite"]
    assert main(["convert", str(path), str(tmp_path / "out"), *flags]) == 0
    assert main(["convert", str(path), str(tmp_path / "meant"), *flags, "--last_step=absorbing"]) == 3
