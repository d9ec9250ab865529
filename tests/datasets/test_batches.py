"""`Dataset.batches` and `mix_batches` against single rows, decoded one by one."""

from __future__ import annotations

import io
import json
import pickle
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rlds_beam import Dataset, EncodedImages, Episode, convert, mix_batches, open_dataset
from rlds_beam.connectors import Resample, ResizeImages
from rlds_beam.datasets.order import make_offsets, window
from rlds_beam.datasets.pixels import Buffers
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.testing import make_episode, shard_paths, write_dataset

LENGTHS = (5, 12, 1, 20, 8)


def episode(length: int, seed: int = 0, size: tuple[int, int] = (24, 32)) -> Episode:
    made = make_episode(length, seed=seed + length, observation={"state": 3}, action=2)
    rng = np.random.default_rng(length)
    columns: dict[str, Any] = {"told": objects([b"step %d" % (i % 3) for i in range(length)])}
    for name, encode, encoding in (("observation/jpeg", encode_jpeg, "jpeg"), ("observation/png", encode_png, "png")):
        images = encode(rng.integers(0, 255, (length, *size, 3), np.uint8))
        columns[name] = EncodedImages(objects(images), (*size, 3), encoding=encoding)
    return made.replace(steps={**made.steps, **columns}, metadata={"file": f"run {length}"})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data"), map(episode, LENGTHS), name="toy", shards=2)


@pytest.fixture(scope="module")
def steps(path: Path) -> Dataset:
    return open_dataset(path, unit="steps")


def everything(batches: Any) -> dict[str, np.ndarray]:
    parts = list(batches)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values, name)


def test_in_order_they_are_the_rows(steps: Dataset) -> None:
    assert_same(everything(steps.batches(7)), steps[:])
    sizes = [len(batch["action"]) for batch in steps.batches(7)]
    assert sizes == [7, 7, 7, 7, 7, 7, 4] and len(steps.batches(7)) == 7


