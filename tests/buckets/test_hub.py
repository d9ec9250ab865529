"""Datasets of the Hugging Face Hub (`hf://`): read by ranges at one commit, with `huggingface_hub` as the client."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_faults import HALF, Answer, Request
from directories import bytes_of
from exchanging import export, read_back, rich_dataset
from hub_repositories import Blob
from hub_server import TOKEN, HubServer, hub_server
from lerobot_data import write_moving_data
from processes import run

import rlds_beam
from rlds_beam import storage
from rlds_beam.buckets.hub_paths import hub_path
from rlds_beam.buckets.opening import open_store
from rlds_beam.errors import BucketAccessError, BucketError, UsageError
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


# Files


def test_files(hub: HubServer, tmp_path: Path) -> None:
    home = tmp_path / "files"
    (home / "x/sub").mkdir(parents=True)
    (home / "x/a.txt").write_text("text")
    (home / "x/empty").write_bytes(b"")
    (home / "x/sub/b g+ä%").write_bytes(b"".join(bytes([i]) * 1_000_000 for i in range(20)))
    for i in range(20):
        (home / f"x/sub/{i:02}").write_bytes(bytes(i))
    (home / "y").write_text("y")
    there = hub.add(home, "robots/files")
    root = f"{there}/x"
    assert (storage.read_text(f"{root}/a.txt"), storage.read_text(f"{root}/empty")) == ("text", "")
    with storage.open_read(f"{root}/sub/b g+ä%") as file:
        assert [set(file.read(1_000_000)) for _ in range(21)] == [*({i} for i in range(20)), set()]
        assert (file.seek(-3, io.SEEK_END), file.read()) == (19_999_997, bytes([19]) * 3)
        assert (file.seek(3_999_999), file.read(2), file.tell()) == (3_999_999, b"\x03\x04", 4_000_001)
    assert storage.listdir(root) == ["a.txt", "empty", "sub"]
    assert storage.listdir(there) == ["x", "y"]
    assert storage.sizes(root) == {"a.txt": 4, "empty": 0}
    assert storage.size(f"{root}/sub/b g+ä%") == 20_000_000
    assert storage.glob(f"{root}/sub/0?") == [f"{root}/sub/{i:02}" for i in range(10)]
    assert len(storage.files_below(there, "**")) == 24
    assert [storage.isdir(f"{there}{path}") for path in ("", "/", "/x", "/x/", "/x/sub", "/x/a.txt", "/su")] == [
        True,
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    for missing in (storage.size, storage.open_read, storage.checksum):
        with pytest.raises(FileNotFoundError, match="no such file"):
            missing(f"{root}/nothing")
    listings = [one for one in hub.requests if "/tree/" in one]
    assert len(listings) == len({*listings}) == 4  # pages of one listing
    asked = [one for one in hub.requests if "/resolve/" in one and "b%20g" in one]
    assert len(asked) == 1  # later ranges come from the address that the Hub redirected to
    assert storage.checksum(f"{root}/a.txt") == hub.repos["robots/files"].files["x/a.txt"].oid


def test_nothing_is_written(hub: HubServer, plain: Path, tmp_path: Path) -> None:
    there = hub.add(plain, "robots/toy")
    for write in (storage.open_write, lambda p: storage.rename(p, p), lambda p: open_store(p).delete([p])):
        with pytest.raises(UsageError, match=r"read-only: .*rlds-beam upload"):
            write(f"{there}/x")
    for command in (["convert", plain, f"{there}-out"], ["check", "--rules", plain, f"--report={there}/r.json"]):
        code, _, err = run(command)
        assert code == 2 and "read-only: write to a local directory, then publish it with 'rlds-beam upload'" in err
    assert not any(one.startswith(("POST", "PUT")) for one in hub.requests)


# Datasets

OUTPUTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rlds": ("rlds", "rich", {}),
    "lerobot": ("lerobot", "moving", {"fps": 10}),
    "lerobot_video": ("lerobot", "moving", {"fps": 10, "images": "video"}),
    "lerobot21": ("lerobot", "moving", {"fps": 10, "images": "video", "lerobot_version": "2.1"}),
}
"""Name -> output, dataset, options."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, plain: Path) -> Any:
    """Converts a dataset as an entry of `OUTPUTS` says; returns the directory."""
    home = tmp_path_factory.mktemp("exported")

    def exported(name: str) -> Path:
        output = home / name
        if not output.exists():
            to, kind, options = OUTPUTS[name]
            source = {
                "plain": lambda: plain,
                "rich": lambda: rich_dataset(home / "rich", 3)[0],
                "moving": lambda: write_moving_data(home / f"moving_{name}")[0],
            }[kind]()
            export(source, output, to, **options)
        return output

    return exported


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_source_equals_a_local_one(name: str, exported: Any, hub: HubServer, tmp_path: Path) -> None:
    if "video" in name or name == "lerobot21":
        pytest.importorskip("av")
    local, to = exported(name), OUTPUTS[name][0]
    there = hub.add(local, f"robots/{name}")
    found, wanted = read_back(there, to), read_back(local, to)
    assert len(found) == len(wanted) > 2
    for one, other in zip(found, wanted, strict=True):
        assert not one.faults
        assert one.steps.keys() == other.steps.keys()
        for path, column in other.steps.items():
            assert np.array_equal(np.asarray([*one.steps[path]]), np.asarray([*column])), path
    export(there, tmp_path / "there", "rlds", from_=to)
    export(local, tmp_path / "here", "rlds", from_=to)
    assert _data(tmp_path / "there") == _data(tmp_path / "here")


