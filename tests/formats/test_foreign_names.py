"""Names from datasets (splits, cameras) become parts of paths, which never lead out of an output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import pairs
from directories import bytes_of
from exchanging import commit, export, open_job, read_back

from rlds_beam import naming, storage
from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.registry import OUTPUTS
from rlds_beam.output import plans
from rlds_beam.testing import make_episode, write_dataset

EVIL = ["a/../../victim/testing-train", "/{victim}/testing-train", "..", "a\n", "a\\b", ".a", "", "x" * 300, "\ud800"]
OPTIONS: dict[str, dict[str, Any]] = {
    **{to: {} for to in OUTPUTS},
    "lerobot": {"fps": 10},
    "lerobot 2.1": {"fps": 10, "lerobot_version": "2.1"},
}
"""The options of `prepare` for each output."""


def output_options(name: str) -> dict[str, Any]:
    to = {"lerobot 2.1": "lerobot"}.get(name, name)
    return {"to": to, **OPTIONS[name]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [make_episode(4, seed=i, observation={"state": 3}) for i in range(3)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Another dataset, next to the output."""
    return write_dataset(tmp_path / "victim", [make_episode(3, seed=9)]).parent


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


# Names in the metadata of a dataset


NAMED: dict[str, tuple[str, str, dict[str, Any], str, Callable[[Any, str], Any]]] = {
    "a split of LeRobot 3.0": (
        "lerobot",
        "lerobot",
        {"fps": 10},
        "meta/info.json",
        lambda f, name: f.update(splits={name: "0:3"}),
    ),
    "a split of LeRobot 2.1": (
        "lerobot",
        "lerobot",
        {"fps": 10, "lerobot_version": "2.1"},
        "meta/info.json",
        lambda f, name: f.update(splits={name: "0:3"}),
    ),
    "a split of RLDS": ("rlds", "rlds", {}, "dataset_info.json", lambda f, name: f["splits"][0].update(name=name)),
    "a dataset of RLDS": ("rlds", "rlds", {}, "dataset_info.json", lambda f, name: f.update(name=name)),
    "a config of RLDS": ("rlds", "rlds", {}, "dataset_info.json", lambda f, name: f.update(configName=name)),
}
"""For each kind of name: the output, the source, options, the file with the name, and how to change it."""


