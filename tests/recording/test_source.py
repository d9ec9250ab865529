"""`rlds-beam record --to=…`: any format, with the guarantees of a conversion."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkout import SUPPORT
from directories import bytes_of
from recorded import GREEDY, WALK, get_episodes, recorded

from rlds_beam.cli.main import main
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Segment
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.reading.reader import EpisodeReader

FLAGS = (f"--env={WALK}", f"--policy={GREEDY}", "--episodes=40", "--progress=none")
CONNECTORS = "- MinimumLength: {transitions: 4}\n- Normalize: {fields: [observation]}\n"
COLUMNS = "- AddObservationsFromEpisodesToBatch\n- AddColumnsFromEpisodesToTrainBatch\n"
FORMATS = {
    "lerobot": ("--to=lerobot", "--fps=10"),
    "columns": ("--to=columns", "--connectors=columns.yaml"),
    "trajectories": ("--to=trajectories", "--items=sequences", "--sequence_length=3", "--keep=episode_key"),
    "rlds": ("--to=rlds", "--connectors=connectors.yaml"),
    "numpy": ("--to=numpy",),
}
NAMES_THE_SOURCE = {"plan.json", "manifest.json", "provenance.json", "metadata.json", "fitted.json", "README.md"}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    monkeypatch.chdir(tmp_path)
    Path("connectors.yaml").write_text(CONNECTORS)
    Path("columns.yaml").write_text(CONNECTORS + COLUMNS)


def data_of(output: str) -> dict[str, bytes]:
    """The files of an output, without those that name the source (commits have the digest of the plan)."""
    files = bytes_of(Path(output))
    return {
        file: files[file] for file in files if file not in NAMES_THE_SOURCE and file[0] != "_" and file[:7] != "inputs-"
    }


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """The path of the episodes as RLDS."""
    path = str(tmp_path_factory.mktemp("recording") / "rlds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT))
        assert main(["record", path, *FLAGS, "--shards=1"]) == 0
    return path


@pytest.mark.parametrize("to", FORMATS)
def test_any_format_is_written_at_once(to, recording):
    """The output equals that of recording RLDS first and then converting it."""
    assert main(["record", "direct", *FLAGS, "--shards=1", *FORMATS[to]]) == 0
    assert main(["convert", recording, "converted", *FORMATS[to], "--progress=none"]) == 0
    assert data_of("direct") == data_of("converted")


def test_connectors_drop_and_count(capsys):
    assert main(["record", "out", *FLAGS, *FORMATS["rlds"]]) == 0
    out = capsys.readouterr().out
    report = json.loads(Path("out/report.json").read_text())
    assert report["records"] == 40
    assert 0 < report["items_written"] == 40 - report["dropped"]["MinimumLength"]["records"] < 40
    assert "dropped   1 record by MinimumLength" in out
    assert all(len(episode["steps/reward"]) > 4 for episode in get_episodes(Path("out")))
    assert json.loads(Path("out/metadata.json").read_text())["policies"] == ["greedy"]


def test_an_episode_that_breaks_a_rule_is_rejected(capsys):
    flags = ["--env=recorded_environments:faulty", "--policy=random", "--episodes=12", "--progress=none"]
    assert main(["record", "out", *flags]) == 3
    report = json.loads(Path("out/report.json").read_text())
    assert (report["records"], report["rejected"]) == (12, 3)
    assert len(get_episodes(Path("out"))) == 9
    assert "non_finite" in capsys.readouterr().out
    assert main(["record", "all", *flags, "--accept=non_finite"]) == 0
    assert len(get_episodes(Path("all"))) == 12


@pytest.mark.parametrize("env", ["walk", "everything"])
def test_an_episode_equals_its_decoded_record(env, tmp_path):
    job = recorded(
        tmp_path / "out", "random", env=f"recorded_environments:{env}", episodes=5, obtain_info=env == "walk"
    )
    decoder = EpisodeDecoder(job.source.schema)
    (split,) = job.source.splits
    for shard in split.shards:
        for episode in EpisodeReader(job.source).read("train", Segment(shard)):
            assert not episode.faults
            decoded = decoder.decode(bytes(episode.payload), episode.key)
            assert {**decoded.metadata} == {**episode.metadata}
            assert list(decoded.steps) == list(episode.steps)
            for path, column in decoded.steps.items():
                own = episode.steps[path]
                assert own.dtype == column.dtype
                if isinstance(own, EncodedImages):
                    assert isinstance(column, EncodedImages)
                    assert (own.shape, own.encoding) == (column.shape, column.encoding)
                    own, column = own.data, column.data
                np.testing.assert_array_equal(own, column)


def test_keys_equal_those_of_the_recorded_dataset(tmp_path):
    from rlds_beam import open_source

    job = recorded(tmp_path / "out", episodes=30)
    source = open_source(str(tmp_path / "out"))

    def keys(source):
        reader = EpisodeReader(source)
        return [
            episode.key
            for split in source.splits
            for shard in split.shards
            for episode in reader.read(split.name, Segment(shard))
        ]

    assert keys(source) == keys(job.source)


def test_dry_run_says_what_would_be_rolled_out(capsys):
    assert main(["record", "out", *FLAGS, *FORMATS["lerobot"], "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert "input     " in out and ": 40 episodes\n" in out
    assert not Path("out").exists()