def _data(output: Path) -> dict[str, bytes]:
    """The files that hold data or describe it; others contain the path of the input."""
    return {
        name: content for name, content in bytes_of(output).items() if "tfrecord" in name or name == "features.json"
    }


def test_rows_are_read(plain: Path, hub: HubServer, tmp_path: Path) -> None:
    rlds_beam.convert(plain, tmp_path / "rows", to="columns", format="parquet", workers=1, progress="none")
    there = hub.add(tmp_path / "rows", "robots/rows")
    rows, wanted = rlds_beam.open_dataset(there), rlds_beam.open_dataset(str(tmp_path / "rows"))
    assert len(rows) == len(wanted) > 0
    assert str(rows[len(rows) - 1]) == str(wanted[len(rows) - 1])
    far, near = (rlds_beam.open_dataset(path, unit="steps") for path in (hub.add(plain, "robots/plain"), plain))
    assert str(next(far.batches(7, shuffle=True))) == str(next(near.batches(7, shuffle=True)))


def test_commands(plain: Path, hub: HubServer, tmp_path: Path) -> None:
    """Two workers; a pattern; a subdirectory; a second conversion finds its output complete."""
    home = tmp_path / "home"
    shutil.copytree(plain, home / "toy/1.0.0")
    there = hub.add(home, "robots/many")
    command = ["convert", f"{there}/toy/1.0.0", tmp_path / "there", "--workers=2"]
    assert run(command)[0] == 0
    assert run(["convert", plain, tmp_path / "here", "--workers=2"])[0] == 0
    assert _data(tmp_path / "there") == _data(tmp_path / "here")
    (home / "README.md").write_text("Another commit with the same data")
    hub.add(home, "robots/many")
    assert run(command)[0] == 0  # equal content is an equal input
    assert run(["check", "--rules", f"{there}/toy/1.0.0/*.tfrecord*"])[0] == 0
    assert run(["inspect", f"{there}/toy"])[0] == 0
    code, _, _ = run(["report", f"{there}/toy/1.0.0", f"--output={tmp_path / 'report.html'}", "--workers=2"])
    assert code == 0
    commit = hub.repos["robots/many"].branches["main"]
    assert f"robots/many@{commit}" in (tmp_path / "report.html").read_text()