@pytest.mark.parametrize("threads", [1, 3])
def test_shuffled_they_are_the_rows_in_another_order(steps: Dataset, threads: int) -> None:
    numbers = np.arange(len(steps))
    found = everything(steps.batches(7, shuffle=True, threads=threads))
    rows = [np.flatnonzero((steps[:]["action"] == action).all(axis=1)).item() for action in found["action"]]
    assert rows != numbers.tolist() and sorted(rows) == numbers.tolist()
    assert_same(found, steps[rows])
    assert_same(found, everything(steps.batches(7, shuffle=True, seed=0, threads=2)))


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 50))
def test_windows_are_the_rows_of_the_episode(steps: Dataset, history: int, chunk: int, batch_size: int) -> None:
    whole, starts = steps[:], np.cumsum([0, *LENGTHS])
    found = everything(steps.batches(batch_size, history=history, chunk=chunk))
    for row in range(len(steps)):
        number = np.searchsorted(starts, row, side="right") - 1
        low, high = starts[number], starts[number + 1] - 1
        past, ahead = np.arange(row - history + 1, row + 1), np.arange(row, row + chunk)
        for name in ("observation/jpeg", "observation/png", "observation/state"):
            np.testing.assert_array_equal(found[name][row], whole[name][np.clip(past, low, high)])
            np.testing.assert_array_equal(found[f"{name}_is_pad"][row], past < low)
        np.testing.assert_array_equal(found["action"][row], whole["action"][np.clip(ahead, low, high)])
        np.testing.assert_array_equal(found["action_is_pad"][row], ahead > high)
    assert found["reward"].shape == (len(steps),) and "reward_is_pad" not in found


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=3), st.integers(1, 4))
def test_windows_have_every_sample_of_a_fast_signal_once_in_order(counts: list[list[int]], size: int) -> None:
    """Up to 3 samples of a step, which are numbered, each with the time when it was taken, in steps."""
    episodes, rows, number = [], [], 1
    for of_steps in counts:
        imu, times = np.zeros((len(of_steps), 3, 2)), np.zeros((len(of_steps), 3), np.float32)
        samples: list[list[tuple[int, float]]] = []
        for step, count in enumerate(of_steps):
            imu[step, :count] = number + np.arange(count)[:, None]
            times[step, :count] = (np.arange(count) - 2) / 4
            samples.append([(number + i, step + (i - 2) / 4) for i in range(count)])
            number += count
        columns = {"imu": imu, "imu_samples": np.array(of_steps), "imu_sample_times": times / 10}
        made = make_episode(len(of_steps), observation={"state": 3})
        episodes.append(made.with_columns({f"observation/{name}": column for name, column in columns.items()}))
        rows += [(samples, step) for step in range(len(of_steps))]
    with tempfile.TemporaryDirectory() as directory:
        path = write_dataset(directory, episodes)
        with pytest.raises(UsageError, match="windows of observation/imu need the rate of"):
            open_dataset(path, unit="steps").batches(1, history=2)
        (path / "meaning.json").write_text(json.dumps({"fps": 10}))
        found = everything(open_dataset(path, unit="steps").batches(4, history=size, next_step=True, last_step="keep"))
    for row, (samples, step) in enumerate(rows):
        for prefix, now in (("", step), ("next_", step + 1)):
            expected = [sample for some in samples[max(0, now + 1 - size) : now + 1] for sample in some]
            values, count, times = (
                found[f"{prefix}observation/imu{ending}"][row] for ending in ("", "_samples", "_sample_times")
            )
            assert count == len(expected)
            assert values.shape == (size * 3, 2) and not values[count:].any() and not times[count:].any()
            assert values[:count, 0].tolist() == [number for number, _ in expected]
            np.testing.assert_allclose(times[:count] * 10, [time - now for _, time in expected], atol=1e-5)


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_accurate_jpegs_are_those_of_pillow(path: Path, tmp_path: Path, unit: Any) -> None:
    """In single rows, in columns, in batches, in a mixture, and in the output of `convert`."""
    export(path, tmp_path / "columns", "columns", format="parquet")
    name, column = ("observation/jpeg", "obs/jpeg") if unit == "steps" else ("steps/observation/jpeg", "obs/jpeg")
    cases = [
        (open_dataset(path, unit=unit, jpeg="accurate"), open_dataset(path, unit=unit, images="encoded"), name),
        (
            open_dataset(tmp_path / "columns", jpeg="accurate"),
            open_dataset(tmp_path / "columns", images="encoded"),
            column,
        ),
    ]
    for dataset, encoded, field in cases:
        assert dataset.jpeg == "accurate"
        for row, data in zip(dataset.columns[field], encoded.columns[field], strict=True):
            images = [data] if isinstance(data, bytes) else data
            expected = np.stack([np.asarray(Image.open(io.BytesIO(image))) for image in images])
            np.testing.assert_array_equal(row, expected.reshape(row.shape))
        if field != name or unit == "steps":
            np.testing.assert_array_equal(everything(dataset.batches(9, columns=[field]))[field], dataset[:][field])
    if unit == "steps":
        accurate, fast = cases[0][0], open_dataset(path, unit="steps")
        assert (accurate[3][name] != fast[3][name]).any()
        mixed = mix_batches([(accurate, 1), (fast, 1)], 40, shuffle=False, columns=[name])
        both = next(mixed)[name]
        datasets = np.random.default_rng((0, 0)).choice(2, size=40, p=[0.5, 0.5])
        for number, dataset in enumerate((accurate, fast)):
            found = both[datasets == number]
            np.testing.assert_array_equal(found, dataset[: len(found)][name])
        resized = next(accurate.batches(9, columns=[name], image_size=(12, 16)))[name]
        assert (resized.astype(int) - next(fast.batches(9, columns=[name], image_size=(12, 16)))[name]).max() < 13


def test_resuming_gives_the_batches_that_were_left(steps: Dataset) -> None:
    options: dict[str, Any] = {"shuffle": True, "epochs": 3, "seed": 5, "history": 2}
    expected = [batch["action"] for batch in steps.batches(6, **options)]
    for delivered in (0, 1, 7, 8, 15, len(expected)):
        batches = steps.batches(6, **options)
        for _ in range(delivered):
            next(batches)
        state = json.loads(json.dumps(batches.state_dict()))
        batches.close()
        resumed = steps.batches(6, **options)
        next(resumed)  # also if it was used before
        resumed.load_state_dict(state)
        assert len(resumed) == len(expected) - delivered
        rest = [batch["action"] for batch in resumed]
        assert len(rest) == len(expected) - delivered
        for one, other in zip(rest, expected[delivered:], strict=True):
            np.testing.assert_array_equal(one, other)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 20), st.integers(1, 8), st.integers(1, 3), st.booleans(), st.data())
