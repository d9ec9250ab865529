"""Priorities: one finite number per item, from a constant, a leaf, or a function."""

from __future__ import annotations

import pickle
import textwrap
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reverb.priorities import Priority, resolve_priority
from rlds_beam.testing import make_episode
from rlds_beam.trajectories.frames import Frames, to_frames
from rlds_beam.trajectories.items import PAD, ItemMaker, Items
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec, trajectory_spec

PAIRS = ItemOptions()
KINDS = {
    "pairs": PAIRS,
    "frames": ItemOptions(items="frames"),
    "episodes": ItemOptions(items="episodes"),
    "strided": ItemOptions(items="sequences", sequence_length=3, stride_length=2),
    "padded": ItemOptions(items="sequences", sequence_length=9, pad_end_of_episodes=True),
    "tiled": ItemOptions(items="sequences", sequence_length=4, pad_end_of_episodes=True, tile_end_of_episodes=True),
    "across": ItemOptions(
        items="sequences",
        sequence_length=5,
        stride_length=2,
        across_episodes=True,
        pad_end_of_episodes=True,
        tile_end_of_episodes=True,
    ),
}
FIELDS = FrameOptions(policy_info_fields=("td_error",))


def episode(n: int, seed: int = 0, td_error: Any = None, **columns: Any) -> Any:
    if td_error is None:
        td_error = np.random.default_rng(seed).uniform(0, 9, n)
    return make_episode(n, seed=seed, observation={"state": 3}, columns={"td_error": td_error, **columns})


def spec_of(options: ItemOptions = PAIRS, **columns: Any) -> TrajectorySpec:
    return trajectory_spec(default_schema(episode(2, **columns)), FIELDS, options)


def made(lengths: list[int], options: ItemOptions) -> list[Items]:
    maker = ItemMaker(options)
    items = [maker.push(to_frames(episode(n, i), FIELDS)) for i, n in enumerate(lengths)]
    return [some for some in (*items, maker.finish()) if some is not None]


def of(items: Items, text: str) -> np.ndarray:
    priority: Priority = pickle.loads(pickle.dumps(resolve_priority(text)))
    found = priority.compute(items)
    assert (found.dtype, found.shape) == (np.float64, (len(items),))
    return found


def items_of(td_error: list[float], options: ItemOptions = PAIRS) -> Items:
    return ItemMaker(options).push(to_frames(episode(len(td_error), 0, np.array(td_error)), FIELDS))


# A number


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("0.5", 0.5), ("0", 0), ("2e3", 2000)])
def test_a_number_is_the_priority_of_every_item(text, value):
    resolve_priority(text).check(spec_of())
    for items in made([4, 1], PAIRS):
        assert of(items, text).tolist() == [value] * len(items)


# A leaf


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.sampled_from([*KINDS]))
def test_a_leaf_is_averaged_over_the_transitions(lengths, kind):
    for items in made(lengths, KINDS[kind]):
        resolve_priority("policy_info/td_error").check(spec_of(KINDS[kind]))
        values, types = (items.frames[path].tolist() for path in ("policy_info/td_error", "step_type"))
        want = []
        for row in items.index.tolist():
            trained = [i for i in row[:-1] if i != PAD and types[i] != 2]
            want.append(np.mean([values[i] for i in trained or row[:1]]))
        np.testing.assert_allclose(of(items, "policy_info/td_error"), want, rtol=1e-12)


def test_the_value_of_padding_and_boundary_does_not_count():
    tiled = KINDS["tiled"]  # F M L, L = 4: FMLP, MLPP, LPPP
    assert of(items_of([2, 4, 100], tiled), "policy_info/td_error").tolist() == [3, 4, 100]


@pytest.mark.parametrize("kind", ["pairs", "tiled", "episodes"])
def test_the_same_items_from_disk_have_the_same_priorities(kind):
    """Here padding frames count like all other frames."""
    (items,) = made([6], KINDS[kind])
    columns = {path: items.gather(path).reshape(-1, *items.frames[path].shape[1:]) for path in items.frames.columns}
    length = items.windows.length
    options = ItemOptions(items="sequences", sequence_length=length, stride_length=length)
    again = [
        ItemMaker(options).push(Frames({p: c[i : i + length] for p, c in columns.items()}, items.frames.key))
        for i in range(0, len(items) * length, length)
    ]
    text = "policy_info/td_error"
    np.testing.assert_array_equal(np.concatenate([of(one, text) for one in again]), of(items, text))