def test_a_branch_that_moves_during_a_job(plain: Path, hub: HubServer, tmp_path: Path) -> None:
    there = hub.add(plain, "robots/toy")
    episodes = [make_episode(30, seed=100 + i, observation=64) for i in range(6)]
    other = write_dataset(tmp_path / "other", episodes, name="toy", shards=3)
    moved = []

    def move(request: Request) -> None:
        if "-00001-of-" in request.path and not moved:  # the job has begun to read shards
            moved.append(hub.add(other, "robots/toy"))

    hub.fault = move
    export(there, tmp_path / "there", "rlds")
    hub.fault = lambda _: None
    export(plain, tmp_path / "here", "rlds")
    assert moved
    assert _data(tmp_path / "there") == _data(tmp_path / "here")
    export(there, tmp_path / "after", "rlds")  # the next job reads the new commit
    export(other, tmp_path / "new", "rlds")
    assert _data(tmp_path / "after") == _data(tmp_path / "new")
    first = next(iter(hub.repos["robots/toy"].commits))
    export(f"{there}@{first}", tmp_path / "first", "rlds")
    assert _data(tmp_path / "first") == _data(tmp_path / "here")


def test_revisions(plain: Path, hub: HubServer) -> None:
    there = hub.add(plain, "robots/toy")
    repo = hub.repos["robots/toy"]
    first = repo.branches["main"]
    repo.tags["v1"] = repo.branches["refs/convert/parquet"] = first
    repo.commit("main", {}, "Remove everything")
    for revision in ("v1", first, "refs/convert/parquet", "refs%2Fconvert%2Fparquet"):
        assert open_source(f"{there}@{revision}").splits[0].shards[0].path.startswith(f"{there}@{first}/toy-train")
    with pytest.raises(UsageError):
        open_source(there)
    with pytest.raises(BucketAccessError, match="robots/toy has no branch, tag, or commit 'v2'"):
        open_source(f"{there}@v2")


# Bytes


def _large(plain: Path, home: Path, times: int) -> tuple[Path, dict[str, int]]:
    """A dataset whose shards are repeated by the server, so that it is large."""
    shutil.copytree(plain, home)
    info = json.loads((home / "dataset_info.json").read_text())
    (split,) = info["splits"]
    split["shardLengths"] = [str(int(length) * times) for length in split["shardLengths"]]
    (home / "dataset_info.json").write_text(json.dumps(info))
    return home, {path.name: times for path in home.glob("*.tfrecord*")}


def test_inspect_reads_less_than_a_hundredth(plain: Path, hub: HubServer, tmp_path: Path) -> None:
    home, times = _large(plain, tmp_path / "large", 100_000)
    there = hub.add(home, "robots/large", times=times)
    size = sum(blob.size for blob in hub.repos["robots/large"].files.values())
    assert size > 4e9
    survey = rlds_beam.inspect(there)
    assert survey.source.size > 4e9 and not survey.complete and survey.sampled.episodes > 10
    assert hub.sent < size / 100


def test_inspect_reads_no_videos(hub: HubServer, exported: Any) -> None:
    """A LeRobot dataset whose bytes are videos: only metadata and frames are read."""
    pytest.importorskip("av")
    there = hub.add(exported("lerobot_video"), "robots/large")
    files = hub.repos["robots/large"].files
    for name in [name for name in files if name.endswith(".mp4")]:
        padding = b"\0\0\0\1free" + (1 << 32).to_bytes(8, "big")  # a box of 4 GB that no reader looks into
        files[name] = Blob(files[name].content + padding, True, zeros=(1 << 32) - 16)
    size = sum(blob.size for blob in files.values())
    assert size > 8e9
    assert rlds_beam.inspect(there, from_="lerobot").source.episodes
    assert hub.sent < size / 100


