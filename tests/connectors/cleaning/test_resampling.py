"""Resample: integrated poses, never from the future, SubsampleSteps, reference resampling, rates, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from checkout import REAL_DATA
from edits import edited
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rlds_beam
from rlds_beam.connectors import ConvertRotation, Resample, SubsampleSteps
from rlds_beam.connectors.configuration import parse
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.images.codecs import encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.meaning import MEANING
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.testing.conformance import episode_content

REAL = REAL_DATA / "bridge_dataset/1.0.0"
SOME = settings(deadline=None, max_examples=60)
FLOAT32 = 5e-6
"""How far integrated float32 changes may be from the pose: sums of 100 numbers of about 1."""


def episode(length, seed=0, **columns):
    """Observations count the steps; rewards are integers and discounts powers of 2, so that sums are exact."""
    random = np.random.default_rng(seed)
    discount = random.choice([0.5, 1.0], length).astype(np.float32)
    discount[-2:-1] = 0
    images = encode_png(np.arange(12 * length, dtype=np.uint8).reshape(-1, 2, 2, 3))
    columns = {
        "observation": np.arange(length, dtype=np.int64),
        "reward": random.integers(-5, 6, length).astype(np.float32),
        "discount": discount,
        "text": np.array([f"step {t}".encode() for t in range(length)], object),
        "pixels": EncodedImages(np.array(images, object), (2, 2, 3), "uint8", "png"),
        **columns,
    }
    return make_episode(length, seed=seed, columns=columns, terminal=True)


def resampled(made, **arguments):
    (result,) = edited(Resample(**arguments), made)
    return result


def changes_of(length, seed, *, last):
    """Changes of a pose: x, y, z, a rotation vector, and a gripper's position; the last is void or real."""
    values = np.random.default_rng(seed).normal(0, 0.1, (length, 7)).astype(np.float32)
    values[-1] = values[-1] if last == "real" else 0
    return values


def poses(actions, frame):
    """The poses that changes lead to, 4 x 4 matrices (T + 1, 4, 4)."""
    from scipy.spatial.transform import Rotation

    place, turn = np.zeros(3), Rotation.identity()
    made = [np.eye(4)]
    for action in np.asarray(actions, np.float64):
        change = Rotation.from_rotvec(action[3:6])
        place = place + (turn.apply(action[:3]) if frame == "hand" else action[:3])
        turn = turn * change if frame == "hand" else change * turn
        made.append(np.eye(4))
        made[-1][:3, :3], made[-1][:3, 3] = turn.as_matrix(), place
    return np.array(made)


ARM = {"relative": [0, 1, 2, 3, 4, 5], "rotation": "axis_angle", "at": 3, "position": 0}


@pytest.mark.parametrize("frame", ["base", "hand"])
@pytest.mark.parametrize("last", ["void", "real"])
def test_thirty_to_ten_to_thirty_integrates_to_the_same_poses(frame, last):
    pytest.importorskip("scipy")
    before = episode(91 if last == "void" else 90, action=changes_of(91 if last == "void" else 90, 1, last=last))
    arm = {**ARM, "frame": frame, "last_action": last}
    slow = resampled(before, fps=10, recorded_fps=30, **arm)
    fast = resampled(slow, fps=30, recorded_fps=10, **arm)
    again = resampled(fast, fps=10, recorded_fps=30, **arm)
    assert (len(slow), len(fast), len(again)) == ((31, 91, 31) if last == "void" else (30, 90, 30))
    transitions = slice(0, -1 if last == "void" else None)
    there, slowly, quickly, back = (
        poses(one.steps["action"][transitions], frame) for one in (before, slow, fast, again)
    )
    np.testing.assert_allclose(slowly, there[::3], atol=FLOAT32)
    np.testing.assert_allclose(quickly[::3], there[::3], atol=FLOAT32)
    np.testing.assert_allclose(back, there[::3], atol=FLOAT32)
    np.testing.assert_array_equal(slow.steps["action"][transitions, 6], before.steps["action"][transitions][::3, 6])
    if last == "void":
        assert not slow.steps["action"][-1].any() and not fast.steps["action"][-1].any()


