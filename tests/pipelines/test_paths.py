"""Paths of inputs and outputs that a command refuses or takes as they are, each with a plain message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import rlds_beam
from rlds_beam import storage
from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, shard_paths, write_dataset


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [make_episode(4, seed=i) for i in range(6)], shards=2)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one message of a command that is used wrongly."""
    assert main([str(one) for one in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("rlds-beam: ") and "Errno" not in err
    return err


@pytest.mark.parametrize("flags", [[], ["--overwrite"], ["--dry_run"]])
def test_an_output_inside_the_input_is_refused(source, tmp_path, capsys, flags) -> None:
    before = sorted(source.rglob("*"))
    said = refused(capsys, "convert", source, source / "out", *flags)
    assert f"OUTPUT={source / 'out'} is inside the input, {source}: choose a directory outside it" in said
    (tmp_path / "link").symlink_to(source)
    assert "is inside the input" in refused(capsys, "convert", source, tmp_path / "link" / "out", *flags)
    assert "is the input itself" in refused(capsys, "convert", source, source, *flags)
    assert sorted(source.rglob("*")) == before


def test_an_output_cannot_replace_the_output_that_it_reads(source, tmp_path, capsys) -> None:
    episodes = tmp_path / "episodes"
    assert main(["convert", str(source), str(episodes), "--to=rlds", "--workers=1"]) == 0
    capsys.readouterr()
    assert "is the input itself" in refused(capsys, "convert", episodes, episodes, "--overwrite")
    assert main(["check", "--rules", str(episodes), "--workers=1"]) == 0


def test_a_report_replaces_no_file_of_the_input(source, tmp_path, capsys) -> None:
    features = (source / "features.json").read_bytes()
    said = refused(capsys, "check", "--rules", source, f"--report={source}/features.json")
    assert "features.json is a file in the input: choose a path outside the dataset" in said
    assert "is a file in the input" in refused(capsys, "stats", source, f"--output={shard_paths(source)[0]}")
    assert (source / "features.json").read_bytes() == features
    assert main(["check", "--rules", str(source), f"--report={source}/report.json", "--workers=1"]) == 0
    capsys.readouterr()
    assert "is a file in the input" in refused(capsys, "check", source, f"--output={source}/features.json")
    assert "is a file in the input" in refused(capsys, "report", source, f"--output={shard_paths(source)[0]}")
    for _ in range(2):  # these names are never a dataset's data
        assert main(["report", str(source), f"--output={source}/report.html", "--workers=1"]) == 0


def test_names_with_commas(source, tmp_path, capsys) -> None:
    odd = shutil.copytree(source, tmp_path / "a,b")
    shards = shard_paths(odd)
    for given in (odd, shards[0], f"{odd}/*-of-*"):
        assert main(["check", "--rules", str(given), "--json", "--workers=1"]) == 0
        assert json.loads(capsys.readouterr().out)["records"] == (3 if given == shards[0] else 6)
    parts = ["nothing", "b", "c"]
    assert storage.paths_in(",".join(parts)) == parts
    assert storage.paths_in("gs://bucket/a,gs://bucket/b") == ["gs://bucket/a", "gs://bucket/b"]
    assert storage.paths_in(parts) == parts


def test_connectors_that_only_edit_get_the_usual_columns(source, tmp_path, capsys) -> None:
    (tmp_path / "c.yaml").write_text("- Normalize: {fields: [action]}\n")
    flags = ["--to=columns", f"--connectors={tmp_path / 'c.yaml'}", "--workers=1"]
    assert main(["convert", str(source), str(tmp_path / "edited"), *flags]) == 0
    assert main(["convert", str(source), str(tmp_path / "plain"), "--to=columns", "--workers=1"]) == 0
    edited, plain = (rlds_beam.open_dataset(tmp_path / name) for name in ("edited", "plain"))
    assert edited.fields.keys() == plain.fields.keys()
    assert abs(edited[:]["actions"]).max() == 1 != abs(plain[:]["actions"]).max()  # scaled to [-1, 1]


@pytest.mark.parametrize("format", ["rlds", "lerobot", "hdf5"])
def test_a_pointer_of_git_lfs_says_how_to_fetch_the_file(source, tmp_path, capsys, format) -> None:
    path, pattern = source, "*.tfrecord-*"
    if format == "lerobot":
        path, pattern = tmp_path / "lerobot", "meta/*/*/*.parquet"
        assert main(["convert", str(source), str(path), "--to=lerobot", "--fps=10", "--workers=1"]) == 0
    elif format == "hdf5":
        pytest.importorskip("h5py")
        path, pattern = tmp_path / "robot.hdf5", ""
    for file in path.glob(pattern) if pattern else [path]:
        file.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n")
    capsys.readouterr()
    for command in ("check", "inspect"):
        assert main([command, str(path)]) in (1, 2)
        said = capsys.readouterr().err
        assert "it is only a pointer of Git LFS; fetch the file with 'git lfs pull'" in said and "Errno" not in said