def test_a_bag_is_read_in_ranges(hub: HubServer, tmp_path: Path) -> None:
    """One message of a bag costs its summary and one chunk."""
    pytest.importorskip("rosbags")
    from ros2_bags import T0, compressed, text, write_mcap

    from rlds_beam.formats.ros2.bags import Bag, bag_layout

    noise = np.random.default_rng(0).bytes(1 << 20)
    sent = [text(T0, "pick"), *(compressed(T0 + 1 + i, noise) for i in range(64)), text(T0 + 100, "place")]
    bag = write_mcap(tmp_path / "bag" / "a.mcap", sent, chunk_size=1 << 19)
    with Bag(bag_layout(f"{hub.add(bag.parent, 'robots/bag')}/a.mcap")) as file:
        assert file.times("/task").tolist() == [T0, T0 + 100]
        (message,) = file.messages({"/task"}, T0 + 100, T0 + 101)
    assert b"place" in message.data
    assert hub.sent < bag.stat().st_size / 10


# Access


def refused(hub: HubServer, home: Path, path: str, token: str | None = None) -> str:
    """The one line that a refused command prints."""
    import os

    code, out, err = run(["inspect", path], env={**os.environ, **hub.environment(home, token)})
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert TOKEN not in err
    return err.removeprefix("rlds-beam: ").strip()


