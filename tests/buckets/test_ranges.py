"""Ranges of objects over kept connections, and batches that are read with them, on local stores."""

from __future__ import annotations

import contextlib
import functools
import http.server
import itertools
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lerobot_data
import numpy as np
import pytest
import static_s3
from bucket_faults import HALF, Answer, Request, faulty
from bucket_servers import Server, serving, upload, wait_for_server
from exchanging import export
from processes import DEADLINE, start
from servers import free_port

import rlds_beam
from rlds_beam import storage
from rlds_beam.buckets import ranges
from rlds_beam.buckets.base import split_path
from rlds_beam.buckets.opening import open_store
from rlds_beam.encoding.parquet_files import open_shared, share_spans
from rlds_beam.errors import BucketError, RldsBeamError

pytestmark = pytest.mark.usefixtures("cache")

CONTENT = np.random.default_rng(0).bytes(300_000)
RANGES = [(0, 1), (10, 20_010), (299_999, 300_000), (0, 300_000), (5, 5)]


@pytest.fixture(scope="module", params=["s3", "gs", "az"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(request.param) as server:
        yield server


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.new_bucket()


def write(bucket: str, content: bytes = CONTENT) -> str:
    path = f"{bucket}/deep/a file, 1%.bin"
    storage.write_bytes(path, content)
    return path


def without_client(path: str) -> ranges.RangeReader:
    """A reader that cannot use the vendor's client."""
    store: Any = open_store(path)
    bucket, name = split_path(path)
    _, version, _ = store.open(bucket, name, 1)

    def refuse(start: int, stop: int) -> bytes:
        raise AssertionError(f"the client was used for {start} to {stop}")

    return ranges.RangeReader(functools.partial(store.sign, bucket, name, version), refuse)


def test_ranges_need_no_client(bucket: str) -> None:
    reader = without_client(write(bucket))
    futures = [(pair, reader.request(*pair)) for pair in RANGES * 2]
    for pair, future in futures:
        assert future.result(DEADLINE) == CONTENT[slice(*pair)]


def test_an_object_that_was_replaced_is_an_error(bucket: str) -> None:
    if bucket.startswith("gs"):
        pytest.skip("the emulator ignores the generation of a request")
    path = write(bucket)
    reader = storage.open_ranges(path)
    assert reader.read(7, 9) == CONTENT[7:9]
    write(bucket, CONTENT[::-1])
    with pytest.raises(BucketError, match=r"a file, 1%\.bin was replaced while it was read"):
        reader.read(7, 9)
    assert storage.open_ranges(path).read(7, 9) == CONTENT[::-1][7:9]


def test_a_missing_object(bucket: str) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        storage.open_ranges(f"{bucket}/missing")


@pytest.fixture(scope="module")
def s3() -> Iterator[Server]:
    with serving("s3") as server:
        yield server


@pytest.fixture
def s3_bucket(s3: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3.new_bucket()


WRONG = {
    "unavailable": Answer(503, b"<Error><Code>SlowDown</Code></Error>"),
    "cut short": HALF,
    "whole": Answer(200, CONTENT),
    "other bytes": Answer(206, b"x" * 100, (("Content-Range", "bytes 0-99/300000"),)),
    "too few": Answer(206, b"x" * 90, (("Content-Range", "bytes 100-199/300000"),)),
    "no end": Answer(206, itertools.repeat(b"x" * 1000), (("Content-Range", "bytes 100-199/300000"),)),
    "compressed": Answer(206, b"x" * 100, (("Content-Range", "bytes 100-199/300000"), ("Content-Encoding", "gzip"))),
    "long header": Answer(206, b"x" * 100, tuple((f"X-{i}", "y" * 1000) for i in range(40))),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_left_to_the_client(
    name: str, s3: Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third request is the first one without the client, after the check of the bucket and the opening."""
    path, seen = write(s3_bucket), []

    def fault(request: Request) -> Answer | None:
        if "X-Amz-Signature" not in request.path:
            return None
        seen.append(request)
        return WRONG[name] if len(seen) == 1 else None

    with faulty(s3.url, fault) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        reader = storage.open_ranges(path)
        assert [reader.read(100, 200) for _ in range(3)] == [CONTENT[100:200]] * 3
    assert len(seen) == 1  # then the client is used for a while


@contextlib.contextmanager
def serving_files(folder: Path, *options: str) -> Iterator[Server]:
    """A server that keeps connections open, with the bucket `bucket`."""
    port = free_port()
    with start([sys.executable, str(Path(static_s3.__file__)), str(port), str(folder), *options]) as process:
        wait_for_server(f"http://127.0.0.1:{port}/_counts", process)
        yield Server("s3", f"http://127.0.0.1:{port}")


def test_connections_are_kept_and_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "a").write_bytes(CONTENT)
    with serving_files(tmp_path, "--delay=2", "--gigabits=1") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        reader = without_client("s3://bucket/a")
        futures = [(i, reader.request(i, i + 50_000)) for i in range(500)]
        for i, future in futures:
            assert future.result(DEADLINE) == CONTENT[i : i + 50_000]
        target = reader.find_target()
        assert target is not None
        assert 0 < len(target.server.idle) <= ranges.MAX_CONNECTIONS
        for idle in list(target.server.idle):
            idle.sock.shutdown(socket.SHUT_RDWR)
        assert reader.read(0, 100) == CONTENT[:100]


class RangeServer(http.server.ThreadingHTTPServer):
    """Accepts a number of connections, and refuses more."""

    request_queue_size = 1024
    block_on_close = False
    most = 1 << 30

    def get_request(self) -> Any:
        accepted = super().get_request()
        self.most -= 1
        if not self.most:
            self.socket.close()
        return accepted


class RangeHandler(http.server.BaseHTTPRequestHandler):
    """Answers with a range of `CONTENT`, and ends connections after ten answers without a word."""

    protocol_version = "HTTP/1.1"
    answers, most = 0, 10

    def do_GET(self) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.send_response(206)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(CONTENT)}")
        self.end_headers()
        self.wfile.write(CONTENT[first : last + 1])
        self.answers += 1
        self.close_connection = self.answers == self.most

    def log_message(self, *_: object) -> None:
        pass


class KeepingHandler(RangeHandler):
    most = -1


class WaitingHandler(KeepingHandler):
    """Answers once there are 300 connections."""

    barrier, is_open = threading.Barrier(300), False

    def do_GET(self) -> None:
        if not self.is_open:
            self.barrier.wait(DEADLINE)
            WaitingHandler.is_open = True
        super().do_GET()


class ClosingHandler(RangeHandler):
    """Closes each connection after an answer."""

    protocol_version = "HTTP/1.0"


def refuse(start: int, stop: int) -> bytes:
    raise AssertionError(f"the client was used for {start} to {stop}")


@contextlib.contextmanager
def serving_ranges(handler: type[RangeHandler], **attributes: Any) -> Iterator[RangeServer]:
    server = RangeServer(("127.0.0.1", 0), handler)
    vars(server).update(attributes)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        if server.socket.fileno() >= 0:
            server.shutdown()
            server.server_close()


@pytest.mark.parametrize("name", ["closes each", "accepts three"])
def test_servers_with_few_connections(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MAX_CONNECTIONS", 16)
    handler, most = (ClosingHandler, 1 << 30) if name == "closes each" else (KeepingHandler, 3)
    with serving_ranges(handler, most=most) as server:
        url = f"http://127.0.0.1:{server.server_port}/a"
        reader = ranges.RangeReader(lambda: ranges.Address(url, {}), refuse)
        contents = [(i, reader.request(i, i + 15_000)) for i in range(0, 60_000, 400)]
        for i, content in contents:
            assert content.result(DEADLINE) == CONTENT[i : i + 15_000]


@pytest.mark.parametrize("host", ["127.0.0.1:99999", "127.0.0.1:1", "a..b", f"{'a' * 70}.b"])
def test_addresses_that_cannot_be_asked(host: str) -> None:
    address = ranges.Address(f"http://{host}/a", {})
    reader = ranges.RangeReader(lambda: address, lambda start, stop: CONTENT[start:stop])
    assert [reader.request(i, 9).result(DEADLINE) for i in range(3)] == [CONTENT[i:9] for i in range(3)]


@pytest.mark.parametrize("failing", [False, True])
def test_many_stale_connections(failing: bool) -> None:
    """Also if the thread that sends has an error that nobody expected."""
    WaitingHandler.is_open = False
    with serving_ranges(WaitingHandler) as server:
        url = f"http://127.0.0.1:{server.server_port}/a"
        reader = ranges.RangeReader(lambda: ranges.Address(url, {}), lambda start, stop: CONTENT[start:stop])
        for content in [reader.request(i, i + 10) for i in range(300)]:
            content.result(DEADLINE)
        target = reader.find_target()
        assert target is not None

        def end_connections() -> None:
            assert target is not None and len(target.server.idle) == 300
            for idle in target.server.idle:
                idle.sock.shutdown(socket.SHUT_WR)
            if failing:
                raise RuntimeError

        target.server.loop.call(end_connections)
        assert reader.read(5, 1000) == CONTENT[5:1000]
        assert (reader.find_target() is None) == failing


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_connections_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost", *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    monkeypatch.setattr(ranges, "_tls", ranges._tls.__wrapped__)

    with RangeServer(("localhost", 0), RangeHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        reader = ranges.RangeReader(lambda: ranges.Address(f"https://localhost:{server.server_port}/a", {}), refuse)
        for size in (1, 15_000, 200_000):
            contents = [(i, reader.request(i, i + size)) for i in range(0, 60_000, 400)]
            for i, content in contents:
                assert content.result(DEADLINE) == CONTENT[i : i + size]
        server.shutdown()


def test_spans_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow reads a chunk of a column and what is next to it; images are then searched in the chunk."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "a").write_bytes(CONTENT)
    with serving_files(tmp_path) as server, share_spans() as spans:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)

        def sent() -> int:
            with urllib.request.urlopen(f"{server.url}/_counts", timeout=DEADLINE) as answer:
                return int(json.load(answer)["bytes"])

        with open_shared("s3://bucket/a") as file:
            file.seek(1000)
            before = sent()
            assert file.read(200_000) == CONTENT[1000:201_000]
            assert file.read(10) == CONTENT[201_000:201_010]
        opened = sent()
        assert 200_000 < opened - before < 400_000
        assert spans.read("s3://bucket/a", 1500, 200_000) == CONTENT[1500:200_000]
        assert sent() - opened < 1000
        spans.forget()
        assert spans.read("s3://bucket/a", 1500, 200_000) == CONTENT[1500:200_000]
        assert sent() - opened > 190_000
    with open_shared(str(tmp_path / "bucket" / "a")) as file:
        assert file.read() == CONTENT


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset with a camera, by format."""
    home = tmp_path_factory.mktemp("moving")
    source, _ = lerobot_data.write_moving_data(home)
    found = {"rlds": Path(source)}
    for name, to, options in (
        ("lerobot", "lerobot", {"fps": 10}),
        *([("video", "lerobot", {"fps": 10, "images": "video"})] if find_spec("av") else []),
        ("parquet", "columns", {"format": "parquet"}),
        ("tfrecord", "columns", {"format": "tfrecord"}),
    ):
        found[name] = home / "out" / name
        export(source, found[name], to, **options)
    return found


def camera(path: Path) -> str:
    fields = rlds_beam.open_dataset(path, **_unit(path)).fields
    return next(name for name, field in fields.items() if field.holds_image_files)


def _unit(path: object) -> Any:
    return {} if "parquet" in str(path) or "tfrecord" in str(path) else {"unit": "steps"}


def test_a_forked_process_reads(moving: dict[str, Path], s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's data loaders fork before Python 3.14; the process id distinguishes a fork from its parent."""
    where, path = upload(moving["rlds"], f"{s3_bucket}/rlds"), write(s3_bucket)
    name, reader = camera(moving["rlds"]), storage.open_ranges(path)
    dataset = rlds_beam.open_dataset(where, unit="steps")
    futures = [reader.request(0, 1000) for _ in range(20)]
    wanted = next(dataset.batches(4, columns=[name]))[name]
    target = reader.find_target()
    assert target is not None and {future.result(DEADLINE) for future in futures} == {CONTENT[:1000]}
    monkeypatch.setattr("os.getpid", lambda: -1)
    np.testing.assert_array_equal(next(dataset.batches(4, columns=[name]))[name], wanted)
    assert storage.open_ranges(path).read(0, 1000) == CONTENT[:1000]
    assert reader.read(0, 1000) == CONTENT[:1000]
    forked = reader.find_target()
    assert forked is not None and forked.server.loop is not target.server.loop


@pytest.mark.parametrize("name", ["rlds", "lerobot", "video", "parquet", "tfrecord"])
def test_batches_equal_local_ones(name: str, moving: dict[str, Path], s3_bucket: str, cache: Path) -> None:
    if name not in moving:
        pytest.skip("PyAV is not installed")
    there = upload(moving[name], f"{s3_bucket}/{name}")
    history = {} if _unit(name) == {} else {"history": 2}
    far, near = (
        rlds_beam.open_dataset(str(path), **_unit(name)).batches(4, shuffle=True, epochs=2, **history)
        for path in (there, moving[name])
    )
    for found, wanted in zip(far, near, strict=True):
        assert found.keys() == wanted.keys()
        for path in wanted:
            np.testing.assert_array_equal(found[path], wanted[path], path)
    for blob in cache.glob("steps/*/blob.bin"):
        assert blob.stat().st_size == 0  # no image was copied


def test_closed_batches_keep_no_bytes(moving: dict[str, Path], s3_bucket: str) -> None:
    there = upload(moving["rlds"], f"{s3_bucket}/rlds")
    dataset = rlds_beam.open_dataset(there, unit="steps")
    state: Any = dataset.rows._reader._remote  # type: ignore[attr-defined]
    batches = dataset.batches(2)
    next(batches)
    assert state._kept
    batches.close()
    assert not state._kept and state._bytes == 0
    assert len(list(batches)) == len(dataset.batches(2)) - 1


def images_of(where: str, name: str) -> Any:
    dataset = rlds_beam.open_dataset(where, unit="steps")
    return np.concatenate([batch[name] for batch in dataset.batches(4, columns=[name])])


def test_a_store_that_is_away_for_seconds(
    moving: dict[str, Path], s3: Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, there = camera(moving["rlds"]), upload(moving["rlds"], f"{s3_bucket}/rlds")
    wanted = images_of(str(moving["rlds"]), name)
    away = threading.Event()
    with faulty(
        s3.url, lambda _: Answer(503, b"<Error><Code>SlowDown</Code></Error>") if away.is_set() else None
    ) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        dataset = rlds_beam.open_dataset(there, unit="steps")
        away.set()
        timer = threading.Timer(1.0, away.clear)
        timer.start()
        found = [batch[name] for batch in dataset.batches(4, columns=[name])]
        timer.join()
    np.testing.assert_array_equal(np.concatenate(found), wanted)


def test_a_replaced_dataset_is_an_error(moving: dict[str, Path], s3_bucket: str) -> None:
    there = upload(moving["rlds"], f"{s3_bucket}/rlds")
    dataset = rlds_beam.open_dataset(there, unit="steps")
    name = camera(moving["rlds"])
    shards = [path for path in storage.glob(f"{there}/**") if "tfrecord" in path]
    for path in shards:
        with storage.open_read(path) as file:
            content = file.read()
        storage.write_bytes(path, content[::-1])
    with pytest.raises(RldsBeamError, match=r"do not match their checksum|was replaced"):
        next(dataset.batches(4, columns=[name]))
