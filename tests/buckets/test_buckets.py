"""What users do with buckets, on local stores: moto (`s3://`), and Azurite (`az://`) if it is installed."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_servers import Server, content, serving, upload
from directories import bytes_of
from exchanging import export, open_job, read_back, rich_dataset
from lerobot_data import write_moving_data
from processes import run, running, wait_until

import rlds_beam
from rlds_beam import remote, storage
from rlds_beam.cli.main import main
from rlds_beam.errors import BucketAccessError, BucketError, RldsBeamError, UsageError
from rlds_beam.output.files import INPUTS
from rlds_beam.testing import make_episode, write_dataset


@pytest.fixture(scope="module", params=["s3", "az"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(request.param) as server:
        yield server


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket for this process and its children."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.new_bucket()


class Data:
    """The local datasets of these tests, by name."""

    def __init__(self, home: Path):
        columns = {"propensity": np.full(5, 0.5), "action": np.arange(5) % 3, "velocity": np.ones((5, 2), np.float32)}
        plain = [
            make_episode(5, seed=i, observation=2, columns=columns, metadata={"path": f"{i}.h5"}) for i in range(4)
        ]
        self.plain = str(write_dataset(home / "plain", plain, name="plain", shards=2))
        self.rich = str(rich_dataset(home / "rich", 3)[0])
        self.moving = write_moving_data(home / "moving")[0]
        self._home = home

    def exported(self, name: str) -> Path:
        """The dataset of an entry of `OUTPUTS`, converted locally."""
        output = self._home / "out" / name
        if not output.exists():
            to, kind, options = OUTPUTS[name]
            export(getattr(self, kind), output, to, **options)
        return output


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data(tmp_path_factory.mktemp("data"))


OUTPUTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "trajectories": ("trajectories", "plain", {}),
    "columns": ("columns", "rich", {"format": "tfrecord"}),
    "parquet": ("columns", "rich", {"format": "parquet"}),
    "rlds": ("rlds", "rich", {}),
    "lerobot": ("lerobot", "moving", {"fps": 10}),
    "lerobot21": ("lerobot", "moving", {"fps": 10, "images": "video", "lerobot_version": "2.1"}),
    "numpy": ("numpy", "rich", {}),
    "scope_rl": ("scope_rl", "plain", {}),
    "zarr": ("zarr", "rich", {}),
}
"""Name -> output, dataset, options."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_equals_a_local_one(name: str, data: Data, bucket: str) -> None:
    if "lerobot21" in name:
        pytest.importorskip("av")
    to, kind, options = OUTPUTS[name]
    export(getattr(data, kind), f"{bucket}/deep/out", to, **options)
    assert content(f"{bucket}/deep/out") == bytes_of(data.exported(name))
    job = open_job(getattr(data, kind), f"{bucket}/deep/out", to, **options)
    assert job.find_pending() is None
    open_job(
        getattr(data, kind), f"{bucket}/deep/out", to, **options, overwrite=True
    ).open()  # removes everything except the plan
    assert [name for name in content(f"{bucket}/deep/out") if not INPUTS.fullmatch(name)] == ["plan.json"]


@pytest.mark.parametrize("name", ["trajectories", "parquet", "rlds", "lerobot"])
def test_an_append_equals_a_local_one(name: str, data: Data, tmp_path: Path, bucket: str) -> None:
    to, kind, options = OUTPUTS[name]
    first, second = map(str, sorted(Path(getattr(data, kind)).glob("*tfrecord-0*")))
    flags = [f"--to={to}", *(f"--{key}={value}" for key, value in options.items())]
    for output in (str(tmp_path / "local"), f"{bucket}/grown"):
        assert main(["convert", first, output, *flags]) == 0
        assert main(["convert", f"{first},{second}", output, *flags, "--append"]) == 0
    assert content(f"{bucket}/grown") == bytes_of(tmp_path / "local")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("rlds", "rlds"),
        ("lerobot", "lerobot"),
        ("lerobot21", "lerobot"),
        ("zarr", "zarr"),
    ],
)
def test_a_source_equals_a_local_one(name: str, source: str, data: Data, bucket: str) -> None:
    if name == "lerobot21":
        pytest.importorskip("av")
    local = data.exported(name)
    there = upload(local, f"{bucket}/data")
    found, wanted = read_back(there, source), read_back(local, source)
    assert len(found) == len(wanted) > 2
    assert not any(episode.faults for episode in found)
    for one, other in zip(found, wanted, strict=True):
        assert one.key.position == other.key.position
        for path, column in other.steps.items():
            assert np.array_equal(np.asarray([*one.steps[path]]), np.asarray([*column])), path