def test_ranks_that_keep_the_last_batch_read_each_row_once(
    steps: Dataset, batch_size: int, ranks: int, threads: int, shuffle: bool, data: Any
) -> None:
    """Each rank is stopped anywhere and resumed from its state."""
    actions = []
    for rank in range(ranks):
        options: dict[str, Any] = {"rank": rank, "ranks": ranks, "drop_last": False, "threads": threads}
        batches = steps.batches(batch_size, shuffle=shuffle, columns=["action"], **options)
        number = len(batches)
        stop = data.draw(st.integers(0, number))
        actions += [next(batches)["action"] for _ in range(stop)]
        state = json.loads(json.dumps(batches.state_dict()))
        resumed = steps.batches(batch_size, shuffle=shuffle, columns=["action"], **options)
        resumed.load_state_dict(state)
        assert len(resumed) == number - stop
        left = [batch["action"] for batch in resumed]
        assert len(left) == number - stop
        actions += left
    found, expected = np.concatenate(actions), steps[:]["action"]
    np.testing.assert_array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])


def test_a_mixture_has_rows_of_both(steps: Dataset, tmp_path: Path) -> None:
    other = open_dataset(write_dataset(tmp_path, [episode(9, seed=100, size=(48, 48))], name="other"), unit="steps")
    columns = ["action", "observation/jpeg", "episode_metadata/file"]
    options: dict[str, Any] = {"image_size": (20, 20), "columns": columns, "history": 2, "chunk": 3}
    mixed = mix_batches([(steps, 3), (other, 1)], 16, **options)
    expected = [everything(one.batches(50, **options)) for one in (steps, other)]
    share = 0
    for _, batch in zip(range(20), mixed, strict=False):
        for i, action in enumerate(batch["action"]):
            of = [np.flatnonzero((one["action"] == action).all(axis=(1, 2))) for one in expected]
            number = int(len(of[1]) > 0)
            row = of[number].item()
            share += number
            for name, values in expected[number].items():
                np.testing.assert_array_equal(batch[name][i], values[row], name)
    assert 0.15 < share / 320 < 0.35
    state = mixed.state_dict()
    again = mix_batches([(steps, 3), (other, 1)], 16, **options)
    again.load_state_dict(state)
    assert_same(next(again), next(mixed))
    mixed.close(), again.close()
    with pytest.raises(TypeError, match="no end"):
        len(mixed)
    with pytest.raises(UsageError, match=r"observation/jpeg is uint8 \(24, 32, 3\) in .*, but uint8 \(48, 48, 3\)"):
        mix_batches([(steps, 1), (other, 1)], 16)
    with pytest.raises(UsageError, match=r"the weight of .* is 0"):
        mix_batches([(steps, 1), (other, 0)], 16, image_size=8)
    with pytest.raises(UsageError, match="a mixture has no end"):
        mix_batches([(steps, 1), (other, 1)], 16, image_size=8, epochs=2)


def test_arrays_are_used_again_only_when_nobody_has_them() -> None:
    buffers = Buffers(3)
    first = buffers.take((4, 4), "uint8")
    place, view = first.ctypes.data, first[1:]
    second = buffers.take((4, 4), "uint8")
    assert second.ctypes.data != place
    del first
    assert buffers.take((4, 4), "uint8").ctypes.data != place  # a view is left
    third = buffers.take((4, 4), "uint8")
    del view
    assert buffers.take((4, 4), "uint8").ctypes.data == place
    assert third.ctypes.data not in (place, second.ctypes.data)
    assert buffers.take((4, 5), "uint8").shape == (4, 5)


def test_a_damaged_image_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = write_dataset(tmp_path, map(episode, LENGTHS), name="toy")
    found = open_dataset(path, unit="steps")
    (shard,) = shard_paths(path)
    data = bytearray(shard.read_bytes())
    image = episode(12).steps["observation/jpeg"]
    assert isinstance(image, EncodedImages)
    place = data.find(image.data[3]) + 300
    data[place] ^= 1
    shard.write_bytes(data)
    with pytest.raises(RldsBeamError, match=r"toy-train.*: the [\d,]+ bytes at [\d,]+ do not match their checksum"):
        list(found.batches(8))
    fine = found.batches(8, columns=["action", "observation/png"])
    assert len(list(fine)) == 6
    shard.write_bytes(data[:place])
    with pytest.raises(RldsBeamError, match="do not match their checksum"):
        list(found.batches(8))
    shard.unlink()
    with pytest.raises(RldsBeamError, match=r"cannot read .*No such file"):
        list(pickle.loads(pickle.dumps(found)).batches(8))


