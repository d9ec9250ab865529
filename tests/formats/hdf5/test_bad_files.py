"""Faulty files cost only their episodes, and reasons name the file, the group, and the dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export, read_back
from hdf5_robots import aloha, robomimic, robotwin

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays import hdf5_reader
from rlds_beam.formats.arrays.hdf5_reader import open_hdf5, read_array
from rlds_beam.formats.format_options import Hdf5Options
from rlds_beam.formats.hdf5.source import Hdf5Source
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.profiles.model import parse_profile
from rlds_beam.images.codecs import encode_jpeg


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
    "dtype": ("action", np.full((5, 14), 0.1), "action"),
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
    assert Hdf5Source.recognize(str(tmp_path)) is None
    assert Hdf5Source.recognize(str(tmp_path / "missing")) is None


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


def test_a_group_of_many_is_damaged(tmp_path: Path) -> None:
    robomimic(tmp_path, [4, 5, 6])
    edit(tmp_path / "low_dim.hdf5", replaced("data/demo_1/obs/robot0_eef_pos", None))
    bad = [one for one in read_back(tmp_path, "hdf5") if one.faults]
    assert "low_dim.hdf5: data/demo_1 has no obs/robot0_eef_pos" in str(bad[0].faults) and len(bad) == 1


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
        ("- 1", "not an object"),
        ("name: x\nepisodes: file\nfields: {action: a}\nrewards: r", "there is no entry rewards; did you mean reward"),
        ("name: x\nepisodes: 3\nfields: {action: a}", "p.yaml: episodes is 3, not text"),
        ("name: x\nepisodes: data/demo\nfields: {action: a}", "expected file, or groups"),
        ("name: x\nepisodes: file\nfields: {observation: a}", "no field is action"),
        ("name: x\nepisodes: file\nfields: {action: 'a/*'}", "different numbers of [*]"),
        ("name: x\nepisodes: file\nfields: {action: 'a[1'}", "is no dataset"),
        ("name: x\nepisodes: file\nfields: {is_last: a, action: b}", "use the keys terminal"),
        ("name: x\nepisodes: file\nfields: {action: a}\nsplits: y", "expected mask, folders, or names"),
        ("name: x\nepisodes: file\nfields: {action: {}}", "has no 'from'"),
        ("name: x\nepisodes: file\nfields: {action: a}\ntext: [{json: a}]", "expected one of attribute"),
        ("a: [", "not valid YAML"),
    ],
)
def test_bad_profiles(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_profile(text, "p.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "episodes: '{}'\nfields: {{action: a}}",
        "splits: '{}'\nfields: {{action: a}}",
        "'{}': 1\nfields: {{action: a}}",
        "fields: {{action: '{}['}}",
        "fields: {{action: '{}*'}}",
        "fields: {{'{}': {{}}}}",
    ],
)
def test_a_long_text_in_a_profile_is_shortened(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_profile(f"name: x\n{text.format('7' * 900)}", "p.yaml")
    assert 20 < len(str(error.value)) < 400


def test_profiles_that_do_not_fit(tmp_path: Path) -> None:
    aloha(tmp_path, [3])
    for name, said in (("libero", "has no data/demo_"), ("alhoa", "did you mean aloha"), ("no.yaml", "no such file")):
        assert said in refused(tmp_path, name)


def refused(path: Path, profile: str) -> str:
    with pytest.raises(UsageError) as error:
        open_source(str(path), from_="hdf5", options=Hdf5Options(profile=profile))
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


LARGE = 100_000


def share_values(path: Path, name: str, value: object, shape: tuple[int, ...]) -> None:
    """Writes a dataset in which every value of varying length is one large value of the file."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "a") as root:
        dtype = h5py.string_dtype() if isinstance(value, str) else h5py.vlen_dtype(np.uint8)
        values = root.create_dataset(name, shape, dtype)
        values[(0,) * len(shape)] = value
        root.flush()
        at, count = values.id.get_offset(), values.size
    content = bytearray(path.read_bytes())
    content[at : at + 16 * count] = bytes(content[at : at + 16]) * count
    path.write_bytes(content)