@pytest.mark.parametrize("bad", [-1, np.nan, np.inf, -np.inf])
def test_an_invalid_value_rejects_the_episode(bad):
    with pytest.raises(BadEpisode) as raised:
        of(items_of([1, bad, bad, 2, 3]), "policy_info/td_error")
    (violation,) = raised.value.violations
    assert violation.rule == "bad_priority"
    assert violation.detail == f"{bad:g} from --priority=policy_info/td_error for item 1, of 4 (2 such items)"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("policy_info/td_eror", r"no such leaf; did you mean policy_info/td_error\?"),
        ("td_error", "--policy_info_fields=NAME adds a step field"),
        ("observation/state", r"observation/state: float32\(3\) is not one number per frame; use module:function"),
        ("observation/camera", r"\(jpeg in the dataset\) is not one number per frame"),
        ("zzz", "Available: step_type, policy_info/td_error, next_step_type, reward, discount$"),
    ],
)
def test_an_invalid_leaf_is_refused_before_work(path, message):
    spec = spec_of(**{"observation/camera": camera(2)})
    with pytest.raises(UsageError, match=f"--priority={path}: .*{message}"):
        resolve_priority(path).check(spec)


def camera(n: int) -> EncodedImages:
    data = np.empty(n, object)
    data[:] = encode_jpeg(np.zeros((n, 1, 1, 1), np.uint8))
    return EncodedImages(data, (1, 1, 1))


# A function


@pytest.fixture
def function(tmp_path, monkeypatch):
    """Defines `function(columns)` with this body, in a module of the current directory; returns its name."""
    monkeypatch.chdir(tmp_path)

    def define(body: str) -> str:
        name = f"own_{abs(hash((body, str(tmp_path))))}"
        source = "import numpy as np\n\ndef function(columns):\n" + textwrap.indent(textwrap.dedent(body), "    ")
        (tmp_path / f"{name}.py").write_text(source)
        return f"{name}:function"

    return define


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_sees_the_columns_of_all_items(function, kind):
    name = function(
        """
        rewards, state = columns["reward"], columns["observation"]["state"]
        assert state.shape == (*rewards.shape, 3)
        assert set(columns) == {"step_type", "observation", "action", "policy_info", "next_step_type", "reward",
                                "discount"}
        return np.abs(rewards).sum(axis=1) + 100 * columns["step_type"].sum(axis=1) + state.max(axis=(1, 2)) ** 2
        """
    )
    resolve_priority(name).check(spec_of(KINDS[kind]))
    for items in made([5, 2, 6], KINDS[kind]):
        rewards, types, state = (items.gather(p).astype(float) for p in ("reward", "step_type", "observation/state"))
        want = np.abs(rewards).sum(1) + 100 * types.sum(1) + state.max(axis=(1, 2), initial=-np.inf) ** 2
        np.testing.assert_allclose(of(items, name), want, rtol=1e-6)


def test_a_function_gets_encoded_images(function):
    name = function("return np.vectorize(len)(columns['observation']['camera'].data).sum(axis=1)")
    columns = {"observation/camera": camera(6)}
    tiled = KINDS["tiled"]
    spec = trajectory_spec(default_schema(episode(2, **{"observation/camera": camera(2)})), FIELDS, tiled)
    resolve_priority(name).check(spec)
    items = ItemMaker(tiled).push(to_frames(episode(6, 0, **columns), FIELDS))
    size = len(columns["observation/camera"].data[0])
    assert of(items, name).tolist() == [n * size for n in (4, 4, 4, 3, 2, 1)]


def test_a_function_may_return_nan_for_zeros_but_not_for_data(function):
    name = function("return columns['reward'][:, 0] / 0")
    with np.errstate(all="ignore"):
        resolve_priority(name).check(spec_of())
        with pytest.raises(BadEpisode, match=f"bad_priority: -?inf from --priority={name} for item 0, of 3"):
            of(items_of([1, 2, 3, 4]), name)