@SOME
@given(length=st.integers(2, 40), seed=st.integers(0, 99), new=st.floats(1, 90), last=st.sampled_from(["void", "real"]))
def test_any_rate_keeps_the_last_pose_the_return_and_the_discount(length, seed, new, last):
    pytest.importorskip("scipy")
    before = episode(length, seed, action=changes_of(length, seed, last=last))
    made = resampled(before, fps=new, recorded_fps=30, frame="hand", last_action=last, **ARM)
    transitions = slice(0, -1 if last == "void" else None)
    first, second = (poses(one.steps["action"][transitions], "hand")[-1] for one in (before, made))
    np.testing.assert_allclose(first, second, atol=2e-5)
    for path, merge in (("reward", np.sum), ("discount", np.prod)):
        assert merge(made.steps[path][transitions]) == merge(before.steps[path][transitions])
    assert made.steps["is_first"].tolist() == [True] + [False] * (len(made) - 1)
    for flag in ("is_last", "is_terminal"):
        assert made.steps[flag].tolist() == [False] * (len(made) - 1) + [True]
    if last == "void":
        assert made.steps["observation"][-1] == length - 1


STAMPS = st.lists(st.floats(0.001, 0.9), min_size=1, max_size=30).map(lambda gaps: np.cumsum([100 + 1 / 3, *gaps]))
"""Times that float32 cannot hold, so that they are compared as float64."""


@SOME
@example(stamps=np.arange(10) / 30, new=10.0, last="void")
@given(stamps=STAMPS, new=st.floats(0.5, 100), last=st.sampled_from(["void", "real"]))
def test_observations_are_the_latest_at_or_before_and_never_from_the_future(stamps, new, last):
    before = episode(len(stamps), stamp=stamps)
    made = resampled(before, fps=new, times="stamp", last_action=last)
    grid, shown = made.steps["stamp"], made.steps["observation"]
    near = 1e-9 * new + 4 * np.spacing(stamps[-1])
    np.testing.assert_allclose(np.diff(grid), 1 / new, rtol=1e-6)
    assert grid[0] == stamps[0]
    assert (stamps[shown] <= grid + near).all()
    later = np.append(stamps, np.inf)[shown + 1]
    assert (later > grid - near).all()
    assert grid[-1] < (2 * stamps[-1] - stamps[0] if last == "real" else stamps[-1]) + 1 / new
    assert made.steps["text"].tolist() == [f"step {t}".encode() for t in shown]
    assert made.steps["pixels"].data.tolist() == [before.steps["pixels"].data[t] for t in shown]
    assert isinstance(made.steps["pixels"], EncodedImages)


@SOME
@given(length=st.integers(2, 50), every=st.integers(1, 7), fps=st.sampled_from([3, 5, 10, 15, 29.97, 30, 50, 60]))
def test_at_whole_factors_it_is_subsample_steps(length, every, fps):
    before = episode(length)
    (expected,) = edited(SubsampleSteps(every), before)
    assert episode_content(resampled(before, fps=fps / every, recorded_fps=fps)) == episode_content(expected)
    assert SubsampleSteps(every).rate_after(fps) == Resample(fps=fps / every).rate_after(fps)


def test_interpolated_targets_and_held_grippers():
    pytest.importorskip("scipy")
    from scipy.spatial.transform import Rotation, Slerp

    angles = np.zeros((5, 3))
    angles[:4] = Rotation.from_euler("z", [[0], [90], [180], [270]], degrees=True).as_euler("xyz")
    actions = np.concatenate([np.arange(5)[:, None] * [1.0, 10.0], angles, np.arange(5)[:, None]], axis=1)
    made = resampled(
        episode(5, action=actions), fps=4, recorded_fps=2, interpolate=[0, 1, 2, 3, 4], rotation="euler_xyz", at=2
    )
    assert made.steps["action"][:, 0].tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3, 4]  # the last action is void
    assert made.steps["action"][:, 5].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    expected = Slerp(np.arange(4), Rotation.from_euler("xyz", angles[:4]))(np.minimum(np.arange(8) / 2, 3))
    turned = Rotation.from_euler("xyz", made.steps["action"][:8, 2:5])
    assert (turned * expected.inv()).magnitude().max() < 1e-9
    assert (np.abs(np.diff(made.steps["action"][:8, 4])) < 1).all()  # angles do not wrap


