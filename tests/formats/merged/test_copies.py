"""The same episode in two datasets of different formats, merged or appended: found, counted, and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from appending import append
from exchanging import export
from hypothesis import given, settings
from hypothesis import strategies as st
from motions import ACTION, STATE, arm, make

from rlds_beam.checking.duplicates import Digested, digest, duplicates_among, find_duplicates, without_images
from rlds_beam.cli.main import main
from rlds_beam.encoding.checked_json import read_json
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.output.commits import read_commits
from rlds_beam.output.known_copies import KnownCopies
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.testing import write_dataset

EPISODES = [arm(seed) for seed in range(8)]
SHARED = (2, 3, 5)
"""The episodes that both datasets have."""

OTHERS = [EPISODES[i] for i in SHARED] + [arm(seed) for seed in range(50, 53)]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_dataset(tmp_path_factory.mktemp("first"), EPISODES, name="first", shards=2))


def write_hdf5(directory: Path, episodes: list[Any]) -> str:
    """Writes the episodes as robomimic does, in float64."""
    h5py = pytest.importorskip("h5py")
    directory.mkdir()
    with h5py.File(directory / "demos.hdf5", "w") as root:
        data = root.create_group("data")
        data.attrs["total"] = sum(map(len, episodes))
        data.attrs["env_args"] = "{}"
        for i, episode in enumerate(episodes):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = len(episode)
            demo["actions"] = np.asarray(episode.steps[ACTION], np.float64)
            demo["obs/state"] = np.asarray(episode.steps[STATE], np.float64)
            demo["rewards"], demo["dones"] = np.zeros(len(episode)), np.arange(len(episode)) == len(episode) - 1
    return str(directory)


def write_as(to: str, directory: Path) -> str:
    if to == "hdf5":
        return write_hdf5(directory, OTHERS)
    data = write_dataset(directory / "source", OTHERS, name="other")
    export(data, directory / to, to, **({"fps": 10} if to == "lerobot" else {}))
    return str(directory / to)


@pytest.mark.parametrize("to", ["lerobot", "hdf5", "numpy", "zarr"])
def test_a_copy_in_another_format_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str, to: str
) -> None:
    inputs = [first, write_as(to, tmp_path / "other")]
    arguments = ["convert", *inputs, "--merge_fields=common", "--to=rlds", "--json", "--max_rejected=3"]
    found = []
    for workers in (1, 2) if to == "lerobot" else (1,):
        assert main([*arguments, f"{tmp_path}/{workers}", f"--workers={workers}"]) == 0
        report = json.loads(capsys.readouterr().out)
        found.append(report["rules"]["duplicate_episode"])
        files = {path.name: path.read_bytes() for path in (tmp_path / str(workers)).glob("*.tfrecord*")}
        found.append(files)
    assert found[:2] == found[-2:]
    assert found[0]["rejected"] == 3
    details = [sample["detail"] if isinstance(sample, dict) else sample[1] for sample in found[0]["samples"]]
    assert len(details) == 3
    for detail in details:
        assert " has the same actions and observations as first/1.0.0:train:0000" in detail
        assert not detail.startswith("merged")
    assert main([*arguments, f"{tmp_path}/kept", "--accept=duplicate_episode"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 14


def test_other_instructions_are_other_episodes(tmp_path: Path, first: str) -> None:
    say = [e.with_columns({"language_instruction": np.full(len(e), b"throw it", object)}) for e in OTHERS]
    other = write_dataset(tmp_path, say, name="other")
    source = open_source([first, str(other)])
    assert len(find(source)) == 0
    same = write_dataset(
        tmp_path, [e.with_columns({"reward": np.ones(len(e), np.float32)}) for e in OTHERS], name="same"
    )
    assert len(find(open_source([first, str(same)]))) == 3


def find(source: Any) -> Any:
    framing = Framing(source)
    ranges = plan_ranges(source, starts=framing.record_starts)
    return find_duplicates(source, framing, [(work.split, segment) for work in ranges for segment in work.segments])


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_the_order_of_ranges_does_not_matter(tmp_path_factory: pytest.TempPathFactory, first: str, data: Any) -> None:
    other = write_dataset(
        tmp_path_factory.mktemp("other"), [*OTHERS[3:], *OTHERS[:3], OTHERS[0]], name="other", shards=3
    )
    source = open_source([first, str(other)])
    ranges = [(work.split, segment) for work in plan_ranges(source) for segment in work.segments]
    none = duplicates_among(source.dataset, [])
    parts = [digest(without_images(source), *part) for part in ranges]
    cut = [
        Digested(p.split, p.shard, p.positions[rows], p.digests[rows])
        for p in data.draw(st.permutations(parts))
        for rows in np.split(np.arange(len(p.positions)), [data.draw(st.integers(0, len(p.positions)))])
    ]
    found = none.with_copies(source, cut)
    assert found == none.with_copies(source, parts) and len(found) == 4
    assert [found.describe(key) for key in found] == [none.with_copies(source, parts).describe(key) for key in found]


@pytest.mark.parametrize("to", ["rlds", "numpy"])
@pytest.mark.parametrize("out", ["rlds", "trajectories", "lerobot"])
def test_a_copy_of_an_episode_in_the_output_is_not_appended(tmp_path: Path, first: str, to: str, out: str) -> None:
    other, options = write_as(to, tmp_path / "other"), {"to": out, **({"fps": 10} if out == "lerobot" else {})}
    append(first, tmp_path / "out", options)
    report = append(other, tmp_path / "out", options)
    assert report.rules["duplicate_episode"].rejected == 3 and report.records == 6
    (sample, *_) = report.rules["duplicate_episode"].samples
    assert sample.detail.startswith("the output has the same actions and observations already: episode ")
    commits = read_commits(str(tmp_path / "out")).values()
    known = KnownCopies.of(commits)
    assert not known.unknown and len(known.digests) == 2 * 11 == 2 * sum(c.report["valid"] for c in commits)
    append(other, tmp_path / "kept", {**options, "accept": ("duplicate_episode",)})
    kept = append(first, tmp_path / "kept", {**options, "accept": ("duplicate_episode",)})
    assert kept.records == 8 and not kept.rules


def test_an_output_without_digests_says_that_it_was_not_compared(tmp_path: Path, first: str) -> None:
    out = tmp_path / "out"
    append(first, out, {"to": "rlds"})
    paths = sorted((out / "_commits").glob("*.json"))
    for path in paths:
        path.write_text(json.dumps({name: value for name, value in read_json(str(path)).items() if name != "digests"}))
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.jobs.options import ConvertOptions

    job = prepare(ConvertOptions.create(write_as("rlds", tmp_path / "other"), str(out), append=True, to="rlds"))
    assert job.convert_here().records == 6
    assert any("copies of their episodes are not found" in note for note in job.notes())


def test_damaged_digests_are_an_error_of_one_line(tmp_path: Path, first: str) -> None:
    append(first, tmp_path / "out", {"to": "rlds"})
    path = next((tmp_path / "out/_commits").glob("*.json"))
    for wrong in ("a", "####", "AAAA"):
        path.write_text(json.dumps({**read_json(str(path)), "digests": wrong}))
        with pytest.raises(UsageError, match=rf"_commits/{path.stem}.json is damaged or not written by rlds-beam"):
            append(write_as("rlds", tmp_path / wrong), tmp_path / "out", {"to": "rlds"})


def test_a_void_last_step_makes_no_difference(tmp_path: Path) -> None:
    states, actions = (np.asarray(EPISODES[0].steps[path]) for path in (STATE, ACTION))
    one = write_dataset(tmp_path, [make(0, states, actions)], name="one")
    two = write_dataset(tmp_path, [make(1, states, actions, void=True)], name="two")
    (key,) = find(open_source([str(one), str(two)]))
    assert key == EpisodeKey("merged/1.0.0", "train", 1, 0)
