"""Actions that are differences: what sources say of them, and what connectors make of what they say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from checkout import REAL_DATA

import rlds_beam
from rlds_beam.connectors import AbsoluteActions, RelativeActions, Resample, ScaleDimensions
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import ProfileOptions
from rlds_beam.testing import make_episode, write_dataset

REAL = REAL_DATA / "bridge_dataset/1.0.0"
ARM = ("x", "y", "z", "axis_angle1", "axis_angle2", "axis_angle3")
STATE = "observation/state"
DELTAS = (*(f"delta_{name}" for name in ARM), "gripper")


def old_controller(delta: bool) -> dict[str, Any]:
    return {"controller_configs": {"type": "OSC_POSE", "control_delta": delta}}


def new_controller(kind: str) -> dict[str, Any]:
    arm = {"type": "OSC_POSE", "input_type": kind}
    return {"controller_configs": {"type": "BASIC", "body_parts": {"right": arm}}}


def demos(path: Path, env_kwargs: dict[str, Any], *, env: str = "Lift", width: int = 7, **attributes: str) -> Path:
    """Demonstrations of robomimic and its relatives: `attributes` are those of `data`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": env, "env_kwargs": {"control_freq": 20, **env_kwargs}})
        for name, value in attributes.items():
            data.attrs[name] = value
        for i in range(2):
            random = np.random.default_rng(i)
            demo = data.create_group(f"demo_{i}")
            demo["actions"] = random.uniform(-1, 1, (9, width))
            demo["obs/state"] = np.cumsum(random.normal(size=(9, width)), axis=0)
            for camera in ("agentview_rgb", "eye_in_hand_rgb"):
                demo[f"obs/{camera}"] = np.zeros((9, 16, 16, 3), np.uint8)
            demo["dones"] = np.arange(9) == 8
    return path


@pytest.mark.parametrize(
    ("kwargs", "names"),
    [
        (old_controller(True), DELTAS),
        (old_controller(False), (*ARM, "gripper")),
        (new_controller("delta"), DELTAS),
        (new_controller("absolute"), (*ARM, "gripper")),
        ({"controller_configs": {"type": "JOINT_VELOCITY"}}, ()),
    ],
)
def test_robomimic_says_it_in_the_controllers_options(kwargs: Any, names: Any, tmp_path: Path) -> None:
    source = rlds_beam.open_source(demos(tmp_path / "a.hdf5", kwargs))
    assert source.schema.steps["action"].names == names


def test_two_arms_have_the_names_of_each(tmp_path: Path) -> None:
    source = rlds_beam.open_source(demos(tmp_path / "a.hdf5", old_controller(True), width=14))
    assert source.schema.steps["action"].names == tuple(f"robot{i}_{name}" for i in range(2) for name in DELTAS)
    with pytest.raises(UsageError, match=r"relative: \[0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12\]"):
        rlds_beam.open_dataset(tmp_path / "a.hdf5", connectors=[Resample(fps=10)])


def test_liberos_and_isaac_labs_actions_are_differences(tmp_path: Path) -> None:
    libero = demos(tmp_path / "libero.hdf5", {}, problem_info=json.dumps({"language_instruction": "lift it"}))
    assert rlds_beam.open_source(libero).schema.steps["action"].names == DELTAS
    for env, names in (("Isaac-Stack-Cube-Franka-IK-Rel-v0", DELTAS), ("Isaac-Stack-Cube-Franka-IK-Abs-v0", ())):
        path = demos(tmp_path / f"{env}.hdf5", {}, env=env)
        source = rlds_beam.open_source(str(path), from_="hdf5", options=ProfileOptions(profile="isaaclab"))
        assert source.schema.steps["action"].names == names


@pytest.mark.parametrize("keep_names", [True, False])
def test_the_connectors_refuse_them(keep_names: bool, tmp_path: Path) -> None:
    data: Any = demos(tmp_path / "a.hdf5", old_controller(True))
    if not keep_names:  # other names do not make them absolute
        rename = {"RenameDimensions": {"field": "action", "names": dict(zip(DELTAS, ARM, strict=False))}}
        (tmp_path / "rename.json").write_text(json.dumps([rename]))
        rlds_beam.convert(data, tmp_path / "b/1.0.0", to="rlds", connectors=str(tmp_path / "rename.json"))
        data = tmp_path / "b/1.0.0"
    with pytest.raises(UsageError, match=r"differences, .* relative: \[0, 1, 2, 3, 4, 5\]"):
        rlds_beam.open_dataset(data, connectors=[Resample(fps=10)])
    with pytest.raises(UsageError, match="value 0 of action is already a difference"):
        rlds_beam.open_dataset(data, connectors=[RelativeActions(absolute=[6])])
    with pytest.raises(UsageError, match="value 6 of action is absolute already: add 6 to absolute"):
        rlds_beam.open_dataset(data, connectors=[AbsoluteActions()])