def test_a_text_that_claims_more_bytes_than_its_file(tmp_path: Path) -> None:
    """HDF5 would allocate them before it looks whether the file has them."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as root:
        texts = root.create_dataset("texts", (4, 2), h5py.string_dtype())
        texts[:] = [["a", "bc"]] * 4
        root.flush()
        at = texts.id.get_offset()
    content = bytearray(path.read_bytes())
    content[at + 5 * 16 : at + 5 * 16 + 4] = (3 << 30).to_bytes(4, "little")
    path.write_bytes(content)
    with open_hdf5(str(path)) as root:
        assert read_array(root["texts"], slice(0, 2)).tolist() == [[b"a", b"bc"]] * 2
        with pytest.raises(ValueError, match=r"/texts has a value of 3,221,225,472 bytes, but its file has [\d,]+"):
            read_array(root["texts"], slice(2, 4))


@pytest.mark.parametrize("names", [1, 20])
def test_images_that_share_their_bytes(tmp_path: Path, names: int) -> None:
    """All images of a small file may be the same large one, and many names may lead to one dataset."""
    h5py = pytest.importorskip("h5py")
    aloha(tmp_path, [400, 400])
    (jpeg,) = encode_jpeg(np.zeros((1, 32, 32, 3), np.uint8))
    large = np.frombuffer(jpeg.ljust(LARGE, b"\0"), np.uint8)
    for i in range(2):
        with h5py.File(tmp_path / f"episode_{i}.hdf5", "a") as root:
            del root["observations/images"]
            images = root.create_dataset("observations/images/cam", (400,), h5py.vlen_dtype(np.uint8))
            images[:] = [large[: len(jpeg)]] * 400
            for k in range(1, names):
                root[f"observations/images/cam_{k}"] = images
    if names == 1:
        edit(tmp_path / "episode_1.hdf5", replaced("observations/images/cam", None))
        share_values(tmp_path / "episode_1.hdf5", "observations/images/cam", large, (400,))
    first, second = (str(one.faults) for one in read_back(tmp_path, "hdf5"))
    if names == 1:
        assert first == "()" and "cam claims more bytes than its file has" in second
    else:
        assert "its arrays have" in first and "its arrays have" in second


@pytest.mark.parametrize("shape", [(400,), (400, 3), (2, 400)])
def test_text_that_shares_its_bytes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    share_values(tmp_path / "text.h5", "text", "x" * LARGE, shape)
    said = "text claims more bytes than its file has"
    with open_hdf5(str(tmp_path / "text.h5")) as root, pytest.raises(ValueError, match=said):
        read_array(root["text"])


def test_filter_keys_that_share_their_bytes(tmp_path: Path) -> None:
    robomimic(tmp_path, [4, 5, 6])
    edit(tmp_path / "low_dim.hdf5", replaced("mask/train", None))
    share_values(tmp_path / "low_dim.hdf5", "mask/train", "x" * LARGE, (400,))
    with pytest.raises(UsageError, match="train claims more bytes than its file has"):
        open_source(str(tmp_path), from_="hdf5")


def test_attributes_of_many_texts_are_not_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as root:
        root.attrs["task"] = ["a", "b"]
    with open_hdf5(str(tmp_path / "x.h5")) as opened, pytest.raises(TypeError, match="neither numbers nor one text"):
        opened.attribute("task")


def test_values_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece may be smaller than a chunk, a row, or a value, and begin anywhere."""
    h5py = pytest.importorskip("h5py")
    numbers, texts = np.arange(60).reshape(20, 3), np.array([f"{i}" * i for i in range(60)], object).reshape(20, 3)
    with h5py.File(tmp_path / "x.h5", "w") as root:
        root.create_dataset("numbers", data=numbers, chunks=(7, 2))
        root.create_dataset("texts", data=texts, dtype=h5py.string_dtype())
        root["scalar"], root["fixed"] = "text", np.array([b"a", b"bc"])
    with open_hdf5(str(tmp_path / "x.h5")) as opened:
        for size in (1, 30, 100_000, 1 << 30):
            monkeypatch.setattr(hdf5_reader, "_MAX_PIECE_BYTES", size)
            for rows in (None, slice(3, 16), slice(-1, None), slice(5, 5), slice(18, 99)):
                some = slice(None) if rows is None else rows
                assert np.array_equal(read_array(opened["numbers"], rows), numbers[some])
                expected = [text.encode() for text in texts[some].flat]
                assert [*read_array(opened["texts"], rows).flat] == expected
            assert read_array(opened["scalar"])[()] == b"text"
            assert [*read_array(opened["fixed"])] == [b"a", b"bc"]


def test_a_proposal_quotes_names_that_yaml_reads_as_something_else(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as root:
        for name in ("action", "on", "1", "null", "\N{GRINNING FACE}", "a: b", "x\ty"):
            root[name] = np.zeros((4, 2))
    with pytest.raises(UsageError) as error:
        open_source(str(tmp_path), from_="hdf5")
    (tmp_path / "profile.yaml").write_text("\n".join(error.value.args[1:]), "utf-8")
    source = open_source(str(tmp_path), from_="hdf5", options=Hdf5Options(profile=str(tmp_path / "profile.yaml")))
    assert {"observation/on", "observation/1", "observation/null", "observation/\N{GRINNING FACE}"} <= {
        *source.schema.steps
    }
