"""Items: the closed form, compared with what TF-Agents' observers put into a Reverb table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cases import ALL
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.testing import make_episode
from rlds_beam.trajectories.frames import Frames, to_frames
from rlds_beam.trajectories.items import ItemMaker, Items, item_count, predict_items, windows
from rlds_beam.trajectories.options import FrameOptions, ItemOptions

MODES: dict[str, dict[str, bool]] = {
    "none": {},
    "pad": {"pad_end_of_episodes": True},
    "tile": {"pad_end_of_episodes": True, "tile_end_of_episodes": True},
}
MIXES = [(1, 2, 3, 4, 5, 6), (6, 5, 4, 3, 2, 1), (4, 1, 3), (2,), (1, 1, 1, 5), (3, 3), (1,)]

modes = st.sampled_from([*MODES.values()])
sequences = st.builds(
    lambda length, stride, mode, across: ItemOptions(
        items="sequences", sequence_length=length, stride_length=stride, across_episodes=across, **mode
    ),
    st.integers(1, 6),
    st.integers(1, 6),
    modes,
    st.booleans(),
)
episodes = st.builds(
    lambda most: ItemOptions(items="episodes", max_sequence_length=most), st.none() | st.integers(1, 9)
)
any_items = st.one_of(sequences, episodes, st.sampled_from([ItemOptions(), ItemOptions(items="frames")]))


def make_thumbnails(lengths: tuple[int, ...]) -> list[Frames]:
    """Frames with rewards that count from 1 over all episodes, so all are different."""
    made, count = [], 0
    for i, length in enumerate(lengths):
        reward = np.arange(count + 1, count + length + 1, dtype=np.float32)
        nested = make_episode(length, seed=i, observation={"b": 2, "a": ()}, terminal=i % 2 == 0)
        made.append(to_frames(nested.replace(steps={**nested.steps, "reward": reward}), FrameOptions()))
        count += length
    return made


def made_items(lengths: tuple[int, ...], options: ItemOptions) -> list[Items]:
    maker = ItemMaker(options)
    items: list[Items | None] = [maker.push(frames) for frames in make_thumbnails(lengths)]
    return [i for i in (*items, maker.finish()) if i is not None]


def text(lengths: tuple[int, ...], options: ItemOptions) -> str:
    """The items in the reference's notation: frames counted from 1, P for the padding frame."""
    spelled = []
    for items in made_items(lengths, options):
        for rewards in np.asarray(items.gather("reward")):
            spelled.append("".join("P" if r == 0 else str(int(r)) for r in rewards))
    return " ".join(spelled)


@pytest.mark.parametrize(
    ("mode", "stride", "expected"),
    [
        ("none", 1, "123 234 678"),
        ("none", 2, "123 678"),
        ("pad", 1, "123 234 5PP 678"),
        ("pad", 3, "123 5PP 678"),
        ("tile", 1, "123 234 34P 4PP 5PP 678 78P 8PP"),
        ("tile", 2, "123 34P 5PP 678 8PP"),
        ("tile", 3, "123 4PP 5PP 678"),
    ],
)
def test_measured_table_of_episodes_4_1_3(mode: str, stride: int, expected: str) -> None:
    options = ItemOptions(items="sequences", sequence_length=3, stride_length=stride, **MODES[mode])
    assert text((4, 1, 3), options) == expected


def test_the_padding_frame_is_the_zero_boundary() -> None:
    options = ItemOptions(items="sequences", sequence_length=3, **MODES["pad"])
    episode = make_episode(
        2,
        columns={"observation/image": EncodedImages(np.array([b"x", b"y"], object), (4, 4, 3))},
        observation={"state": 3},
    )
    items = ItemMaker(options).push(to_frames(episode, FrameOptions(policy_info_fields=("is_last",))))
    padding = {path: np.asarray(items.gather(path))[0, 2] for path in items.frames.columns if "image" not in path}
    assert (padding.pop("step_type"), padding.pop("next_step_type")) == (2, 0)
    assert not any(np.any(value) for value in padding.values())
    image = items.gather("observation/image")
    assert isinstance(image, EncodedImages)
    assert image.data.tolist() == [[b"x", b"y", ZERO_IMAGE]]


def test_an_episode_longer_than_allowed_is_rejected_or_bypassed() -> None:
    (frames,) = make_thumbnails((5,))
    with pytest.raises(BadEpisode) as raised:
        ItemMaker(ItemOptions(items="episodes", max_sequence_length=4)).push(frames)
    assert [v.rule for v in raised.value.violations] == ["too_long"]
    bypassing = ItemOptions(items="episodes", max_sequence_length=4, bypass_partial_episodes=True)
    assert len(ItemMaker(bypassing).push(frames)) == 0
    assert len(ItemMaker(ItemOptions(items="episodes", max_sequence_length=5)).push(frames)) == 1


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"items": "pairs", "sequence_length": 3}, "--sequence_length"),
        ({"items": "frames", "stride_length": 2}, "--stride_length"),
        ({"items": "episodes", "across_episodes": True}, "--across_episodes"),
        ({"items": "sequences", "max_sequence_length": 3}, "--max_sequence_length"),
        ({"items": "episodes", "bypass_partial_episodes": True}, "--max_sequence_length"),
        ({"items": "episodes", "max_sequence_length": 0}, "--max_sequence_length"),
        ({"items": "sequences", "sequence_length": 0}, "--sequence_length"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], flag: str) -> None:
    with pytest.raises(UsageError, match=flag):
        ItemOptions(**options)