def test_mcap_is_read_from_buckets_and_sqlite_is_not(tmp_path: Path, bucket: str) -> None:
    pytest.importorskip("rosbags")
    from ros2_bags import MAPPING, robot, write_bag

    mapping = tmp_path / "topics.yaml"
    mapping.write_text(MAPPING)
    local = write_bag(tmp_path / "bags" / "one", robot())
    there = upload(local, f"{bucket}/bags/one")
    flags = {"from_": "ros2", "topics": str(mapping)}
    assert rlds_beam.check(f"{bucket}/bags", **flags, rules=True).report.records == 1
    rlds_beam.convert(there, tmp_path / "far", to="rlds", workers=1, **flags)
    rlds_beam.convert(local, tmp_path / "near", to="rlds", workers=1, **flags)
    (far,), (near,) = read_back(tmp_path / "far", "rlds"), read_back(tmp_path / "near", "rlds")
    assert len(far) == 6 and far.payload == near.payload
    sqlite = upload(write_bag(tmp_path / "two", robot(), "db3"), f"{bucket}/two")
    with pytest.raises(UsageError, match=r"local disks only|copy") as error:
        rlds_beam.check(sqlite, **flags, rules=True)
    assert "\n" not in str(error.value)


def test_rows_and_items_are_read_from_buckets(data: Data, bucket: str) -> None:
    for name in ("columns", "parquet", "rlds", "trajectories"):
        local, there = data.exported(name), upload(data.exported(name), f"{bucket}/{name}")
        rows, wanted = rlds_beam.open_dataset(there), rlds_beam.open_dataset(str(local))
        assert len(rows) == len(wanted) > 0
        for i in (len(rows) - 1, 0):
            assert str(rows[i]) == str(wanted[i])
    items = list(rlds_beam.load_items(f"{bucket}/trajectories"))
    assert str(items) == str(list(rlds_beam.load_items(str(data.exported("trajectories")))))


def test_batches_of_steps_are_read_from_buckets(data: Data, bucket: str) -> None:
    local, there = data.exported("rlds"), upload(data.exported("rlds"), f"{bucket}/steps")
    options: dict[str, Any] = {"shuffle": True, "history": 2, "chunk": 3}
    batches = [rlds_beam.open_dataset(str(path), unit="steps").batches(4, **options) for path in (there, local)]
    for far, near in zip(*batches, strict=True):
        assert far.keys() == near.keys()
        for name in near:
            np.testing.assert_array_equal(far[name], near[name], name)


def test_commands(tmp_path: Path, bucket: str) -> None:
    """Two workers, from a bucket to a bucket: rejected records, reports, statistics, a second run, `--overwrite`."""
    episodes = [make_episode(30, seed=i, breaks=["missing_is_last"] if i == 2 else []) for i in range(6)]
    local = write_dataset(tmp_path, episodes, name="toy", shards=3)
    there = upload(local, f"{bucket}/toy/1.0.0")
    options = ["--max_rejected=1", "--workers=2"]
    command = ["convert", there, f"{bucket}/out", *options]
    for more in ((), (), ("--overwrite",)):
        assert run([*command, *more])[0] == 0
    export(local, tmp_path / "out", "trajectories")
    found, wanted = content(f"{bucket}/out"), bytes_of(tmp_path / "out")
    for files in (found, wanted):
        assert files.pop(next(name for name in files if INPUTS.fullmatch(name)))  # fingerprints differ by store
    assert found.keys() == wanted.keys()
    written = [name for name in wanted if "tfrecord" in name]
    assert {name: found[name] for name in written} == {name: wanted[name] for name in written}
    assert any(name.startswith("rejected/") and found[name] for name in written)
    assert run(["stats", there, f"--output={bucket}/stats.json", *options])[::2] == (0, "")
    assert json.loads(storage.read_text(f"{bucket}/stats.json"))["episodes"] == 5
    assert run(["check", "--rules", there, f"--report={bucket}/report.json", *options])[::2] == (0, "")
    assert json.loads(storage.read_text(f"{bucket}/report.json"))


def test_a_killed_conversion_resumes(tmp_path: Path, bucket: str) -> None:
    local = write_dataset(tmp_path, [make_episode(200, seed=i) for i in range(16)], name="toy", shards=8)
    there = upload(local, f"{bucket}/toy/1.0.0")
    command = ["convert", there, f"{bucket}/out", "--workers=2", "--shards=8"]
    with running(command, stdout=None, stderr=None) as process:
        wait_until(lambda: len(storage.listdir(f"{bucket}/out/_commits")) >= 2, process)
    finished = {path: data for path, data in content(f"{bucket}/out/_commits").items() if not path.startswith(".")}
    assert run(command)[0] == 0
    assert run([*command[:2], f"{bucket}/whole", *command[3:]])[0] == 0
    found, wanted = content(f"{bucket}/out"), content(f"{bucket}/whole")
    assert found == wanted  # including: no temporary files are left
    assert finished.items() <= content(f"{bucket}/out/_commits").items()


# Files