def test_images_of_several_sizes_need_image_size(tmp_path: Path) -> None:
    def sized(length: int, size: tuple[int, int]) -> Episode:
        made = episode(length, size=size)
        steps = {p: c for p, c in made.steps.items() if p != "observation/png"}
        image = made.steps["observation/jpeg"]
        assert isinstance(image, EncodedImages)
        return made.replace(steps={**steps, "observation/jpeg": EncodedImages(image.data, (None, None, 3))})

    path = write_dataset(tmp_path, [sized(4, (10, 12)), sized(4, (20, 14))], name="toy")
    found = open_dataset(path, unit="steps")
    assert next(found.batches(4))["observation/jpeg"].shape == (4, 10, 12, 3)
    with pytest.raises(UsageError, match=r"observation/jpeg: images of a batch have several sizes.*give image_size"):
        list(found.batches(8))
    assert next(found.batches(8, image_size=9))["observation/jpeg"].shape == (8, 9, 9, 3)


def test_a_loader_that_moves_pixels_refuses_their_camera_matrix(tmp_path: Path) -> None:
    matrix = np.tile(np.diag([90.0, 85.0, 1.0]), (8, 1, 1))
    made = episode(8).with_columns({"observation/jpeg_intrinsics": matrix})
    data = write_dataset(tmp_path / "data", [made])
    found = open_dataset(data, unit="steps")
    assert "observation/jpeg_intrinsics" in next(found.batches(4))
    with pytest.raises(UsageError, match="image_size does not change observation/jpeg_intrinsics"):
        found.batches(4, image_size=8)
    small = open_dataset(data, unit="steps", connectors=[ResizeImages(12, 16, minimum=8)])
    np.testing.assert_array_equal(next(small.batches(4))["observation/jpeg_intrinsics"][0, 0, :], [45.0, 0, -0.25])


def test_rows_of_columns_and_trajectories(path: Path, tmp_path: Path) -> None:
    for to, options in (("columns", {}), ("columns", {"format": "parquet"}), ("trajectories", {"images": "jpeg"})):
        out = tmp_path / f"{to}{len(options)}"
        given = {"items": "frames", "drop": "observation/png"} if to == "trajectories" else {}
        try:
            export(path, out, to, **options, **given)
        except UsageError:
            given.pop("drop", None)
            export(path, out, to, **options, **given)
        found = open_dataset(out)
        assert_same(everything(found.batches(7, shuffle=False)), found[:])
        with pytest.raises(UsageError, match="history and chunk need steps"):
            found.batches(7, chunk={next(iter(found.fields)): 3})


def test_tensors_share_the_memory_of_a_batch(steps: Dataset) -> None:
    torch = pytest.importorskip("torch")
    batch = next(steps.batches(4, arrays="torch"))
    assert batch["observation/jpeg"].dtype == torch.uint8 and batch["told"].dtype == object
    np.testing.assert_array_equal(batch["observation/jpeg"].numpy(), steps[:4]["observation/jpeg"])


PATHS = ["observation/state", "observation/image", "observations", "action", "reward"]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(-4, 4), st.integers(1, 5), st.data())
def test_windows_stay_in_their_episode(lengths: list[int], first: int, size: int, data: Any) -> None:
    starts = np.concatenate([[0], np.cumsum(lengths)])
    total, offsets = int(starts[-1]), np.arange(first, first + size)
    rows = np.array(data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=10)))
    found, padding = window(rows, starts, offsets)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    for i, row in enumerate(rows.tolist()):
        mine = np.flatnonzero(episode == episode[row])
        for j, offset in enumerate(offsets.tolist()):
            inside = row + offset in mine
            assert padding[i, j] == (not inside)
            assert found[i, j] == (row + offset if inside else mine[0] if offset < 0 else mine[-1])


def test_history_is_for_observations_and_chunk_for_actions() -> None:
    found = make_offsets(3, 4, PATHS)
    assert {path: offsets.tolist() for path, offsets in found.items()} == {
        "observation/state": [-2, -1, 0],
        "observation/image": [-2, -1, 0],
        "action": [0, 1, 2, 3],
    }
    by_field = make_offsets({"reward": 2}, {"observations": 1}, PATHS)
    assert {path: offsets.tolist() for path, offsets in by_field.items()} == {"reward": [-1, 0], "observations": [0]}
    assert list(make_offsets(2, None, ["observation.state", "action"])) == ["observation.state"]
    assert make_offsets(None, None, PATHS) == {}