@pytest.fixture(scope="module")
def exported(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Exports a dataset in a format, once for all tests."""
    made: dict[str, Path] = {}

    def export_once(to: str, **options: Any) -> Path:
        name = json.dumps([to, options])
        if name not in made:
            made[name] = tmp_path_factory.mktemp("exported") / "out"
            export(dataset, made[name], to, **options)
        return made[name]

    return export_once


@pytest.mark.parametrize(("what", "evil"), pairs(NAMED, EVIL), ids=lambda name: repr(name[:20]))
def test_a_name_that_is_a_path_is_refused_when_the_source_is_opened(exported, tmp_path, victim, capsys, what, evil):
    to, kind, options, file, change = NAMED[what]
    if not evil and what == "a config of RLDS":
        return  # no config
    path = tmp_path / "foreign"
    path.symlink_to(exported(to, **options), target_is_directory=True)
    before, original = bytes_of(victim), (path / file).read_text()
    try:
        edit(path / file, lambda found: change(found, evil.format(victim=victim)))
        code = main(["convert", str(path), str(tmp_path / "out"), f"--from={kind}", "--to=rlds", "--workers=1"])
    finally:
        (path / file).write_text(original)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert str(path) in err
    assert not (tmp_path / "out").exists()
    assert bytes_of(victim) == before


OWN = "own_formats:NamedSource"


@pytest.mark.parametrize("evil", EVIL, ids=[repr(name[:20]) for name in EVIL])
def test_names_of_a_users_source_are_also_checked(dataset, evil):
    assert open_source(f"{dataset},é-1.0+b/config/1.0.0,train_2", from_=OWN).name == "é-1.0+b"
    for names in (f"a/1.0.0,{evil}", f"{evil}/1.0.0,train"):
        with pytest.raises(UsageError, match=f"--from={OWN}"):
            open_source(f"{dataset},{names}", from_=OWN)


# Even without those checks, the output refuses such file names


def convert_split(dataset: Path, output: Path, to: str, split: str) -> None:
    """Converts a dataset whose split has this name, without a runner."""
    job = open_job(f"{dataset},testing/1.0.0,{split}", output, from_=OWN, **output_options(to))
    job.make_ready()
    for work in job.ranges:
        job.converter.convert_range(work, {})
    commit(job)


@pytest.mark.parametrize("to", OPTIONS)
def test_nothing_is_written_outside_even_with_unchecked_names(dataset, tmp_path, victim, monkeypatch, to):
    monkeypatch.setattr(naming, "check_name", lambda name, what: name)
    monkeypatch.setattr(plans, "check_files", lambda files: None)
    before = bytes_of(victim)
    with pytest.raises(UsageError, match="is not the name of a file below"):
        convert_split(dataset, tmp_path / "out", to, "../victim/testing-train")
    assert bytes_of(victim) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"victim", "out"}


@pytest.mark.parametrize("name", ["_commits", "rejected", "plan.json", "manifest.json", "features.json"])
def test_a_split_cannot_use_a_reserved_name(dataset, tmp_path, name):
    with pytest.raises(UsageError, match="rename the split"):
        open_job(f"{dataset},testing/1.0.0,{name}", tmp_path / "out", from_=OWN, to="numpy")
    assert not (tmp_path / "out").exists()


# storage


@pytest.mark.parametrize("root", ["", "s3://bucket/x", "gs://bucket"])
def test_below_gives_paths_below_only(tmp_path, root):
    root = root or str(tmp_path)
    assert storage.below(root, "a", "b/c.d") == f"{root}/a/b/c.d"
    for name in ("..", "a/../b", "/etc", "a//b", "./a", "", "a/", "s3://other/x", "a\0", 7):
        with pytest.raises(UsageError, match="is not the name of a file below"):
            storage.below(root, name)
        with pytest.raises(UsageError, match="is not the name of a file below"):
            storage.remove_files(root, [name])


def test_below_follows_no_link_out(tmp_path):
    real, elsewhere = tmp_path / "real", tmp_path / "real2"
    for path in (real / "inside", elsewhere):
        path.mkdir(parents=True)
    (elsewhere / "mine").write_text("mine")
    (tmp_path / "out").symlink_to(real)  # the user's own link
    (real / "out").symlink_to(elsewhere)
    (real / "in").symlink_to("inside")
    output = str(tmp_path / "out")
    assert storage.below(output, "in/x") == f"{output}/in/x"
    for act in (lambda: storage.below(output, "out", "x"), lambda: storage.remove_files(output, ["out/mine"])):
        with pytest.raises(UsageError, match="is a link that leads out of"):
            act()
    assert (elsewhere / "mine").read_text() == "mine"


# Every written path comes from `storage.below`


NAMES = {
    "newline": "two\nlines",
    "long": "x" * 300,
    "dot": ".",
    "dots": "..",
    "NUL": "a\0b",
    "dot below": "observation/.",
    "nothing below": "observation//x",
    "plain": "observation/more é",
}
REFUSED = {
    "numpy": {"newline", "long", "dot", "dots", "NUL"},
    "lerobot": {"newline", "long", "dot", "dots", "NUL"},
    "zarr": {"newline", "long", "NUL"},
}


def named(tmp_path: Path, *names: str) -> Path:
    episodes = [make_episode(3, seed=i, observation={"state": 2}, action=2) for i in range(2)]
    more = {name: np.arange(3, dtype=np.float32) + i for i, name in enumerate(names)}
    return write_dataset(tmp_path / "data", [e.replace(steps={**e.steps, **more}) for e in episodes])


@pytest.mark.parametrize(("to", "name"), [(to, name) for to, names in REFUSED.items() for name in sorted(names)])
def test_a_name_that_cannot_be_stored_is_refused_before_any_work(tmp_path, to, name):
    data = named(tmp_path, NAMES[name])
    with pytest.raises(UsageError, match=f"--to={to}: the field .* cannot be stored: "):
        open_job(data, tmp_path / "out", to, **({"fps": 10} if to == "lerobot" else {}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", OUTPUTS)
def test_all_other_names_are_stored(tmp_path, to):
    names = [NAMES[name] for name in sorted({*NAMES} - REFUSED.get(to, set()))]
    data = named(tmp_path, *names)
    report = export(data, tmp_path / "out", to, **({"fps": 10} if to == "lerobot" else {}))
    assert report.rejected == 0 and report.items_written
    if to in ("lerobot", "rlds", "zarr"):
        root = next((file.parent for file in (tmp_path / "out").rglob("features.json")), tmp_path / "out")
        for episode in read_back(root, to):
            for i, name in enumerate(names):
                (path,) = {name, f"info/{name}"} & {*episode.steps}
                assert episode.steps[path].tolist() == [i, 1 + i, 2 + i]
