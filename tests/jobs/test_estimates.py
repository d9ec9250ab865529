"""The predicted size of an output, and disks with too little room."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from disks import small_filesystem
from golden_data import Datasets

from rlds_beam.cli.main import main
from rlds_beam.jobs.convert import prepare
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.testing import make_episode, write_dataset

CASES = (
    "plain",
    "plain --items=episodes",
    "plain --items=sequences --sequence_length=5 --pad_end_of_episodes --tile_end_of_episodes",
    "plain --items=sequences --sequence_length=3 --across_episodes",
    "many --shards=5",
    "many --split=train[:50%]",
    "gzip --items=frames",
    "array_record",
    "nested --cast=observation/half=float32,observation/open=uint8 --keep=episode_key,observation/instruction",
    "png",
    "png --images=jpeg",
    "jpeg",
    "jpeg --images=jpeg --items=sequences --sequence_length=3",
    "broken --accept=non_finite",
)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    return Datasets(tmp_path_factory.mktemp("size"))


def written(output):
    manifest = json.loads((output / "manifest.json").read_text())
    return manifest["bytes"] + sum(entry["bytes"] for entry in manifest["rejected"])


@pytest.mark.parametrize("case", CASES)
def test_it_is_close(case, datasets, tmp_path, capsys):
    if case.startswith("array_record"):
        pytest.importorskip("array_record")
    dataset, *flags = case.split()
    command = ["convert", str(datasets[dataset]), str(tmp_path / "out"), "--accept=duplicate_episode", *flags]
    if "--accept=non_finite" in flags:
        command = [*command[: -len(flags) - 1], *flags, "--accept=non_finite,duplicate_episode"]
    assert main([*command, "--dry_run", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)["output_bytes"]
    assert main(command) in (0, 3)
    assert predicted == pytest.approx(written(tmp_path / "out"), rel=0.1)
    if "--across_episodes" not in case:
        capsys.readouterr()
        inspect = [flag for flag in flags if not flag.startswith("--shards")]
        assert main(["inspect", str(datasets[dataset]), "--to=trajectories", *inspect, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["output_bytes"] == pytest.approx(predicted, rel=0.05)


def test_it_is_close_for_a_sample(tmp_path):
    """30 MB of episodes of 10 to 400 steps, of which 4 MB are read."""
    rng = np.random.default_rng(0)
    episodes = [make_episode(int(rng.integers(10, 400)), seed=i, observation=100) for i in range(300)]
    source = str(write_dataset(tmp_path / "data", episodes, shards=3))
    output = tmp_path / "out"
    job = prepare(ConvertOptions.create(source, str(output), items="sequences", sequence_length=8, stride_length=4))
    predicted = job.size
    command = ["convert", source, str(output), "--items=sequences", "--sequence_length=8", "--stride_length=4"]
    assert main([*command, "--accept=duplicate_episode"]) == 0
    assert predicted == pytest.approx(written(output), rel=0.1)


@pytest.mark.parametrize("flags", [("--items=sequences", "--sequence_length=16"), ("--items=episodes",)])
def test_it_is_close_for_a_record_that_is_larger_than_a_sample(tmp_path, capsys, flags):
    source = str(write_dataset(tmp_path / "data", [make_episode(2000, seed=i, observation=800) for i in range(2)]))
    output = tmp_path / "out"
    assert main(["convert", source, str(output), *flags, "--dry_run", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)["output_bytes"]
    assert main(["convert", source, str(output), *flags]) == 0
    assert predicted == pytest.approx(written(output), rel=0.1)


@pytest.fixture
def source(tmp_path):
    episodes = [make_episode(50, seed=i, observation=200) for i in range(20)]
    return str(write_dataset(tmp_path / "data", episodes))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_without_room_is_refused_before_any_work(source, tmp_path, capsys):
    with small_filesystem(tmp_path / "disk", "1m") as disk:
        output = disk / "new" / "out"
        for flags in ([], ["--dry_run"]):
            assert main(["convert", source, str(output), *flags]) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert "needs about 1.7 MB, but its file system has only 1.0 MB free" in err
            assert len(err.splitlines()) == 1
            assert not list(disk.rglob("*.json"))
        frames = ["convert", source, str(output), "--items=frames"]
        assert main(frames) == 0
        assert main([*frames, "--terminal_discount=boundary", "--overwrite"]) == 0  # removing the old output makes room


def test_a_merged_output_needs_room_twice(source, tmp_path, capsys, monkeypatch):
    command = ["convert", source, str(tmp_path / "out"), "--to=numpy"]
    assert main([*command, "--dry_run", "--json"]) == 0
    size = json.loads(capsys.readouterr().out)["output_bytes"]
    usage = shutil.disk_usage(tmp_path)
    for room, code in ((1.9, 2), (2.1, 0)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, room=room: usage._replace(free=int(size * room)))
        assert main(command) == code


def test_finished_work_needs_no_room(source, tmp_path, monkeypatch):
    command = ["convert", source, str(tmp_path / "out"), "--shards=4"]
    assert main(command) == 0
    size = written(tmp_path / "out")
    next((tmp_path / "out").glob("_commits/*.json")).unlink()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=size * 2 // 10))
    assert main(command) == 2
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=size * 3 // 10))
    assert main(command) == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    assert main(command) == 0  # nothing left to do
