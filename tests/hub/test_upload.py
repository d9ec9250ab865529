"""`upload` publishes finished outputs: to a server that speaks the Hub's API, through `huggingface_hub`."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from directories import bytes_of
from exchanging import export
from hub_server import TOKEN, Answer, HubServer, hub_server
from lerobot_data import write_moving_data
from processes import DEADLINE, run, running, wait_until

import rlds_beam
from rlds_beam.errors import BucketAccessError, NotVerifiedError, UsageError
from rlds_beam.testing import make_episode, write_dataset

HUB = "hf://datasets/robots/data"
OUTPUTS: dict[str, dict[str, Any]] = {
    "trajectories": {},
    "columns": {"format": "parquet"},
    "rlds": {},
    "lerobot": {"fps": 10},
    "numpy": {},
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A server for this process and its children, which have a token."""
    with hub_server() as server:
        for name, value in server.environment(tmp_path / "hf_home", TOKEN).items():
            monkeypatch.setenv(name, value)
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
        yield server


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [make_episode(40, seed=i, observation=32, breaks=["missing_is_last"] * (i == 3)) for i in range(12)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes, name="toy", shards=4)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished output with rejected records."""
    export(data, directory := tmp_path_factory.mktemp("finished") / "out", "rlds", shards=4)
    return directory


@pytest.fixture
def output(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def there(hub: HubServer, name: str = "robots/data") -> dict[str, bytes]:
    """The files on the Hub."""
    files = hub.repos[name].files
    return {path: blob.content for path, blob in files.items() if path not in (".gitattributes", "README.md")}


def card(hub: HubServer) -> str:
    return hub.repos["robots/data"].files["README.md"].content.decode()


def expected(output: Path) -> dict[str, bytes]:
    """The files of an output that are published, besides the card that `upload` writes."""
    return {name: data for name, data in bytes_of(output).items() if not name.startswith(("_commits", "rejected"))}


@pytest.mark.parametrize("to", OUTPUTS)
def test_every_output(to: str, hub: HubServer, tmp_path: Path) -> None:
    episodes = [make_episode(20, seed=i, observation=2) for i in range(4)]
    source = (
        write_moving_data(tmp_path / "moving")[0] if to == "lerobot" else write_dataset(tmp_path / "data", episodes)
    )
    export(source, tmp_path / "out", to, **OUTPUTS[to])
    outcome = rlds_beam.upload(tmp_path / "out", HUB)
    found, wanted = there(hub), expected(tmp_path / "out")
    assert found == {name: content for name, content in wanted.items() if name != "README.md"}
    repo = hub.repos["robots/data"]
    assert outcome.commit == repo.branches["main"] and f"{HUB}@{outcome.commit}" in str(outcome)
    assert repo.tags == ({"v3.0": outcome.commit} if to == "lerobot" else {})
    sent, commits = hub.puts.total(), len(repo.commits)
    assert rlds_beam.upload(tmp_path / "out", HUB) == outcome
    assert hub.puts.total() == sent and len(repo.commits) == commits


def test_the_command(output: Path, hub: HubServer) -> None:
    code, out, err = run(["upload", output, HUB, "--private", "--json"])
    assert code == 0
    outcome = json.loads(out)
    repo = hub.repos["robots/data"]
    assert repo.private and outcome["commit"] == repo.branches["main"]
    assert TOKEN not in out + err and not any(TOKEN.encode() in content for content in there(hub).values())
    (output / "README.md").write_text("# Another card\n")
    code, out, _ = run(["upload", output, HUB])
    assert code == 0 and f"page      {hub.url}/datasets/robots/data" in out
    assert card(hub) == "# Another card\n"
    # The result is an input.
    code, out, _ = run(["check", "--rules", HUB])
    assert code == 0 and "11" in out


def test_a_new_version_replaces_the_old_one(output: Path, data: Path, hub: HubServer, tmp_path: Path) -> None:
    rlds_beam.upload(output, HUB)
    repo = hub.repos["robots/data"]
    first = len(repo.commits)
    export(data, tmp_path / "new", "rlds", shards=3)
    with pytest.raises(UsageError, match=r"holds something else: .*--overwrite"):
        rlds_beam.upload(tmp_path / "new", HUB)
    assert len(repo.commits) == first
    rlds_beam.upload(tmp_path / "new", HUB, overwrite=True)
    assert there(hub) == expected(tmp_path / "new")
    assert all("manifest.json" not in files for files in [*repo.commits.values()][first:-1])


def test_what_is_refused(output: Path, data: Path, hub: HubServer, tmp_path: Path) -> None:
    def refused(directory: Path, path: str, error: type[Exception], said: str, **options: Any) -> None:
        with pytest.raises(error, match=said):
            rlds_beam.upload(directory, path, **options)

    refused(data, HUB, UsageError, "is not an output of rlds-beam")
    refused(tmp_path / "nothing", HUB, UsageError, "is not an output of rlds-beam")
    refused(output, "s3://bucket/x", UsageError, "expected hf://datasets/USER/NAME")
    refused(output, f"{HUB}/x", UsageError, "an output fills a repository")
    refused(output, "hf://datasets/others/x", BucketAccessError, "rights to create a dataset")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(output, unfinished)
    (unfinished / "manifest.json").unlink()
    refused(unfinished, HUB, UsageError, "is not finished")
    shard = next(output.glob("*.tfrecord*"))
    content = shard.read_bytes()
    shard.unlink()
    refused(output, HUB, NotVerifiedError, "is missing, or differs from its checksum")
    shard.write_bytes(content[:-1] + b"x")
    refused(output, HUB, NotVerifiedError, "is missing, or differs from its checksum")
    assert not hub.repos
    shard.write_bytes(content)
    hub.add(data, "robots/other")
    refused(output, "hf://datasets/robots/other", UsageError, "holds something else")
    refused(output, "hf://datasets/robots/other", UsageError, "is public", private=True)


def test_tokens(output: Path, hub: HubServer) -> None:
    for token, said in (("", "401 Unauthorized"), ("hf_no", "401 Unauthorized")):
        code, out, err = run(["upload", output, HUB], env={**os.environ, "HF_TOKEN": token})
        assert (code, out, err.count("\n")) == (2, "", 1) and said in err and "hf_no" not in err


def test_a_killed_upload_resumes(data: Path, hub: HubServer, tmp_path: Path) -> None:
    """Killed when two large files were sent: these are not sent again."""
    export(data, tmp_path / "out", "rlds", shards=6)

    sent, killed = itertools.count(), threading.Event()

    def hold(request: str) -> Answer | None:
        """Passes two large files on; holds the others until the process is killed."""
        if not request.startswith("PUT") or next(sent) < 2:
            return None
        held.append(request)
        killed.wait(DEADLINE)
        return Answer(b"", 503)

    held: list[str] = []
    hub.hook = hold
    with running(["upload", tmp_path / "out", HUB]) as process:
        wait_until(lambda: held and len(hub.puts) == 2, process)
    hub.hook = lambda _: None
    killed.set()
    assert len(hub.puts) == 2 and "manifest.json" not in there(hub)
    assert run(["upload", tmp_path / "out", HUB])[0] == 0
    assert set(hub.puts.values()) == {1}
    assert there(hub) == expected(tmp_path / "out")