def test_fields_are_named_instead_of_indices():
    """As in RT-1: a dictionary of actions."""
    pytest.importorskip("scipy")
    values = changes_of(10, 0, last="void")
    parts = {"action/move": values[:, :3], "action/turn": values[:, 3:6], "action/gripper": values[:, 6]}
    before = episode(10)
    before = before.replace(steps={**{k: v for k, v in before.steps.items() if k != "action"}, **parts})
    fields = {"relative": ["action/move", "action/turn"], "at": "action/turn", "position": "action/move"}
    made = resampled(before, fps=10, recorded_fps=30, rotation="axis_angle", frame="hand", **fields)
    joined = resampled(episode(10, action=values), fps=10, recorded_fps=30, frame="hand", **ARM)
    for path, where in (("action/move", slice(0, 3)), ("action/turn", slice(3, 6)), ("action/gripper", 6)):
        np.testing.assert_array_equal(made.steps[path], joined.steps["action"][:, where])


@pytest.mark.parametrize(
    ("stamps", "unit"),
    [
        (np.arange(31) / 30 + 1e9, {}),
        ((np.arange(31) / 30).astype(np.float32) + np.float32(100), {}),
        ((np.arange(31) / 30).astype(np.float32).astype(np.float64), {}),  # stored as float32
        (np.round(np.arange(31) * 1e9 / 30).astype(np.int64) + 1_700_000_000 * 10**9, {"unit": "ns"}),
        (np.round(np.arange(31) * 1e3 / 30).astype(np.uint32), {"unit": "ms"}),
    ],
)
def test_timestamps_are_compared_within_their_resolution_and_become_the_new_times(stamps, unit):
    made = resampled(episode(31, stamp=stamps[:, None]), fps=15, times="stamp", **unit)
    np.testing.assert_array_equal(made.steps["observation"], np.arange(0, 31, 2))
    assert made.steps["stamp"].dtype == stamps.dtype and made.steps["stamp"].shape == (16, 1)
    resolution = 1 if stamps.dtype.kind in "iu" else max(2e-7, 4 * np.spacing(stamps[-1]))
    np.testing.assert_allclose(made.steps["stamp"][:, 0], stamps[::2], rtol=0, atol=resolution)


@pytest.mark.parametrize("last", ["void", "real"])
def test_the_same_rate_changes_nothing(last):
    before = episode(20, stamp=np.arange(20) / 30)
    for same in ({"fps": 30, "recorded_fps": 30}, {"fps": 30, "times": "stamp"}):
        assert resampled(before, last_action=last, **same) is before


def test_onto_the_timestamps_of_a_slow_camera():
    camera = np.repeat(np.arange(7) * 1000, 3)[:20]
    made = resampled(episode(20, seen_ms=camera), onto="seen_ms", recorded_fps=30)
    assert made.steps["observation"].tolist() == [0, 3, 6, 9, 12, 15, 18, 19]
    (expected,) = edited(SubsampleSteps(3), episode(20, seen_ms=camera))
    assert episode_content(made) == episode_content(expected)
    assert Resample(onto="seen_ms").rate_after(30) is None


@pytest.mark.parametrize(
    ("stamps", "message"),
    [
        ([0, 1, 1, 2], r"time 1.0 after 1.0 at step 2: expected times that increase"),
        ([0, 33, 67, 100], "1,000 steps for 4, which take 100 s: are the rate and unit right"),
        ([0, 1, np.nan, 3], r"time nan after 1.0 at step 2"),
    ],
)
def test_bad_timestamps_reject_the_episode(stamps, message):
    with pytest.raises(BadEpisode, match=message) as raised:
        resampled(episode(4, stamp=np.array(stamps, np.float64)), fps=10, times="stamp")
    assert raised.value.violations[0].rule == "not_representable"


def test_an_action_that_is_not_finite_rejects_the_episode_unless_it_is_held():
    actions = changes_of(5, 0, last="void")
    actions[2, 6] = np.nan
    held = resampled(episode(5, action=actions), fps=20, recorded_fps=10, relative=[0, 1, 2])
    assert np.isfinite(held.steps["action"][:, :3]).all()
    with pytest.raises(BadEpisode, match="step 2 is not finite"):
        resampled(episode(5, action=actions), fps=20, recorded_fps=10, relative=["action"])