def arm(directory: Path, kind: str, centre: float = 0.3) -> Path:
    """Episodes of an arm whose data do not say whether actions are targets or changes; void last actions."""
    episodes = []
    for seed in range(4):
        random = np.random.default_rng(seed)
        changes = random.uniform(-0.05, 0.05, (30, 3))
        places = centre + np.cumsum(np.concatenate([random.uniform(-0.2, 0.2, (1, 3)), changes]), axis=0)
        actions = {"targets": places[1:], "changes": changes, "scaled": changes * 20, "degrees": np.degrees(places[1:])}
        columns = {"action": np.concatenate([actions[kind], np.zeros((1, 3))]), STATE: places}
        episode = make_episode(31, columns=columns)
        episodes.append(episode.replace(steps={p: c for p, c in episode.steps.items() if p != "observation"}))
    data = write_dataset(directory / kind, episodes)
    (data / "meaning.json").write_text(json.dumps({"fps": 10, "last_action": "void"}))
    return data


@pytest.mark.parametrize("centre", [0.3, 0.0])
@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        ("targets", {"Resample", "RelativeActions"}),
        ("changes", {"AbsoluteActions"}),
        ("scaled", set()),
        ("degrees", set()),
    ],
)
def test_ranges_tell_if_nothing_else_does(kind: str, accepted: set[str], centre: float, tmp_path: Path) -> None:
    data = arm(tmp_path, kind, centre)
    steps = rlds_beam.open_dataset(data, unit="steps")
    for connector in (Resample(fps=5), RelativeActions(), AbsoluteActions()):
        name = type(connector).__name__
        if name in accepted:
            rlds_beam.open_dataset(data, connectors=[connector])
        else:
            said = r"lies? where .*value \d is \S+ to \S+, and \S+ to \S+ in observation/state\).*compare_ranges: false"
            with pytest.raises(UsageError, match=f"{name}: .*{said}") as error:
                rlds_beam.convert(data, tmp_path / "out", to="rlds", connectors=[connector])
            assert "\n" not in str(error.value)
            rlds_beam.open_dataset(data, connectors=[dataclasses.replace(connector, compare_ranges=False)])
    if kind == "targets":
        next(steps.batches(4, chunk=3, relative_actions=RelativeActions()))
    else:
        with pytest.raises(UsageError, match="RelativeActions: action does not lie where observation/state does"):
            steps.batches(4, chunk=3, relative_actions=RelativeActions())
        next(steps.batches(4, chunk=3, relative_actions=RelativeActions(compare_ranges=False)))


def test_ranges_are_compared_after_the_connectors_before(tmp_path: Path) -> None:
    data = arm(tmp_path, "scaled")
    scale = ScaleDimensions("action", 1 / 20)
    rlds_beam.open_dataset(data, connectors=[scale, AbsoluteActions()])
    rlds_beam.open_dataset(data, connectors=[scale, AbsoluteActions(), Resample(fps=5)])
    with pytest.raises(UsageError, match="Resample: action does not lie where observation/state does"):
        rlds_beam.open_dataset(data, connectors=[scale, Resample(fps=5)])
    rlds_beam.open_dataset(data, connectors=[Resample(fps=5, relative=["action"])])


def test_relative_actions_come_back_by_what_the_data_says(tmp_path: Path) -> None:
    data = arm(tmp_path, "targets")
    rlds_beam.convert(data, tmp_path / "relative/1.0.0", to="rlds", connectors=[RelativeActions()])
    (before,) = list(rlds_beam.open_dataset(data))[:1]
    (after,) = list(rlds_beam.open_dataset(tmp_path / "relative/1.0.0", connectors=[AbsoluteActions()]))[:1]
    np.testing.assert_allclose(after["steps/action"][:-1], before["steps/action"][:-1], atol=1e-12)


def slope(moves: Any, changes: Any) -> float:
    """The slope of the summed actions on the change of the state, by episode (E, 3)."""
    return float((moves * changes).sum() / (changes**2).sum())


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data; set $RLDS_BEAM_REAL_DATA to their path")
def test_bridge_moves_as_far_at_half_the_rate() -> None:
    def episodes(**options: Any) -> list[Any]:
        return list(rlds_beam.open_dataset(REAL, repair=("missing_is_last",), **options))

    for refused in (Resample(fps=2.5), RelativeActions(absolute=[6])):
        with pytest.raises(UsageError, match=r"action has differences|already a difference"):
            episodes(connectors=[refused])
    states = [one["steps/observation/state"][:, :3] for one in episodes()]
    changes = np.array([state[-1] - state[0] for state in states])
    slopes = []
    for connectors in ([], [Resample(fps=2.5, relative=range(6))]):
        made = episodes(connectors=connectors)
        slopes.append(slope(np.array([one["steps/action"][:-1, :3].sum(0) for one in made]), changes))
    np.testing.assert_allclose(slopes, 0.936, atol=5e-4)
