"""What diffusion policy's `ReplayBuffer` and `SequenceSampler` read from `--to=zarr`.

Restates the reading lines of https://github.com/real-stanford/diffusion_policy: `copy_from_store` and
`create_from_path` of diffusion_policy/common/replay_buffer.py, `create_indices` and `sample_sequence` of sampler.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from zarr_data import episode_arrays, open_zip, write_buffer

import rlds_beam

zarr = pytest.importorskip("zarr")
LENGTHS = (5, 1, 12, 9)
HORIZON, BEFORE, AFTER = 8, 1, 7

Root: TypeAlias = "Mapping[str, Mapping[str, Any]]"


def on_disk(path: Path) -> Any:
    """`create_from_path`: the arrays stay in the file."""
    return open_zip(path)


def in_numpy(path: Path) -> Root:
    """`copy_from_path`: all arrays in memory."""
    root = on_disk(path)
    return {group: {key: root[group][key][:] for key in root[group].array_keys()} for group in ("meta", "data")}


def in_memory(path: Path) -> Any:
    """`copy_from_path(store=zarr.MemoryStore())`: chunks are copied to memory as they are."""
    if not zarr.__version__.startswith("2."):
        pytest.skip("zarr 3 has no copy_store")
    source, store = zarr.open(str(path), "r").store, zarr.MemoryStore()
    root = zarr.group(store=store)
    zarr.copy_store(source, store, source_path="/meta", dest_path="/meta", if_exists="replace")
    root.create_group("data", overwrite=True)
    for key in zarr.group(source)["data"].keys():  # noqa: SIM118
        zarr.copy_store(source, store, source_path=f"/data/{key}", dest_path=f"/data/{key}", if_exists="replace")
    return root


def sequences(root: Root, key: str) -> Iterator[Any]:
    """Every sequence of the sampler: `HORIZON` rows of an episode, padded with its first and last row."""
    values, start = root["data"][key], 0
    for end in root["meta"]["episode_ends"][:]:
        for index in range(-BEFORE, end - start - HORIZON + AFTER + 1):
            first, last = max(index, 0) + start, min(index + HORIZON, end - start) + start
            sample = values[first:last]
            before, after = first - (index + start), index + HORIZON + start - last
            yield np.concatenate([sample[:1].repeat(before, 0), sample, sample[-1:].repeat(after, 0)])
        start = end


@pytest.fixture(scope="module", params=["blosc", "jpegxl"])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A buffer that was converted to a buffer."""
    from imagecodecs.numcodecs import register_codecs

    register_codecs(verbose=False)
    home = tmp_path_factory.mktemp("converted")
    path = write_buffer(home / "push.zarr", episode_arrays(LENGTHS), LENGTHS)
    rlds_beam.convert(path, home / "out", to="zarr", images=request.param, workers=1)
    return home / "out" / "train.zarr.zip"


@pytest.mark.parametrize("opened", [on_disk, in_numpy, in_memory])
def test_the_buffer_that_was_read_is_written(converted: Path, opened: Callable[[Path], Any]) -> None:
    root, arrays = opened(converted), episode_arrays(LENGTHS)
    assert root["meta"]["episode_ends"][:].tolist() == np.cumsum(LENGTHS).tolist()
    for key in root["data"]:
        assert root["data"][key].shape[0] == sum(LENGTHS), key  # ReplayBuffer.__init__
    expected = {"data": arrays, "meta": {"episode_ends": np.cumsum(LENGTHS)}}
    for key, values in arrays.items():
        assert root["data"][key].dtype == values.dtype and np.array_equal(root["data"][key][:], values)
        found = [*sequences(root, key)]
        assert len(found) == sum(max(0, length - HORIZON + AFTER + BEFORE + 1) for length in LENGTHS)
        assert all(np.array_equal(one, other) for one, other in zip(found, sequences(expected, key), strict=True))
