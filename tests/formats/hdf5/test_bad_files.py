"""Faulty files cost only their episodes, and reasons name the file, the group, and the dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export, read_back
from hdf5_robots import aloha, robotwin

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import ProfileOptions
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.profiles.model import parse_profile


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "a") as root:
        change(root)


def replaced(name: str, values: Any) -> Callable[[Any], None]:
    def change(root: Any) -> None:
        del root[name]
        if values is not None:
            root[name] = values

    return change


FAULTS = {
    "missing": ("observations/qvel", None, "episode_1.hdf5 has no observations/qvel"),
    "shape": ("observations/qpos", np.zeros((5, 7), "f4"), "episode_1.hdf5: observations/qpos holds float32[5, 7]"),
    "rows": ("observations/qpos", np.zeros((3, 14), "f4"), "observations/qpos has 3 rows, but action has 5"),
    "text": ("action", np.full((5, 14), "x", "S1"), "action holds bytes[5, 14]"),
    "size": ("observations/images/cam_high", np.zeros((5, 16, 16, 3), "u1"), "cam_high holds uint8[5, 16, 16, 3]"),
    "group": ("action/x", np.zeros(5), "episode_1.hdf5"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_episode_that_differs_is_rejected(tmp_path: Path, fault: str) -> None:
    name, values, said = FAULTS[fault]
    aloha(tmp_path / "in", [4, 5, 6])
    edit(tmp_path / "in/episode_1.hdf5", replaced(name.split("/x")[0], None))
    if values is not None:
        edit(tmp_path / "in/episode_1.hdf5", lambda root: root.__setitem__(name, values))
    report = export(tmp_path / "in", tmp_path / "out", "rlds", from_="hdf5", accept=("schema_mismatch",))
    assert (report.items_written, report.rejected) == (2, 1)
    (rejected,) = (tmp_path / "out").rglob("rejected/*.jsonl")
    assert said in rejected.read_text()


@pytest.mark.parametrize("cut", [0, 100, 5000])
def test_damaged_files(tmp_path: Path, cut: int) -> None:
    aloha(tmp_path / "in", [4, 5, 6])
    file = tmp_path / "in/episode_0.hdf5"  # the schema comes from the next one
    file.write_bytes(file.read_bytes()[:cut])
    first, *rest = read_back(tmp_path / "in", "hdf5")
    assert "episode_0.hdf5" in str(first.faults) and not any(one.faults for one in rest)
    assert [len(one) for one in rest] == [5, 6]


def test_no_readable_file(tmp_path: Path) -> None:
    (tmp_path / "episode_0.hdf5").write_bytes(b"no")
    with pytest.raises(UsageError, match=r"episode_0\.hdf5"):
        open_source(str(tmp_path), from_="hdf5")


def test_short_and_empty_episodes(tmp_path: Path) -> None:
    aloha(tmp_path / "in", [4, 1, 5])
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "in/episode_2.hdf5", "a") as root:
        for name in ("action", "observations/qpos", "observations/qvel"):
            del root[name]
            root[name] = np.zeros((0, 14), "f4")
        for name, shape in (("cam_high", (0, 32, 32, 3)), ("cam_low", (0, 700))):
            del root[f"observations/images/{name}"]
            root[f"observations/images/{name}"] = np.zeros(shape, "u1")
    whole, one, empty = read_back(tmp_path / "in", "hdf5")
    assert (len(whole), len(one), len(empty)) == (4, 1, 0)
    assert one.steps["is_first"].tolist() == one.steps["is_last"].tolist() == [True]
    report = export(tmp_path / "in", tmp_path / "out", "rlds", from_="hdf5")
    assert report.items_written + report.rejected == 3 and report.rejected >= 1


def test_an_unknown_file_gets_a_proposal_that_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "my robot.h5", "w") as root:
        for i in range(3):
            root[f"runs/run{i}/command"] = np.zeros((4, 2))
            root[f"runs/run{i}/sensors/joints"] = np.ones((4, 3), "f4")
            root[f"runs/run{i}/actions"] = np.ones((4, 2), "f4")
    assert main(["inspect", str(tmp_path / "my robot.h5"), "--from=hdf5"]) == 2
    said = capsys.readouterr().err
    profile = said.split("\n\n", 1)[1]
    assert "episodes: runs/run*" in profile and "observation/sensors/joints" in profile
    (tmp_path / "profile.yaml").write_text(profile)
    assert main(["check", "--rules", str(tmp_path), "--from=hdf5", f"--profile={tmp_path / 'profile.yaml'}"]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nepisodes: file\nfields: {action: a}\nrewards: r", "unknown field `rewards`"),
        ("name: x\nepisodes: data/demo\nfields: {action: a}", "expected file, or groups"),
        ("name: x\nepisodes: file\nfields: {action: 'a/*'}", "different numbers of [*]"),
        ("name: x\nepisodes: file\nfields: {action: 'a[1'}", "is no dataset"),
        ("name: x\nepisodes: file\nfields: {action: a}\ntext: [{json: a}]", "needs either from or file"),
    ],
)
def test_bad_profiles(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_profile(text, "p.yaml")


def test_profiles_that_do_not_fit(tmp_path: Path) -> None:
    aloha(tmp_path, [3])
    for name, said in (
        ("libero", "has no data/demo_"),
        ("alhoa", "no such profile; choose"),
        ("no.yaml", "no such profile"),
    ):
        assert said in refused(tmp_path, name)


def refused(path: Path, profile: str) -> str:
    with pytest.raises(UsageError) as error:
        open_source(str(path), from_="hdf5", options=ProfileOptions(profile=profile))
    return str(error.value)


def test_text_next_to_the_data_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    robotwin(tmp_path, [3, 4])
    source = open_source(str(tmp_path), from_="hdf5")
    assert [source.companions(shard) for shard in source.splits[0].shards] == [
        [str(tmp_path / f"instructions/episode{i}.json")] for i in range(2)
    ]
    (tmp_path / "instructions/episode1.json").write_text(json.dumps({"seen": []}))
    first, second = read_back(tmp_path, "hdf5")
    assert all(first.steps["language_instruction"]) and not any(second.steps["language_instruction"])


def test_a_proposal_quotes_names_that_yaml_reads_as_something_else(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as root:
        for name in ("action", "on", "1", "null", "\N{GRINNING FACE}", "a: b", "x\ty"):
            root[name] = np.zeros((4, 2))
    with pytest.raises(UsageError) as error:
        open_source(str(tmp_path), from_="hdf5")
    (tmp_path / "profile.yaml").write_text("\n".join(error.value.args[1:]), "utf-8")
    source = open_source(str(tmp_path), from_="hdf5", options=ProfileOptions(profile=str(tmp_path / "profile.yaml")))
    assert {"observation/on", "observation/1", "observation/null", "observation/\N{GRINNING FACE}"} <= {
        *source.schema.steps
    }
