"""How values are represented is stored next to fields, read back, shown, and compared."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from exchanging import export
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.connectors import RelativeActions
from rlds_beam.episodes.representations import Representation
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.arrays.array_episodes import field_from_json
from rlds_beam.formats.columns.row_files import ColumnsManifest
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.registry import OUTPUTS
from rlds_beam.reading.meaning import Meaning
from rlds_beam.testing import make_episode, write_dataset

SIX = [
    {"RelativeActions": {"rotation": "euler_xyz", "at": 3, "absolute": [6]}},
    {"ConvertRotation": {"field": "action", "from": "euler_xyz", "to": "6d", "at": 3}},
]
ACTION = Representation(((3, "6d"),), "state", "base", (9,))
STATE = Representation(((3, "euler_xyz"),))


def write_arm(path: Path, *, size: int = 7, meaning: Any = None) -> Path:
    """A dataset of an arm: x, y, z, roll, pitch, yaw, gripper; actions are near the states."""
    made = [make_episode(6, seed=i, observation={"state": size}, action=size) for i in range(2)]
    episodes = [e.with_columns({"action": e.steps["action"] / 100 + e.steps["observation/state"]}) for e in made]
    data = write_dataset(path, episodes, name=path.name)
    (data / "meaning.json").write_text(json.dumps({"fps": 10, **(meaning or {})}))
    return data


def connectors(path: Path, entries: Any = SIX) -> str:
    path.write_text(json.dumps(entries))
    return str(path)


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arm(tmp_path_factory.mktemp("arm") / "arm")


def read_representations(output: Path, to: str) -> dict[str, Representation]:
    """What an output says, as its source reads it, by the paths of the input."""
    if to in ("columns", "numpy", "scope_rl", "trajectories"):  # no sources
        manifest = json.loads((output / "manifest.json").read_text())
        if to == "columns":
            (fields,) = ColumnsManifest.from_manifest(manifest, str(output)).modules.values()
            names = {"actions": "action", "obs/state": "observation/state"}
            return {names[f.path]: f.representation for f in fields if f.path in names and f.representation}
        if to == "numpy":
            fields = [field_from_json(field, to) for field in manifest["numpy"]["fields"]]
            return {field.path: field.representation for field in fields if field.representation}
        known = Meaning.from_json(manifest["meaning"], to).representations
    else:
        known = open_source(str(output), from_=to).schema.representations
    return {
        path.replace("observation", "observation/state") if path == "observation" else path: own
        for path, own in known.items()
    }


representations = st.builds(
    Representation,
    st.sampled_from([(), ((3, "euler_xyz"),), ((0, "axis_angle"), (3, "euler_ZYX_degrees")), ((1, "6d_rows"),)]),
    st.sampled_from(["state", "previous"]),
    st.sampled_from([None, "base", "hand"]),
    st.sampled_from([(), (6,), (0, 6)]),
)


@pytest.mark.parametrize("to", OUTPUTS)
@settings(max_examples=4, deadline=None)
@given(action=representations, state=representations)
def test_every_output_that_stores_names_keeps_it(to: str, action: Representation, state: Representation) -> None:
    with tempfile.TemporaryDirectory() as directory:
        known = {"action": action.to_json(), "observation/state": state.to_json()}
        data = write_arm(Path(directory) / "arm", meaning={"representation": known})
        export(data, Path(directory) / "out", to, **({"items": "frames"} if to == "trajectories" else {}))
        assert read_representations(Path(directory) / "out", to) == {"action": action, "observation/state": state}


def test_connectors_say_it_and_it_is_next_to_the_field(arm: Path, tmp_path: Path) -> None:
    export(arm, tmp_path / "out", "lerobot", connectors=connectors(tmp_path / "six.json"))
    features = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())["features"]
    assert features["action"]["representation"] == ACTION.to_json()
    assert features["observation.state"]["representation"] == {"rotation": {"euler_xyz": [3]}}
    assert [name for name in features if "representation" in features[name]] == ["action", "observation.state"]
    (tmp_path / "out" / "meta" / "rlds_beam.json").unlink()  # info.json alone says it, as after a tool of LeRobot
    source = open_source(str(tmp_path / "out"))
    assert dict(source.schema.representations) == {"action": ACTION, "observation/state": STATE}
    export(tmp_path / "out", tmp_path / "back", "rlds")
    stored = json.loads((tmp_path / "back" / "meaning.json").read_text())["representation"]
    assert stored == {"action": ACTION.to_json(), "observation/state": STATE.to_json()}


def test_joined_vectors_of_lerobot(tmp_path: Path) -> None:
    episodes = [make_episode(5, seed=i, observation={"arm": 7, "hand": 2}, action=7) for i in range(2)]
    data = write_dataset(tmp_path / "arm", episodes)
    (data / "meaning.json").write_text(json.dumps({"fps": 5, "representation": {"observation/arm": STATE.to_json()}}))
    joined = "observation.state=observation/hand+observation/arm"
    export(data, tmp_path / "out", "lerobot", map=(joined,))
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert info["features"]["observation.state"]["representation"] == {"rotation": {"euler_xyz": [5]}}
    assert dict(open_source(str(tmp_path / "out")).schema.representations) == {"observation/arm": STATE}


def test_inspect_and_the_report_show_it(arm: Path, tmp_path: Path, capsys: Any) -> None:
    export(arm, tmp_path / "out", "rlds", connectors=connectors(tmp_path / "six.json"))
    assert main(["inspect", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "float32 (10,); rotation 6d at 3, relative_to state, frame base, absolute 9" in shown
    assert main(["inspect", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"]["action"]["representation"] == ACTION.to_json()
    assert main(["report", str(tmp_path / "out"), f"--output={tmp_path / 'report.html'}"]) == 0
    assert f"Tensor; {ACTION}" in (tmp_path / "report.html").read_text()


def test_the_data_is_not_converted_twice(arm: Path, tmp_path: Path) -> None:
    turn = {"field": "action", "from": "euler_xyz", "to": "axis_angle", "at": 3}
    entries = connectors(tmp_path / "plain.json", [{"RelativeActions": {"absolute": [6]}}, {"ConvertRotation": turn}])
    export(arm, tmp_path / "out", "rlds", connectors=entries)
    with pytest.raises(UsageError, match=r"value 0 of action is already relative \(to=state\)"):
        export(tmp_path / "out", tmp_path / "twice", "rlds", connectors=entries)
    entries = connectors(tmp_path / "turn.json", [{"ConvertRotation": turn}])
    with pytest.raises(UsageError, match="from=euler_xyz, at=3, but action has a rotation as axis_angle at 3"):
        export(tmp_path / "out", tmp_path / "twice", "rlds", connectors=entries)
    steps = rlds_beam.open_dataset(tmp_path / "out", unit="steps")
    with pytest.raises(UsageError, match=r"value 0 of action is already relative \(to=state\)"):
        steps.batches(2, chunk=3, relative_actions=RelativeActions())


@pytest.mark.parametrize(
    "known", ["6d", {"rotation": {"7d": [3]}}, {"rotation": {"6d": [5]}}, {"relative_to": "world"}]
)
def test_a_damaged_representation_is_one_line(tmp_path: Path, known: Any) -> None:
    data = write_arm(tmp_path / "arm", meaning={"representation": {"action": known, "other": {"relative_to": "state"}}})
    with pytest.raises(RldsBeamError, match=r"meaning\.json") as error:
        open_source(str(data))
    assert "\n" not in str(error.value)