def test_access(plain: Path, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = hub.add(plain, "robots/secret", private=True)
    gated = hub.add(plain, "robots/gated", gated=True)
    log_in = "run 'hf auth login', or set HF_TOKEN"
    missing = "there is no such dataset"
    assert refused(hub, tmp_path, private) == f"{private}: {missing}; check its name; if it is private, {log_in}"
    assert refused(hub, tmp_path, private, "hf_wrong") == f"{private}: the Hub rejects the token: {log_in}"
    nothing = "hf://datasets/robots/nothing"
    said = refused(hub, tmp_path, nothing, TOKEN)
    assert said == f"{nothing}: {missing}, or this token may not read it; check its name"
    said = refused(hub, tmp_path, gated)
    assert said == f"{gated} is gated: accept its terms at {hub.url}/datasets/robots/gated, then {log_in}"
    assert "no branch, tag, or commit 'none'" in refused(hub, tmp_path, f"{gated}@none", TOKEN)
    assert "expected hf://datasets/USER/NAME" in refused(hub, tmp_path, "hf://robots/secret")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    export(private, tmp_path / "out", "rlds")
    assert not any(TOKEN.encode() in content for content in bytes_of(tmp_path / "out").values())
    assert not hub.authorized_elsewhere
    assert open_source(gated).splits


def test_a_token_of_a_login(plain: Path, hub: HubServer, tmp_path: Path) -> None:
    import os

    private = hub.add(plain, "robots/secret", private=True)
    home = tmp_path / "logged_in"
    home.mkdir()
    (home / "token").write_text(TOKEN)
    environment = {**os.environ, **hub.environment(home)}
    del environment["HF_TOKEN"]
    assert run(["check", "--rules", private], env=environment)[0] == 0


# Faults


def test_temporary_failures_lose_nothing(
    plain: Path, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = hub.add(plain, "robots/toy")
    broken: list[Request] = []

    def flaky(request: Request) -> Answer | None:
        if request.number % 3 and request.number % 4:
            return None
        broken.append(request)
        if request.number % 3:
            return HALF
        if "/cdn/" not in request.path:
            return Answer(502)
        redirected = "/resolve/" in hub.requests[-2]  # so its signature is new and cannot have expired
        return Answer((503, 500, 503 if redirected else 403)[request.number // 3 % 3])

    hub.fault = flaky
    with monkeypatch.context() as brief:
        brief.setattr("time.sleep", lambda _: None)
        export(there, tmp_path / "there", "rlds")
    export(plain, tmp_path / "here", "rlds")
    assert _data(tmp_path / "there") == _data(tmp_path / "here")
    assert len(broken) > 5


def test_rate_limits(plain: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    there, slept = hub.add(plain, "robots/toy"), []
    limits = [("Retry-After", "7"), ("RateLimit", '"resolvers";r=0;t=55')]
    hub.fault = lambda request: Answer(429, b"", (limits[request.number - 1],)) if request.number < 3 else None
    monkeypatch.setattr("time.sleep", slept.append)
    assert open_source(there).splits
    assert slept == [7.0, 56.0]
    hub.fault = lambda _: Answer(429, b"", (("Retry-After", "200"),))
    with pytest.raises(BucketError, match="allows no more requests for now"):
        open_source(there)
    assert slept[2] == 200.0 and 3 <= len(slept) <= 12


def test_an_answer_of_something_else(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for body in (b"<html>", b'{"sha": 7}'):
        answer = Answer(200, body)
        hub.fault = lambda _, answer=answer: answer  # type: ignore[misc]
        monkeypatch.setenv("HF_HOME", f"{body!r}")  # another client
        with pytest.raises(BucketError, match="does not answer as the Hugging Face Hub does"):
            open_source("hf://datasets/robots/toy")


def test_no_server(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.close()
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(BucketAccessError, match=r"does not answer \(Connect\w*Error\); check the network"):
        open_source("hf://datasets/robots/toy")


def test_a_listing_that_leads_elsewhere_or_out(hub: HubServer, tmp_path: Path, plain: Path) -> None:
    there = hub.add(plain, "robots/toy")
    listed = [
        {"type": "file", "path": path, "size": size, "oid": "0"}
        for path, size in (("../a", 1), ("/b", 1), ("c\n", 1), ("f", 5))
    ]
    link = (("Link", '<http://127.0.0.2:1/steal>; rel="next"'),)
    page = Answer(200, json.dumps(listed).encode(), link)
    hub.fault = lambda request: page if "/tree/" in request.path else None
    with pytest.raises(BucketError, match=r"continues on another server, 127\.0\.0\.2:1"):
        storage.listdir(there)
    page = page._replace(headers=())
    assert storage.listdir(there) == ["f"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hf://datasets/u/n", ("u/n", None, "")),
        ("hf://datasets/u/n/", ("u/n", None, "")),
        ("hf://datasets/u-1/n.v_2/a/b", ("u-1/n.v_2", None, "a/b")),
        ("hf://datasets/u/n@v1.0/a", ("u/n", "v1.0", "a")),
        ("hf://datasets/u/n@refs%2Fconvert%2Fparquet/a", ("u/n", "refs/convert/parquet", "a")),
        ("hf://datasets/u/n@refs/convert/parquet/a/b", ("u/n", "refs/convert/parquet", "a/b")),
        ("hf://datasets/u/n@refs/pr/12", ("u/n", "refs/pr/12", "")),
        ("hf://datasets/u/n/a@b", ("u/n", None, "a@b")),
        ("hf://datasets/u/n/100%2F", ("u/n", None, "100%2F")),
    ],
)
def test_paths(path: str, expected: tuple[str, str | None, str]) -> None:
    assert hub_path(path)[:3] == expected


@pytest.mark.parametrize(
    "path",
    [
        "hf://",
        "hf://u/n",
        "hf://datasets/n",
        "hf://datasets//n",
        "hf://models/u/n",
        "hf://datasets/../n/a",
        "hf://datasets/u/n@../x",
        "hf://datasets/u/n@a%00b",
        "hf://datasets/u/n@%2e%2e/x",
        "hf://datasets/u/n@a%2F..%2Fb/x",
        "hf://datasets/u/n@/x",
        "hf://datasets/u/n/../../x",
        "hf://datasets/u/n/a\nb",
        "hf://datasets/u/n/a//b",
        "hf://datasets/u/n/a\\b",
        "hf://datasets/u?x=/n",
        "hf://datasets/u/n#x",
        "hf://datasets/u/n.git",
    ],
)
def test_paths_that_do_not_become_addresses(path: str) -> None:
    with pytest.raises(UsageError, match=r"^hf://.*: "):
        hub_path(path)
