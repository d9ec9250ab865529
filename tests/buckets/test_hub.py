"""Datasets of the Hugging Face Hub (`hf://`): read at one commit, through `huggingface_hub`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from directories import bytes_of
from exchanging import export, read_back
from hub_server import TOKEN, HubServer, hub_server
from lerobot_data import write_moving_data
from processes import run

from rlds_beam import storage
from rlds_beam.errors import BucketAccessError, UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.testing import make_episode, write_dataset


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A server for this process and its children, which have no token."""
    with hub_server() as server:
        for name, value in server.environment(tmp_path / "hf_home").items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [make_episode(30, seed=i, observation=64) for i in range(6)]
    return write_dataset(tmp_path_factory.mktemp("plain"), episodes, name="toy", shards=3)


def test_files(hub: HubServer, tmp_path: Path) -> None:
    home = tmp_path / "files"
    (home / "x/sub").mkdir(parents=True)
    (home / "x/a.txt").write_text("text")
    (home / "x/empty").write_bytes(b"")
    (home / "x/sub/b g+ä%").write_bytes(b"".join(bytes([i]) * 100_000 for i in range(20)))
    there = storage.pin(hub.add(home, "robots/files"))
    root = f"{there}/x"
    assert (storage.read_text(f"{root}/a.txt"), storage.read_text(f"{root}/empty")) == ("text", "")
    with storage.open_read(f"{root}/sub/b g+ä%") as file:
        assert [set(file.read(100_000)) for _ in range(21)] == [*({i} for i in range(20)), set()]
    assert storage.listdir(root) == ["a.txt", "empty", "sub"]
    assert storage.sizes(root) == {"a.txt": 4, "empty": 0}
    assert list(storage.glob("**", there)) == [f"{root}/{name}" for name in ("a.txt", "empty", "sub/b g+ä%")]
    assert [storage.isdir(f"{there}{path}") for path in ("", "/x", "/x/sub", "/x/a.txt", "/su")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    for missing in (storage.size, storage.open_read, storage.checksum):
        with pytest.raises(FileNotFoundError, match="no such file"):
            missing(f"{root}/nothing")
    assert storage.checksum(f"{root}/a.txt") == hub.repos["robots/files"].files["x/a.txt"].oid


def test_nothing_is_written(hub: HubServer, plain: Path) -> None:
    there = hub.add(plain, "robots/toy")
    for command in (["convert", plain, f"{there}-out"], ["check", "--rules", plain, f"--report={there}/r.json"]):
        code, _, err = run(command)
        assert code == 2 and "'rlds-beam upload' publishes a directory on the Hub" in err


@pytest.mark.parametrize("name", ["rlds", "lerobot"])
def test_a_source_equals_a_local_one(name: str, hub: HubServer, plain: Path, tmp_path: Path) -> None:
    local = plain
    if name == "lerobot":
        export(write_moving_data(tmp_path / "moving")[0], local := tmp_path / "local", "lerobot", fps=10)
    found, wanted = read_back(hub.add(local, "robots/data"), name), read_back(local, name)
    assert len(found) == len(wanted) > 2
    for one, other in zip(found, wanted, strict=True):
        assert not one.faults and one.steps.keys() == other.steps.keys()
        for path, column in other.steps.items():
            assert np.array_equal(np.asarray([*one.steps[path]]), np.asarray([*column])), path


def test_commands(plain: Path, hub: HubServer, tmp_path: Path) -> None:
    """Two workers; the report names the commit; a second conversion finds its output complete."""
    there = hub.add(plain, "robots/toy")
    command = ["convert", there, tmp_path / "there", "--workers=2"]
    assert run(command)[0] == run(command)[0] == 0
    assert run(["convert", plain, tmp_path / "here", "--workers=2"])[0] == 0
    assert data_of(tmp_path / "there") == data_of(tmp_path / "here")
    assert run(["report", there, f"--output={tmp_path / 'report.html'}"])[0] == 0
    assert f"robots/toy@{hub.repos['robots/toy'].branches['main']}" in (tmp_path / "report.html").read_text()


def data_of(output: Path) -> dict[str, bytes]:
    """The files that hold data or describe it; others contain the path of the input."""
    return {name: data for name, data in bytes_of(output).items() if "tfrecord" in name or name == "features.json"}


def test_a_branch_that_moves_during_a_job(plain: Path, hub: HubServer, tmp_path: Path) -> None:
    there = hub.add(plain, "robots/toy")
    episodes = [make_episode(30, seed=100 + i, observation=64) for i in range(6)]
    other = write_dataset(tmp_path / "other", episodes, name="toy", shards=3)
    moved: list[Any] = []

    def move(request: str) -> None:
        if "/resolve/" in request and "-00001-of-" in request and not moved:  # the job has begun to read shards
            moved.append(hub.add(other, "robots/toy"))

    hub.hook = move
    export(there, tmp_path / "there", "rlds")
    hub.hook = lambda _: None
    export(plain, tmp_path / "here", "rlds")
    assert moved and data_of(tmp_path / "there") == data_of(tmp_path / "here")
    export(there, tmp_path / "after", "rlds")  # the next job reads the new commit
    export(other, tmp_path / "new", "rlds")
    assert data_of(tmp_path / "after") == data_of(tmp_path / "new")


def test_revisions(plain: Path, hub: HubServer) -> None:
    there = hub.add(plain, "robots/toy")
    repo = hub.repos["robots/toy"]
    first = repo.branches["main"]
    repo.tags["v1"] = first
    repo.commit("main", {}, "Remove everything")
    for revision in ("v1", first):
        assert open_source(f"{there}@{revision}").splits[0].shards[0].path.startswith(f"{there}@{first}/toy-train")
    with pytest.raises(UsageError):
        open_source(there)
    with pytest.raises((BucketAccessError, UsageError), match="v2"):
        open_source(f"{there}@v2")


def test_access(plain: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(plain, "robots/secret", private=True)
    for name in ("secret", "nothing"):
        code, _, err = run(["inspect", f"hf://datasets/robots/{name}"])
        assert (code, err.count("\n")) == (2, 1) and f"robots/{name}" in err
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    code, out, err = run(["inspect", "hf://datasets/robots/secret"])
    assert code == 0 and TOKEN not in out + err
