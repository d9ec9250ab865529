"""`upload` publishes finished outputs: to a server that speaks the Hub's API, through `huggingface_hub`."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket_faults import HALF, Answer, Request
from directories import bytes_of
from exchanging import export
from hub_server import TOKEN, HubServer, hub_server
from lerobot_data import write_moving_data
from processes import DEADLINE, run, running, wait_until

import rlds_beam
from rlds_beam.buckets import base
from rlds_beam.errors import BucketAccessError, BucketError, NotVerifiedError, RldsBeamError, UsageError
from rlds_beam.hub import upload as uploading
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
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
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
    return {path: blob.content for path, blob in files.items() if path != ".gitattributes"}


def expected(output: Path) -> dict[str, bytes]:
    """The files of an output that are published."""
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
    assert {name: found[name] for name in wanted} == wanted
    assert found.keys() - wanted.keys() <= {"README.md"}
    repo = hub.repos["robots/data"]
    assert outcome.commit == repo.branches["main"] and f"{HUB}@{outcome.commit}" in str(outcome)
    assert (outcome.files, outcome.unchanged, len(repo.messages)) == (len(found), 0, 2)
    assert repo.tags == ({"v3.0": outcome.commit} if to == "lerobot" else {})
    card = found["README.md"].decode()
    assert "rlds-beam" in card and (
        to in ("rlds", "lerobot") or card.startswith(f"---\ntags:\n- rlds-beam\n- {to}\n---")
    )
    sent = hub.puts.total()
    again = rlds_beam.upload(tmp_path / "out", HUB)
    assert (again.files, again.bytes, again.unchanged, again.commit) == (0, 0, len(found), outcome.commit)
    assert hub.puts.total() == sent


def test_the_command(output: Path, hub: HubServer) -> None:
    code, out, err = run(["upload", output, HUB, "--dry_run", "--private"])
    assert (code, err, hub.repos) == (0, "", {})
    assert out.startswith("would send ") and f"page      {hub.url}/datasets/robots/data" in out
    assert not any(one.startswith(("POST", "PUT")) for one in hub.requests)
    code, out, err = run(["upload", output, HUB, "--private", "--tag=v1", "--message=First", "--json"])
    assert code == 0
    outcome = json.loads(out)
    repo = hub.repos["robots/data"]
    assert (repo.private, repo.tags, repo.messages[-1]) == (True, {"v1": outcome["commit"]}, "First")
    assert TOKEN not in out + err and not any(TOKEN.encode() in content for content in there(hub).values())
    assert not hub.authorized_elsewhere
    # The tag moves with the branch.
    (output / "README.md").write_text("# Another card\n")
    assert run(["upload", output, HUB, "--tag=v1"])[0] == 0
    assert repo.tags["v1"] == repo.branches["main"] != outcome["commit"]
    assert there(hub)["README.md"] == b"# Another card\n"
    # The result is an input.
    code, out, _ = run(["validate", HUB])
    assert code == 0 and "11" in out


def test_branches(output: Path, hub: HubServer) -> None:
    rlds_beam.upload(output, HUB, revision="next")
    repo = hub.repos["robots/data"]
    assert sorted(repo.branches) == ["main", "next"] and list(repo.files) == [".gitattributes"]
    assert rlds_beam.upload(output, f"{HUB}@next").files == 0
    with pytest.raises(UsageError, match="name two branches"):
        rlds_beam.upload(output, f"{HUB}@next", revision="other")


def test_metadata_comes_last(output: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "_FILES", 2)
    rlds_beam.upload(output, HUB)
    repo = hub.repos["robots/data"]
    states = [set(files) for files in repo.commits.values()][1:]
    assert len(states) >= 3
    assert all("plan.json" in state for state in states)
    late = {"manifest.json", "features.json", "dataset_info.json", "README.md"}
    assert all(not late & state for state in states[:-1]) and late <= states[-1]
    assert repo.messages[1] == f"Upload with rlds-beam (part 1 of {len(states)})"


def test_a_new_version_replaces_the_old_one(
    output: Path, data: Path, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "_FILES", 2)
    rlds_beam.upload(output, HUB)
    repo = hub.repos["robots/data"]
    first = len(repo.commits)
    repo.commit("main", {**repo.files, "video.mp4": repo.files["README.md"]}, "Someone adds a file")
    export(data, tmp_path / "new", "rlds", shards=3)
    with pytest.raises(UsageError, match=r"holds another output, of toy/1\.0\.0: .*--overwrite"):
        rlds_beam.upload(tmp_path / "new", HUB)
    assert len(repo.commits) == first + 1
    outcome = rlds_beam.upload(tmp_path / "new", HUB, overwrite=True)
    assert {name for name in there(hub) if name != "video.mp4"} == set(expected(tmp_path / "new"))
    assert {n: c for n, c in there(hub).items() if n != "video.mp4"} == expected(tmp_path / "new")
    assert outcome.removed == 4
    assert all("manifest.json" not in files for files in [*repo.commits.values()][first + 1 : -1])


def test_what_is_refused(output: Path, data: Path, hub: HubServer, tmp_path: Path) -> None:
    def refused(directory: Path, path: str, error: type[Exception], said: str, **options: Any) -> None:
        with pytest.raises(error, match=said):
            rlds_beam.upload(directory, path, **options)

    refused(data, HUB, UsageError, "is not an output of rlds-beam")
    refused(tmp_path / "nothing", HUB, UsageError, "is not an output of rlds-beam")
    refused(output, "s3://bucket/x", UsageError, "expected hf://datasets/USER/NAME")
    refused(output, f"{HUB}/x", UsageError, "leave out /x")
    refused(output, HUB, UsageError, "is not the name of a branch", tag="a b")
    refused(output, "hf://datasets/others/x", BucketAccessError, "access denied .*rights to create a dataset")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(output, unfinished)
    (unfinished / "manifest.json").unlink()
    refused(unfinished, HUB, UsageError, "is not finished")
    shard = next(output.glob("*.tfrecord*"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    refused(output, HUB, NotVerifiedError, r"but manifest.json says")
    shard.unlink()
    refused(output, HUB, NotVerifiedError, "missing")
    assert not hub.repos
    shard.write_bytes(content[:-1] + b"x")
    refused(output, HUB, NotVerifiedError, "differs from its checksum")
    shard.write_bytes(content)
    hub.add(data, "robots/other")
    refused(output, "hf://datasets/robots/other", UsageError, "holds files that rlds-beam did not upload")
    refused(output, "hf://datasets/robots/other", UsageError, "exists and is public", private=True)


def test_tokens(output: Path, hub: HubServer) -> None:
    for token, said in (("", "publishing needs a token: run 'hf auth login'"), ("hf_no", "the Hub rejects the token")):
        code, out, err = run(["upload", output, HUB], env={**os.environ, "HF_TOKEN": token})
        assert (code, out, err.count("\n")) == (2, "", 1) and said in err and "hf_no" not in err


def test_a_killed_upload_resumes(data: Path, hub: HubServer, tmp_path: Path) -> None:
    """Killed when two large files were sent: these are not sent again."""
    export(data, tmp_path / "out", "rlds", shards=6)

    sent, killed = itertools.count(), threading.Event()

    def hold(request: Request) -> Answer | None:
        """Passes two large files on; holds the others until the process is killed."""
        if request.method != "PUT" or next(sent) < 2:
            return None
        held.append(request)
        killed.wait(DEADLINE)
        return Answer(503)

    held: list[Request] = []
    hub.fault = hold
    with running(["upload", tmp_path / "out", HUB]) as process:
        wait_until(lambda: held and len(hub.puts) == 2, process)
    hub.fault = lambda _: None
    killed.set()
    assert len(hub.puts) == 2 and "manifest.json" not in there(hub)
    assert run(["upload", tmp_path / "out", HUB])[0] == 0
    assert set(hub.puts.values()) == {1}
    assert there(hub) == expected(tmp_path / "out")


def test_temporary_failures(output: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.fault = lambda one: (Answer(503) if one.number % 2 else HALF) if one.number % 7 == 0 else None
    rlds_beam.upload(output, HUB)
    hub.fault = lambda _: None
    assert there(hub) == expected(output)
    hub.fault = lambda one: Answer(500) if "/commit/" in one.path else None
    (output / "README.md").write_text("new")
    with pytest.raises(BucketError, match="the Hub answers 500"):
        rlds_beam.upload(output, HUB)


def test_large_files_go_in_parts(hub: HubServer, tmp_path: Path) -> None:
    episodes = [make_episode(800, seed=i, observation=512) for i in range(2)]
    export(write_dataset(tmp_path, episodes, name="big"), tmp_path / "out", "rlds")
    rlds_beam.upload(tmp_path / "out", HUB)
    assert any(one.startswith("POST /complete/") for one in hub.requests)
    assert there(hub) == expected(tmp_path / "out")


REQUESTS = ("/api/repos/create", "/revision/", "/tree/", "/preupload/", "/objects/batch", "/commit/", "/refs", "/tag/")


@pytest.mark.parametrize("kind", REQUESTS)
def test_hostile_answers(kind: str, output: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is refused with one line that names the Hub, or does no harm; none is read without end."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(base, "MAX_ANSWER_BYTES", 1 << 20)
    endless = itertools.repeat(b"[" * (1 << 16))
    answers = [
        *(Answer(200, body) for body in (b"[" * 300_000, b"{}", b"[]", b"null", b"7", b'{"commitOid": 7}', b"\xff")),
        Answer(200, endless),
        Answer(200, endless, length=1 << 40),
        Answer(200, b"{}", length=1 << 40),
        Answer(302, b"", (("Location", f"{hub.url}{kind}"),)),
    ]
    asked = []
    for number, answer in enumerate(answers):
        destination = f"{HUB}{number}"

        def fault(request: Request, answer: Answer = answer) -> Answer | None:
            if kind not in request.path:
                return None
            asked.append(request)
            return answer

        if kind == "/tree/":
            rlds_beam.upload(output, destination)
        hub.fault, hub.sent = fault, 0
        with contextlib.suppress(RldsBeamError):
            try:
                rlds_beam.upload(output, destination, tag="v1")
            except RldsBeamError as error:
                said = str(error)
                assert hub.url in said or "the Hub" in said, said
                assert said.isprintable()
                raise
        hub.fault = lambda _: None
        assert hub.sent < 256 << 20
    assert asked


def test_a_commit_that_is_none(output: Path, hub: HubServer) -> None:
    done = {"success": True, "commitUrl": f"{hub.url}/datasets/robots/data/commit/x", "hookOutput": ""}
    for oid in ("x\n", "../..", None):
        answer = Answer(200, json.dumps({**done, "commitOid": oid}).encode())
        hub.fault = lambda request, answer=answer: answer if "/commit/" in request.path else None  # type: ignore[misc]
        with pytest.raises(BucketError, match="does not answer as the Hugging Face Hub does"):
            rlds_beam.upload(output, HUB)


def test_an_appended_output_sends_what_is_new(data: Path, hub: HubServer, tmp_path: Path) -> None:
    shards, out = sorted(data.glob("*tfrecord-0*")), tmp_path / "out"
    export(shards[:3], out, "rlds")
    rlds_beam.upload(out, HUB)
    before = expected(out)
    export(shards, out, "rlds", append=True)
    outcome = rlds_beam.upload(out, HUB)
    assert there(hub) == expected(out)
    new = {name for name, content in expected(out).items() if before.get(name) != content}
    assert (outcome.files, outcome.removed) == (len(new), 0)
    assert {"toy-train.tfrecord-00001-of-00001", "dataset_info.json", "manifest.json"} <= new
    assert new.isdisjoint({"toy-train.tfrecord-00000-of-00001", "features.json"})
