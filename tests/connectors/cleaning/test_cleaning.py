"""Cleaning connectors do what the scripts do that they are named after, step by step, on generated data."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds_beam
from rlds_beam import connectors as c
from rlds_beam.connectors import Batch, connect
from rlds_beam.connectors.cleaning.expressions import Condition
from rlds_beam.connectors.cleaning.idle import IdleRule
from rlds_beam.connectors.cleaning.splitting import SplitEpisodes
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.encoding import encode_jpeg, encode_png
from rlds_beam.images.pixels import EditedImages
from rlds_beam.images.resizing import resize_colours, resize_depth
from rlds_beam.testing import make_episode, write_dataset

FEW = settings(deadline=None, max_examples=50)


def with_actions(actions: Any, **columns: Any) -> Episode:
    made = make_episode(len(actions), columns=columns)
    return made.with_columns({"action": np.asarray(actions, np.float32)})


def run(connector: Any, episode: Episode) -> list[Episode]:
    return list(connect([connector], [episode]).episodes)


# No-ops, as regenerate_libero_dataset.py of OpenVLA-OFT leaves them out


def libero(actions: Any) -> list[int]:
    """Its loop: `prev_action` is the last action that was kept."""
    kept: list[int] = []
    for i, action in enumerate(actions):
        small = np.linalg.norm(action[:-1]) < 1e-4
        if not (small if not kept else small and action[-1] == actions[kept[-1]][-1]):
            kept.append(i)
    return kept


@FEW
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5]), st.sampled_from([-1.0, 0.0, 1.0])), min_size=1, max_size=12))
def test_no_ops_are_those_of_libero(actions):
    found = run(c.DropNoOpSteps(), with_actions(actions, mark=np.arange(len(actions))))
    kept = found[0].steps["mark"].tolist() if found else []
    assert kept == libero(np.asarray(actions, np.float32))
    if found:
        steps = found[0].steps
        np.testing.assert_array_equal(steps["is_first"], np.arange(len(kept)) == 0)
        np.testing.assert_array_equal(steps["is_last"], np.arange(len(kept)) == len(kept) - 1)
        assert bool(steps["is_terminal"][-1])
        before = make_episode(len(actions)).steps["reward"]
        np.testing.assert_allclose(steps["reward"].sum(), before.sum(), rtol=1e-5)


def test_a_void_last_step_can_be_kept():
    assert run(c.DropNoOpSteps(), with_actions([[1, 0], [0, 0], [0, 0]]))[0].steps["is_last"].tolist() == [True]
    assert len(run(c.DropNoOpSteps(keep_last=True), with_actions([[1, 0], [0, 0], [0, 0]]))[0]) == 2
    assert run(c.DropNoOpSteps(keep_last=True), with_actions([[0, 0], [0, 0]])) == []


# Idle ranges, as compute_droid_nonidle_ranges.py of openpi finds them


def openpi(velocities: Any, min_idle: int, min_moving: int) -> list[tuple[int, int]]:
    """Step by step: runs of idle steps, and what is long enough between them."""
    idle = [i > 0 and all(abs(a - b) < 1e-3 for a, b in zip(v, velocities[i - 1], strict=True))
            for i, v in enumerate(velocities)]  # fmt: skip
    keep = [True] * len(idle)
    for start, stop in runs(idle):
        if stop - start >= min_idle:
            keep[start:stop] = [False] * (stop - start)
    return [(start, stop) for start, stop in runs(keep) if stop - start >= min_moving]


def runs(flags: list[bool]) -> list[tuple[int, int]]:
    found, start = [], None
    for i, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = i
        elif not flag and start is not None:
            found.append((start, i))
            start = None
    return found


@FEW
@given(st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0]), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 6))
def test_idle_ranges_are_those_of_openpi(moves, min_idle, min_moving):
    velocities = np.cumsum(moves)[:, None] * np.ones(2)
    episode = with_actions(np.zeros((len(moves), 2)), velocity=velocities, mark=np.arange(len(moves)))
    rule = IdleRule("velocity", min_idle=min_idle, min_moving=min_moving)
    expected = openpi(velocities.tolist(), min_idle, min_moving)
    assert rule.ranges(episode) == expected
    piece = c.DropIdleSteps("velocity", min_idle=min_idle, min_moving=min_moving, trim=1)
    parts = [part.steps["mark"].tolist() for part in run(piece, episode)]
    assert parts == [list(range(start, stop - 1)) for start, stop in expected if stop - 1 > start]
    (marked,) = run(c.DropIdleSteps("velocity", 1e-3, min_idle, min_moving, trim=1, mode="mark"), episode)
    assert np.flatnonzero(marked.steps["keep"]).tolist() == [i for part in parts for i in part]


def test_ranges_of_a_file_are_kept_as_in_openpi(tmp_path):
    metadata = {"episode_metadata/recording_folderpath": b"gs://a", "episode_metadata/file_path": b"b.h5"}
    episode = make_episode(20, metadata=metadata, columns={"mark": np.arange(20)})
    content = {"keep_ranges": {"gs://a--b.h5": [[2, 9], [12, 40]]}, "metadata": {"filter_last_n_in_ranges": 3}}
    (tmp_path / "new.json").write_text(json.dumps(content))
    (tmp_path / "old.json").write_text(json.dumps({"gs://a--b.h5": [[2, 9], [12, 40]]}))
    marks = {
        name: [part.steps["mark"].tolist() for part in run(c.KeepRanges(str(tmp_path / name)), episode)]
        for name in ("new.json", "old.json")
    }
    assert marks["new.json"] == [list(range(2, 6)), list(range(12, 17))]
    assert marks["old.json"] == [list(range(2, 9)), list(range(12, 20))]
    first, second = run(c.KeepRanges(str(tmp_path / "old.json")), episode)
    assert first.steps["is_first"][0] and first.steps["is_last"][-1] and not first.steps["is_terminal"][-1]
    assert second.steps["is_first"][0] and second.steps["is_terminal"][-1]
    other = episode.replace(metadata={**metadata, "episode_metadata/file_path": b"c.h5"})
    assert run(c.KeepRanges(str(tmp_path / "new.json")), other) == []
    assert run(c.KeepRanges(str(tmp_path / "new.json"), missing="keep"), other) == [other]
    with pytest.raises(UsageError, match=r"does not name the episode 'gs://a--c.h5'"):
        run(c.KeepRanges(str(tmp_path / "new.json"), missing="fail"), other)
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(UsageError, match="expected JSON of openpi's form"):
        c.KeepRanges(str(tmp_path / "bad.json"))


def test_ranges_are_written_as_openpi_writes_them(tmp_path):
    moving = np.r_[np.arange(20), np.full(9, 19), np.arange(20)][:, None] * np.ones(2)
    records = [make_episode(49, seed=i, columns={"velocity": moving.astype(np.float32)}, metadata={"path": f"{i}.h5"})
               for i in range(3)]  # fmt: skip
    path = write_dataset(tmp_path, records, shards=2)
    options = {"to": "keep_ranges", "velocity": "velocity", "shards": 2}
    done = rlds_beam.convert(path, tmp_path / "out", episode_name="{episode_metadata/path}", **options)
    assert done.report.items_written == 3
    content = json.loads((tmp_path / "out/keep_ranges.json").read_text())
    expected = openpi(moving.tolist(), 7, 16)
    assert expected == [(0, 20), (29, 49)]
    assert content["metadata"] == {"filter_last_n_in_ranges": 10}
    assert content["keep_ranges"] == {f"{i}.h5": [[0, 20], [29, 49]] for i in range(3)}
    piece = c.KeepRanges(str(tmp_path / "out/keep_ranges.json"), "{episode_metadata/path}")
    assert [len(e) for e in run(piece, records[0].replace(metadata={"episode_metadata/path": b"0.h5"}))] == [10, 10]
    with pytest.raises(UsageError, match=r"--velocity=speed: there is no such field"):
        rlds_beam.convert(path, tmp_path / "no", to="keep_ranges", velocity="speed")
    with pytest.raises(UsageError, match=r"two episodes are called ''"):
        rlds_beam.convert(path, tmp_path / "same", episode_name="", **options)


# Grippers, as OpenVLA's and Octo's data_utils.py change them


def binarized(actions: Any) -> list[float]:
    """The loop in its docstring."""
    made, carry = [0.0] * len(actions), actions[-1]
    for i in reversed(range(len(actions))):
        if actions[i] > 0.95 or actions[i] < 0.05:
            carry = float(actions[i] > 0.95)
        made[i] = carry
    return made


def absolute(actions: Any) -> list[float]:
    """1 opens (below -0.1), -1 closes (above 0.1); the first command is a change."""
    commands = [1 if a < -0.1 else -1 if a > 0.1 else 0 for a in actions]
    state = -next((command for command in commands if command), -1)
    made = []
    for command in commands:
        state = command or state
        made.append(state / 2 + 0.5)
    return made


@FEW
@given(st.lists(st.sampled_from([-1.0, -0.05, 0.0, 0.03, 0.5, 0.97, 1.0]), min_size=1, max_size=15))
def test_grippers_are_those_of_openvla(gripper):
    actions = np.stack([np.full(len(gripper), 9.0), gripper], axis=1).astype(np.float32)
    episode = with_actions(actions)
    for piece, reference in (
        (c.BinarizeGripper(), binarized),
        (c.RelativeToAbsoluteGripper(), absolute),
        (c.InvertGripper(), lambda values: [1 - v for v in values]),
    ):
        (made,) = run(piece, episode)
        np.testing.assert_array_equal(made.steps["action"][:, 0], 9)
        np.testing.assert_array_equal(made.steps["action"][:, 1], np.asarray(reference(actions[:, 1]), np.float32))
    (other,) = run(c.InvertGripper(index=0), episode)
    np.testing.assert_array_equal(other.steps["action"][:, 0], -8)


# Success, labels, selection


def test_successes_are_kept_as_openpi_and_rlds_dataset_mod_do():
    paths = {"/success/1.h5": 1, "/failure/1.h5": 0, "a\nsuccess": 1}
    for path, count in paths.items():
        episode = make_episode(3, metadata={"file_path": path.encode(), "success": np.bool_(count)})
        assert len(run(c.KeepSuccessful("file_path", pattern=".*success.*"), episode)) == count
        assert len(run(c.KeepSuccessful(), episode)) == count
    ended = make_episode(3).with_columns({"reward": np.array([0, 0, 1], np.float32)})
    assert run(c.KeepSuccessful("reward"), ended) == [ended]
    assert run(c.KeepSuccessful("reward"), ended.with_columns({"reward": np.zeros(3, np.float32)})) == []
    with pytest.raises(UsageError, match="there is no field succes"):
        run(c.KeepSuccessful("succes"), ended)
    with pytest.raises(UsageError, match="holds text, and needs a pattern"):
        run(c.KeepSuccessful("file_path"), episode)


def test_unlabelled_episodes_are_those_whose_text_is_empty_at_each_step():
    for texts, count in ((["", "", ""], 0), (["", "go", ""], 1)):
        episode = make_episode(3, columns={"language_instruction": texts})
        assert len(run(c.DropUnlabelled(), episode)) == count
    assert connect([c.DropUnlabelled()], [make_episode(2, columns={"language_instruction": ["", ""]})]).dropped == {
        "DropUnlabelled": 1
    }


EPISODE = make_episode(
    5,
    key=EpisodeKey("toy/1.0.0", "train", 3, 99),
    columns={"language": ["open it"] * 5},
    metadata={
        "success": np.bool_(True),
        "episode_metadata/task": b"Open",
        "episode_metadata/id": np.int32(7),
        "a-b": 2,
    },
)


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("success", True),
        ("not success or steps == 5", True),
        ("episode_metadata.task == 'Open' and episode_metadata.id in [6, 7]", True),
        ("lower(episode_metadata.task) == 'close'", False),
        ("3 < steps <= 5", True),
        ("matches(first.language, 'open.*')", True),
        ("last.is_terminal and split == 'train' and shard == 3", True),
        ("field('a-b') * 2 - 1 > 3", False),
        ("len(episode_metadata.task) % 2 == 0", True),
        ("position not in (1, 2)", True),
        ("-abs(steps) < 0", True),
    ],
)
def test_conditions(where, holds):
    assert Condition(where).holds(EPISODE) is holds
    assert pickle.loads(pickle.dumps(Condition(where))).holds(EPISODE) is holds
    assert len(run(c.SelectEpisodes(where), EPISODE)) == holds


@pytest.mark.parametrize(
    "where",
    [
        "__import__('os').system('true')",
        "success.__class__",
        "(1).real",
        "[x for x in [1]]",
        "lambda: 1",
        "steps ** 9",
        "steps if success else 1",
        "open('x')",
        "success := 1",
        "{}",
        "f'{steps}'",
        "matches.__globals__",
        "(" * 300,
        "",
    ],
)
def test_what_is_no_condition_is_refused_and_never_run(where):
    with pytest.raises(UsageError, match=r"cannot be used|is not an expression|there is no field"):
        Condition(where).holds(EPISODE)


def test_a_condition_on_what_is_not_there_names_what_is():
    with pytest.raises(UsageError, match=r"there is no field sucess.*did you mean success"):
        Condition("sucess").holds(EPISODE)
    with pytest.raises(UsageError, match="not supported between"):
        Condition("success < 'a'").holds(EPISODE)


def test_language_is_relabelled_by_table_or_function(tmp_path):
    (tmp_path / "table.json").write_text('{"open it": "open the drawer"}')
    (made,) = run(c.RelabelLanguage(str(tmp_path / "table.json"), field="language"), EPISODE)
    assert made.steps["language"].tolist() == [b"open the drawer"] * 5
    (made,) = run(c.RelabelLanguage(function=louder, field="language", to="loud"), EPISODE)
    assert made.steps["loud"].tolist() == [b"OPEN IT 7"] * 5
    assert made.steps["language"] is EPISODE.steps["language"]
    (made,) = run(c.RelabelLanguage({"Open": "close"}, field="episode_metadata/task"), EPISODE)
    assert made.metadata["episode_metadata/task"] == b"close"
    assert run(c.RelabelLanguage({}, field="language", missing="drop"), EPISODE) == []
    with pytest.raises(UsageError, match="the table has no 'open it'"):
        run(c.RelabelLanguage({}, field="language", missing="fail"), EPISODE)


def louder(text, metadata):
    return f"{text.upper()} {metadata['episode_metadata/id']}"


# Images


def test_images_are_resized_as_tensorflow_does():
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    for size, wanted in (((48, 64), (25, 31)), ((20, 30), (64, 40)), ((33, 7), (33, 9)), ((5, 5), (1, 1))):
        colours = rng.integers(0, 256, (2, *size, 3), np.uint8)
        resized = tf.image.resize(colours, wanted, method="lanczos3", antialias=True)
        expected = tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8).numpy()
        different = np.abs(resize_colours(colours, *wanted).astype(int) - expected)
        assert different.max() <= 1 and (different > 0).mean() < 1e-3  # where a sum is within rounding of a half
        depth = rng.random((2, *size, 1)).astype(np.float32)
        expected = tf.image.resize(depth, wanted, method="bilinear", antialias=True).numpy()
        np.testing.assert_allclose(resize_depth(depth, *wanted), expected, atol=1e-6)


def images(encoding: str, shape: tuple[int, ...] = (8, 12, 3), dtype: str = "uint8") -> tuple[EncodedImages, Any]:
    pixels = np.random.default_rng(1).integers(0, 255, (3, *shape)).astype(dtype)
    data = encode_jpeg(pixels) if encoding == "jpeg" else encode_png(pixels)
    return EncodedImages(np.array([*data, None], object)[:-1], shape, dtype, encoding), pixels


def test_colours_become_jpegs_and_depth_stays_png():
    png, pixels = images("png")
    deep, depths = images("png", (8, 12, 1), "uint16")
    columns = {"observation/image": png, "observation/depth": deep, "observation/x": np.zeros((3, 4), np.float32)}
    episode = make_episode(3).replace(steps={**make_episode(3, observation={"s": 2}).steps, **columns})
    (made,) = run(c.ResizeImages(4, 6, minimum=8), episode)
    image, depth = made.steps["observation/image"], made.steps["observation/depth"]
    assert (image.shape, image.encoding, image.data[0][:2]) == ((4, 6, 3), "jpeg", b"\xff\xd8")
    assert (depth.shape, depth.encoding, depth.dtype) == ((4, 6, 1), "png", "uint16")
    assert image.data.tolist() == encode_jpeg(resize_colours(pixels, 4, 6))
    np.testing.assert_array_equal(depth.decode(), resize_depth(depths, 4, 6))
    assert made.steps["observation/x"] is episode.steps["observation/x"]
    assert run(c.ResizeImages(4, 6), episode)[0].steps["observation/image"] is png  # smaller than 64


def test_a_jpeg_of_the_right_size_is_copied():
    jpeg, _ = images("jpeg")
    episode = make_episode(3, observation={"image": 1}).with_columns({"observation/image": jpeg})
    for piece in (c.ResizeImages(8, 12, minimum=1), c.ResizeImages(9, 99, minimum=1, enlarge=False)):
        assert run(piece, episode)[0].steps["observation/image"] is jpeg


def test_several_edits_decode_and_encode_once(monkeypatch):
    png, pixels = images("png")
    episode = make_episode(3, observation={"image": 1}).with_columns({"observation/image": png})
    done = connect([c.FlipChannels(["observation/image"]), c.ResizeImages(4, 4, minimum=1)], [episode]).episodes[0]
    column = done.steps["observation/image"]
    assert isinstance(column, EditedImages) and column.source is png
    assert column[1:].data.tolist() == encode_jpeg(resize_colours(pixels[..., ::-1], 4, 4))[1:]
    (flipped,) = run(c.FlipChannels("observation"), episode)
    np.testing.assert_array_equal(flipped.steps["observation/image"].decode(), pixels[..., ::-1])
    with pytest.raises(UsageError, match="there is no images action"):
        run(c.FlipChannels(["action"]), episode)


def test_images_that_were_added_stay_zeros():
    png, _ = images("png")
    padded = png.with_data(np.array([b"", png.data[1], b""], object))
    episode = make_episode(3, observation={"image": 1}).with_columns({"observation/image": padded})
    (made,) = run(c.ResizeImages(4, 4, minimum=1), episode)
    assert [bool(image) for image in made.steps["observation/image"]] == [False, True, False]


# Splits


def split_of(piece: Any, episodes: list[Episode]) -> list[str]:
    return [batch.episodes[0].metadata["output_split"].decode() for batch in (piece(Batch((e,))) for e in episodes)]


def many(count: int, task: Any = lambda i: "t") -> list[Episode]:
    one = make_episode(2)
    return [one.replace(key=EpisodeKey("toy/1.0.0", "train", i % 3, i), metadata={"task": task(i).encode()})
            for i in range(count)]  # fmt: skip


def test_fractions_are_about_right_and_the_seed_decides():
    episodes = many(2000)
    first = split_of(SplitEpisodes({"train": 0.8, "val": 0.15, "test": 0.05}), episodes)
    assert first == split_of(SplitEpisodes({"train": 0.8, "val": 0.15, "test": 0.05}), episodes)
    assert first != split_of(SplitEpisodes({"train": 0.8, "val": 0.15, "test": 0.05}, seed=1), episodes)
    for name, part in (("train", 0.8), ("val", 0.15), ("test", 0.05)):
        assert abs(first.count(name) / 2000 - part) < 0.03
    grouped = split_of(SplitEpisodes({"train": 0.5, "val": 0.5}, key="{task}"), many(90, lambda i: str(i % 9)))
    assert all(len({grouped[i] for i in range(90) if i % 9 == g}) == 1 for g in range(9))


@FEW
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.floats(0.05, 0.95))
def test_stratified_splits_are_exact_and_within_one_of_each_task(sizes, part):
    tasks = [f"task {i}" for i, size in enumerate(sizes) for _ in range(size)]
    episodes = many(len(tasks), tasks.__getitem__)
    piece = SplitEpisodes({"train": part, "val": 1 - part}, stratify="task")
    parts = [piece.accumulator() for _ in range(2)]
    for i, episode in enumerate(episodes):
        parts[i % 2].add(Batch((episode,)))
    result = json.loads(json.dumps(parts[0].merge(parts[1]).finish()))
    found = split_of(piece.fit(result), episodes)
    assert abs(found.count("train") - part * len(tasks)) <= 0.5 + 1e-6
    for task in set(tasks):
        own = [split for split, name in zip(found, tasks, strict=True) if name == task]
        assert abs(own.count("train") - part * len(own)) <= 1.5


def test_listed_episodes_go_where_the_list_says(tmp_path):
    episodes = many(5)
    (tmp_path / "lists.json").write_text(json.dumps({"val": [str(episodes[1].key), str(episodes[3].key)]}))
    piece = SplitEpisodes(episodes=str(tmp_path / "lists.json"))
    assert piece.splits == ("val", "train")
    assert split_of(piece, episodes) == ["train", "val", "train", "val", "train"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give fractions or episodes"),
        ({"fractions": {"train": 0.5}}, "together they have to be 1"),
        ({"fractions": {"a/b": 1.0}}, "cannot be the name of a split"),
        ({"episodes": {"val": ["x"], "test": ["x"]}}, "listed twice"),
        ({"episodes": {"val": []}, "stratify": "task"}, "stratify is for fractions"),
    ],
)
def test_what_cannot_be_split_so_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        SplitEpisodes(**arguments)


# Functions of trajectories


def test_a_function_of_openvla_runs_as_it_is():
    """Written as OpenVLA's and Octo's are: in place, with tensors, steps left out, fields moved."""
    tf = pytest.importorskip("tensorflow")

    def bridge_like(trajectory):
        for key in trajectory:
            if key == "traj_metadata":
                continue
            if key == "observation":
                for inner in trajectory[key]:
                    trajectory[key][inner] = trajectory[key][inner][1:]
            else:
                trajectory[key] = trajectory[key][1:]
        state = trajectory["observation"]["state"]
        moved = state[1:, :2] - state[:-1, :2]
        truncated = tf.nest.map_structure(lambda x: x[:-1], trajectory)
        truncated["action"] = tf.concat([moved, trajectory["action"][:-1, -1:]], axis=1)
        truncated["observation"]["wrist"] = truncated["observation"].pop("image")
        truncated["language_instruction"] = tf.fill(tf.shape(truncated["action"])[:1], "go")
        return truncated

    png, _ = images("png")
    six = png.with_data(np.array([*png.data, *png.data], object))
    episode = make_episode(6, observation={"state": 3}, metadata={"task": b"x"}).with_columns(
        {"observation/image": six}
    )
    (made,) = run(c.TransformTrajectory(bridge_like), episode)
    state = episode.steps["observation/state"]
    np.testing.assert_allclose(made.steps["action"][:, :2], state[2:, :2] - state[1:-1, :2])
    assert made.steps["observation/wrist"].data.tolist() == six.data[1:-1].tolist()
    assert made.steps["observation/wrist"].encoding == "png" and "observation/image" not in made.steps
    assert made.steps["language_instruction"].tolist() == [b"go"] * 4
    assert made.steps["is_first"].tolist() == [True, False, False, False]
    assert made.steps["is_last"].tolist() == [False, False, False, True]
    assert made.metadata == episode.metadata
    assert len(episode.steps["observation/state"]) == 6


def test_a_trajectory_that_came_back_wrong_is_named():
    def uneven(trajectory):
        return {**trajectory, "action": trajectory["action"][1:]}

    with pytest.raises(UsageError, match=r"has 4 steps, and came back with .*action 3"):
        run(c.TransformTrajectory(uneven), make_episode(4))
    with pytest.raises(UsageError, match="returned a list, not a dict"):
        run(c.TransformTrajectory(lambda trajectory: []), make_episode(4))