def test_a_mixture_of_values_with_other_meanings_is_refused(tmp_path: Path) -> None:
    episodes = [make_episode(5, columns={"action": np.ones((5, 6), np.float32)})]
    data = write_dataset(tmp_path / "data", episodes)

    def arm(name: str, names: str, connector: str) -> Dataset:
        file = tmp_path / f"{name}.yaml"
        file.write_text(f"names: {{action: [{names}]}}\nconnectors:\n  - {connector}\n")
        return open_dataset(data, unit="steps", connectors=str(file))

    turn = "ConvertRotation: {field: action, from: axis_angle, to: euler_%s, at: 3}"
    one = arm("one", "x, y, z, rx, ry, rz", turn % "xyz")
    other = arm("other", "x, y, z, rx, ry, rz", turn % "XYZ")
    with pytest.raises(UsageError, match=r"mean something else in .*euler_XYZ.*: convert one with .* ConvertRotation"):
        mix_batches([(one, 1), (other, 1)], 4, columns=["action"])
    swapped = arm("swapped", "y, x, z, rx, ry, rz", turn % "xyz")
    with pytest.raises(UsageError, match=r"mean something else in .* \(x and y\): use the connector ArrangeDimensions"):
        mix_batches([(one, 1), (swapped, 1)], 4, columns=["action"])
    assert next(mix_batches([(one, 1), (one, 1)], 4, columns=["action"]))["action"].shape == (4, 6)
    assert next(mix_batches([(one, 1), (swapped, 1)], 4, columns=["reward"]))["reward"].shape == (4,)


@pytest.mark.parametrize("to", ["rlds", "trajectories", "columns"])
def test_a_dataset_has_its_rate_and_windows_at_several_rates_warn(tmp_path: Path, to: str) -> None:
    data = write_dataset(tmp_path / "data", [make_episode(9, seed=i) for i in range(2)])
    assert open_dataset(data, unit="steps").fps is None
    opened = []
    for fps in (10, 30):
        timed, out = tmp_path / f"lerobot_{fps}", tmp_path / f"{to}_{fps}"
        convert(data, timed, to="lerobot", fps=fps, workers=1)
        convert(timed, out, to=to, workers=1)
        opened.append(open_dataset(out, **({"unit": "steps"} if to == "rlds" else {})))
    assert [dataset.fps for dataset in opened] == [10, 30]
    if to == "rlds":
        with pytest.warns(UserWarning, match=r"steps per second differ \(10 in .*rlds_10, 30 in .*rlds_30\)"):
            mix_batches([(one, 1) for one in opened], 4, chunk=2)
        slower = open_dataset(out, unit="steps", connectors=[Resample(fps=10)])
        assert slower.fps == 10
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mix_batches([(opened[0], 1), (slower, 1)], 4, chunk=2)
            mix_batches([(one, 1) for one in opened], 4)


@pytest.mark.parametrize("to", ["rlds", "trajectories", "columns", "zarr"])
@pytest.mark.parametrize("unit", [None, "steps"])
def test_names_and_representations_are_those_of_the_connectors(tmp_path: Path, to: str, unit: Any) -> None:
    if unit and to in ("trajectories", "columns"):
        pytest.skip("its rows are items")
    file = tmp_path / "arm.yaml"
    turn = "ConvertRotation: {field: action, from: axis_angle, to: euler_xyz, at: 3}"
    file.write_text(f"names: {{action: [x, y, z, rx, ry, rz]}}\nconnectors:\n  - {turn}\n")
    data = write_dataset(tmp_path / "data", [make_episode(5, columns={"action": np.ones((5, 6), np.float32)})])
    options = {"to": to, "connectors": str(file), **({"items": "frames"} if to == "trajectories" else {})}
    convert(str(data), str(tmp_path / "out"), progress="none", **options)
    dataset = open_dataset(tmp_path / "out", unit=unit)
    (field,) = [field for path, field in dataset.fields.items() if path in ("action", "actions", "steps/action")]
    assert field.names == ("x", "y", "z", "euler_0_x", "euler_1_y", "euler_2_z")
    if len(field.shape) == 1:
        assert field.representation and field.representation.rotations == ((3, "euler_xyz"),)