@pytest.fixture
def data(tmp_path):
    """30 Hz, with the names of a pose."""
    actions = [changes_of(31, i, last="void") for i in range(4)]
    root = write_dataset(
        tmp_path,
        [episode(31, i, action=a, timestamp=(np.arange(31) / 30).astype(np.float32)) for i, a in enumerate(actions)],
    )
    names = ["x", "y", "z", "rx", "ry", "rz", "gripper"]
    (root / MEANING).write_text(json.dumps({"fps": 30, "names": {"action": names}}))
    return root


CONFIGURED = [
    {"Resample": {"fps": 10, "relative": [0, 1, 2]}},
    {"Resample": {"fps": 10, "relative": ["action"]}},
    {"Resample": {"fps": 10, "times": "timestamp"}},
]


@pytest.mark.parametrize("entry", CONFIGURED)
def test_outputs_have_the_new_rate_and_equal_what_is_read_online(entry, data, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps([entry]))
    done = rlds_beam.convert(data, tmp_path / "out", to="rlds", connectors=str(path))
    assert done.report.rejected == 0
    assert json.loads((tmp_path / "out" / MEANING).read_text())["fps"] == 10
    online = rlds_beam.open_dataset(data, connectors=str(path))
    written = rlds_beam.open_dataset(tmp_path / "out")
    assert len(online) == len(written) == 4
    for one, other in zip(online, written, strict=True):
        assert len(one["steps/action"]) == 11
        for name in ("steps/action", "steps/reward", "steps/observation", "steps/timestamp"):
            np.testing.assert_array_equal(one[name], other[name])


def test_the_rate_before_is_the_one_after_earlier_connectors(data):
    configuration = parse([{"SubsampleSteps": {"every": 2}}, {"Resample": {"fps": 5}}], "c.yaml")
    found = configuration.for_source(rlds_beam.inspect(data).source)
    assert found.connectors[1] == Resample(fps=5, recorded_fps=15, last_action="void")
    made = rlds_beam.open_dataset(data, connectors=[SubsampleSteps(2), Resample(fps=5)])[0]
    assert made["steps/observation"].tolist() == [0, 6, 12, 18, 24, 30]


def test_a_dataset_without_a_rate_is_refused_in_one_line(data, tmp_path):
    (data / MEANING).unlink()
    with pytest.raises(UsageError) as raised:
        rlds_beam.convert(data, tmp_path / "out", to="rlds", connectors=[Resample(fps=10)])
    assert str(raised.value).endswith(
        "says no rate: pass recorded_fps, or times, a field of timestamps, perhaps timestamp"
    )
    rlds_beam.convert(data, tmp_path / "out", to="rlds", connectors=[Resample(fps=10, recorded_fps=30)])
    assert json.loads((tmp_path / "out" / MEANING).read_text())["fps"] == 10


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data; set $RLDS_BEAM_REAL_DATA to their path")
def test_real_episodes_lead_to_the_same_poses():
    """BridgeData: changes of x, y, z, roll, pitch, yaw at 5 Hz, and a gripper."""
    pytest.importorskip("scipy")
    before = list(rlds_beam.open_dataset(REAL, repair=("missing_is_last",)))
    arm = {"relative": [0, 1, 2, 3, 4, 5], "rotation": "euler_xyz", "at": 3}
    convert = ConvertRotation("action", "euler_xyz", "axis_angle", 3)
    for fps in (2.5, 15):
        connectors = [Resample(fps=fps, recorded_fps=5, **arm), convert]
        made = list(rlds_beam.open_dataset(REAL, repair=("missing_is_last",), connectors=connectors))
        assert len(made) == len(before) == 25
        for one, other in zip(before, made, strict=True):
            (turned,) = edited(convert, make_episode(len(one["steps/action"]), columns={"action": one["steps/action"]}))
            there, here = (poses(a[:-1], "base") for a in (turned.steps["action"], other["steps/action"]))
            common = (there[::2], here[: len(there[::2])]) if fps < 5 else (there, here[::3])
            np.testing.assert_allclose(*common, atol=FLOAT32)
            np.testing.assert_allclose(there[-1], here[-1], atol=FLOAT32)