def test_files(bucket: str) -> None:
    root = f"{bucket}/x"
    storage.write_text(f"{root}/a.txt", "text")
    storage.write_bytes(f"{root}/empty", b"")
    with storage.writing(f"{root}/sub/large") as file:
        for i in range(20):
            file.write(bytes([i]) * 1_000_000)
    assert (storage.read_text(f"{root}/a.txt"), storage.read_text(f"{root}/empty")) == ("text", "")
    storage.rename(f"{root}/sub/large", f"{root}/sub/b g+ä%")
    with storage.open_read(f"{root}/sub/b g+ä%") as file:
        assert [set(file.read(1_000_000)) for _ in range(21)] == [*({i} for i in range(20)), set()]
        assert (file.seek(-3, io.SEEK_END), file.read()) == (19_999_997, bytes([19]) * 3)
        assert (file.seek(3_999_999), file.read(2), file.tell()) == (3_999_999, b"\x03\x04", 4_000_001)
    assert storage.listdir(root) == ["a.txt", "empty", "sub"]
    assert storage.sizes(root) == {"a.txt": 4, "empty": 0}
    for pattern, found in {
        "*": ["a.txt", "empty"],
        "[ab].t?t": ["a.txt"],
        "*/*": ["sub/b g+ä%"],
        "**": ["a.txt", "empty", "sub/b g+ä%"],
        "[!a]*": ["empty"],
        "none*": [],
        "a.txt": ["a.txt"],
        "none": [],
    }.items():
        assert list(storage.glob(f"{root}/{pattern}")) == [f"{root}/{name}" for name in found], pattern
        assert list(storage.glob(pattern, root)) == [f"{root}/{name}" for name in found], pattern
    assert [storage.isdir(f"{bucket}{path}") for path in ("", "/x", "/x/", "/x/sub", "/x/a.txt", "/su")] == [
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
    before = storage.checksum(f"{root}/a.txt")
    storage.write_text(f"{root}/a.txt", "test")
    assert storage.checksum(f"{root}/a.txt") != before
    storage.remove_files(root, ["a.txt", "nothing"])
    assert storage.listdir(root) == ["empty", "sub"]
    storage.rmtree(root)
    assert not storage.isdir(root)


def test_a_failed_file_is_not_uploaded(bucket: str) -> None:
    with contextlib.suppress(ZeroDivisionError), storage.writing(f"{bucket}/a") as file:
        file.write(b"%d" % (1 // 0))
    assert not content(bucket)


def test_a_shard_replaced_during_a_job(data: Data, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is noticed by the size and the entity tag, by the worker that reads the file."""
    there = upload(Path(data.plain), f"{bucket}/plain")
    job = open_job(there, f"{bucket}/out", "rlds")
    works = job.open()
    shard = next(path for path in storage.glob(f"{there}/**") if "tfrecord" in path)
    with storage.open_read(shard) as file:
        content = file.read()
    storage.write_bytes(shard, content + content)
    with pytest.raises(RldsBeamError, match="changed"):
        [job.converter.convert_range(work, {}) for work in works]


def test_google_cloud_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its XML API is like S3's; the emulators of it do not have copies."""
    with serving("s3") as server:
        root = f"{server.new_bucket().replace('s3://', 'gs://')}/x"
        monkeypatch.setenv("GOOGLE_BASE_URL", server.url)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "any")
        storage.write_text(f"{root}/a.txt", "text")
        with storage.writing(f"{root}/sub/large") as file:
            file.write(bytes(12_000_000))
        assert (storage.listdir(root), storage.sizes(root)) == (["a.txt", "sub"], {"a.txt": 4})
        assert storage.read_text(f"{root}/a.txt") == "text" and storage.size(f"{root}/sub/large") == 12_000_000
        storage.remove_files(root, ["a.txt"])
        assert storage.glob("**", root) == {f"{root}/sub/large": 12_000_000}


# Errors


def test_errors_are_one_line(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = bucket.partition("://")[0]
    with pytest.raises(BucketAccessError, match=r"(NoSuchBucket|ContainerNotFound): The specified") as error:
        storage.exists(f"{scheme}://nosuchbucket/x")
    assert "\n" not in str(error.value)
    with pytest.raises(BucketError, match="illegal character sequence"):
        storage.open_read(f"{bucket}/a/../b")
    for missing in (storage.size, storage.open_read):
        with pytest.raises(FileNotFoundError, match="no such file"):
            missing(f"{bucket}/nothing")


def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in Server("s3", "http://user:secret@127.0.0.1:1").environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BucketAccessError, match=r"s3://bucket/: Generic S3 error: HTTP error") as error:
        storage.exists("s3://bucket/x")
    assert "secret" not in str(error.value)


def test_a_profile_with_an_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("s3") as server:
        bucket = server.new_bucket()
        config, credentials = tmp_path / "config", tmp_path / "credentials"
        config.write_text(f"[profile lab]\nregion = us-east-1\nendpoint_url = {server.url}\n")
        credentials.write_text("[lab]\naws_access_key_id = a\naws_secret_access_key = b\n")
        for name in server.environment:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_PROFILE", "lab")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
        storage.write_text(f"{bucket}/a", "text")
        assert storage.read_text(f"{bucket}/a") == "text"
        remote._open_bucket.cache_clear()
        monkeypatch.delenv("AWS_PROFILE")  # no credentials: requests are unsigned
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with pytest.raises(BucketError, match=r"403 Forbidden; credentials are taken from"):
            storage.read_text(f"{bucket}/a")