# Properties


@given(st.integers(0, 40), any_items)
def test_the_count_is_the_number_of_windows(n: int, options: ItemOptions) -> None:
    index = windows(n, options)
    assert index.dtype == np.int64
    assert len(index) == item_count(n, options)


@given(st.lists(st.integers(1, 9), max_size=8), any_items)
def test_the_predicted_number_of_items_is_correct(lengths: list[int], options: ItemOptions) -> None:
    if options.max_sequence_length is not None:
        options = ItemOptions(
            items="episodes", max_sequence_length=options.max_sequence_length, bypass_partial_episodes=True
        )
    assert predict_items(lengths, options) == sum(map(len, made_items(tuple(lengths), options)))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 6), st.integers(1, 6), modes)
def test_a_stream_in_pieces_equals_one_long_episode(
    lengths: list[int], length: int, stride: int, mode: dict[str, bool]
) -> None:
    whole = ItemOptions(items="sequences", sequence_length=length, stride_length=stride, **mode)
    across = ItemOptions(items="sequences", sequence_length=length, stride_length=stride, across_episodes=True, **mode)
    streamed = [row for items in made_items(tuple(lengths), across) for row in np.asarray(items.gather("reward"))]
    expected = windows(sum(lengths), whole) + 1
    assert np.array_equal(np.array(streamed).reshape(-1, length), expected)


# TF-Agents' observers and a real Reverb server


class Table:
    """A Reverb table that returns its items once each, in the order of insertion."""

    def __init__(self) -> None:
        import reverb

        self.table = reverb.Table(
            "items",
            sampler=reverb.selectors.Fifo(),
            remover=reverb.selectors.Fifo(),
            max_size=100_000,
            max_times_sampled=1,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        self.server = reverb.Server([self.table], port=None)
        self.client = reverb.Client(f"localhost:{self.server.port}")

    def drain(self) -> list[list[np.ndarray[Any, Any]]]:
        count = self.client.server_info(timeout=60)["items"].current_size
        return [list(s.data) for s in self.client.sample("items", count, emit_timesteps=False)] if count else []


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    pytest.importorskip("reverb")
    pytest.importorskip("tf_agents")
    table = Table()
    yield table
    table.server.stop()


def trajectories(frames: Frames) -> list[Any]:
    from tf_agents.trajectories import trajectory

    columns = {path: np.asarray(column) for path, column in frames.columns.items()}
    return [
        trajectory.Trajectory(
            step_type=columns["step_type"][t],
            observation={name: columns[f"observation/{name}"][t] for name in ("b", "a")},
            action=columns["action"][t],
            policy_info=(),
            next_step_type=columns["next_step_type"][t],
            reward=columns["reward"][t],
            discount=columns["discount"][t],
        )
        for t in range(len(frames))
    ]


def assert_same(table: Table, lengths: tuple[int, ...], options: ItemOptions) -> None:
    """Asserts that the table holds `ItemMaker`'s items: all of them, in order, bit for bit."""
    stored = table.drain()
    ours = []
    for items in made_items(lengths, options):
        leaves = [np.asarray(items.gather(path)) for path in items.frames.columns]
        ours += [[leaf[k] for leaf in leaves] for k in range(len(items))]
    assert len(stored) == len(ours), (lengths, options)
    for there, here in zip(stored, ours, strict=True):
        assert [(a.dtype, a.shape) for a in there] == [(a.dtype, a.shape) for a in here]
        assert all(a.tobytes() == b.tobytes() for a, b in zip(there, here, strict=True)), (lengths, options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("across", [False, True])
def test_sequences_equal_those_of_the_observers(table: Table, across: bool, length: int, mode: str) -> None:
    from tf_agents.replay_buffers import reverb_utils

    kind = reverb_utils.ReverbTrajectorySequenceObserver if across else reverb_utils.ReverbAddTrajectoryObserver
    for stride in (1, 2, 3, 4) if ALL else (1, 3):
        for lengths in MIXES:
            observer = kind(table.client, "items", length, stride, **MODES[mode])
            for frames in make_thumbnails(lengths):
                for frame in trajectories(frames):
                    observer(frame)
            if across:
                observer.reset(write_cached_steps=mode != "none")  # without padding it repeats its last item
            observer.close()
            options = ItemOptions(
                items="sequences", sequence_length=length, stride_length=stride, across_episodes=across, **MODES[mode]
            )
            assert_same(table, lengths, options)
            if (length, stride, mode, across) == (2, 1, "none", False):
                assert text(lengths, ItemOptions(items="pairs")) == text(lengths, options)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 6])
def test_whole_episodes_equal_those_of_the_episode_observer(table: Table, most: int) -> None:
    from tf_agents.replay_buffers import reverb_utils

    for lengths in MIXES:
        observer = reverb_utils.ReverbAddEpisodeObserver(table.client, "items", most, bypass_partial_episodes=True)
        for frames in make_thumbnails(lengths):
            for frame in trajectories(frames):
                observer(frame)
        observer.close()
        assert_same(
            table, lengths, ItemOptions(items="episodes", max_sequence_length=most, bypass_partial_episodes=True)
        )
