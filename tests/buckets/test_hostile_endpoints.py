"""Stores that send something else than they should: too much, too slowly, without end, or other bytes.

Each case runs for the Hub, S3, Google Cloud Storage, and Azure. One line names the store
and what is wrong with its answer.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bucket_faults import Answer, Fault, Request, faulty
from bucket_servers import azure_account
from processes import DEADLINE, RLDS_BEAM, start

from rlds_beam import storage
from rlds_beam.buckets import base
from rlds_beam.buckets.files import FIRST_WINDOW
from rlds_beam.errors import BucketError

COMMIT = "0" * 40
SIZE = 1 << 20
"""The size of the only file."""
JSON = ("Content-Type", "application/json")
MANY = b" " * (1 << 16)


class Kind(NamedTuple):
    """How a store speaks.

    Attributes:
      root: the path of a directory; `root/a` is its only file.
      environment: the variables that name the store, for an address.
      describes: whether a request is for anything else than a listing or a file.
      lists, reads: the texts in requests for a listing, and for the bytes of a file.
      page: a page of a listing, from names, sizes, and the cursor of the next page.
      described: the answers to other requests.
    """

    root: str
    environment: Callable[[str], dict[str, str]]
    lists: str
    reads: str
    page: Callable[[str, Sequence[tuple[str, object]], str], Answer]
    described: Callable[[Request], Answer]


def _hub_page(url: str, files: Sequence[tuple[str, object]], cursor: str) -> Answer:
    entries = [{"type": "file", "path": name, "size": size, "oid": "0"} for name, size in files]
    following = f'<{url}/api/datasets/robots/toy/tree/{COMMIT}?cursor={cursor}>; rel="next"'
    return Answer(200, json.dumps(entries).encode(), (JSON, *([("Link", following)] if cursor else [])))


def _s3_page(url: str, files: Sequence[tuple[str, object]], cursor: str) -> Answer:
    from urllib.parse import quote

    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{cursor}</NextContinuationToken>" if cursor else ""
    objects = "".join(
        f"<Contents><Key>{quote(name)}</Key><Size>{size}</Size><ETag>&quot;0&quot;</ETag></Contents>"
        for name, size in files
    )
    body = f"<ListBucketResult><EncodingType>url</EncodingType>{more}{objects}</ListBucketResult>"
    return Answer(200, body.encode())


def _gcs_page(url: str, files: Sequence[tuple[str, object]], cursor: str) -> Answer:
    content: dict[str, Any] = {"items": [{"name": name, "size": str(size)} for name, size in files]}
    return Answer(200, json.dumps(content | ({"nextPageToken": cursor} if cursor else {})).encode(), (JSON,))


def _azure_page(url: str, files: Sequence[tuple[str, object]], cursor: str) -> Answer:
    from urllib.parse import quote

    blobs = "".join(
        f'<Blob><Name Encoded="true">{quote(name)}</Name><Properties><Content-Length>{size}</Content-Length>'
        "<Etag>0</Etag></Properties></Blob>"
        for name, size in files
    )
    body = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{cursor}</NextMarker></EnumerationResults>"
    return Answer(200, body.encode(), (("Content-Type", "application/xml"),))


KINDS = {
    "hf": Kind(
        "hf://datasets/robots/toy",
        lambda url: {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_TOKEN": ""},
        "/tree/",
        "/resolve/",
        _hub_page,
        lambda _: Answer(200, json.dumps({"sha": COMMIT}).encode(), (JSON,)),
    ),
    "s3": Kind(
        "s3://bucket",
        lambda url: {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_REGION": "us-east-1",
        },
        "list-type=2",
        "/bucket/a",
        _s3_page,
        lambda _: Answer(404),
    ),
    "gs": Kind(
        "gs://bucket",
        lambda url: {"STORAGE_EMULATOR_HOST": url},
        "/b/bucket/o?",
        "alt=media",
        _gcs_page,
        lambda _: Answer(200, json.dumps({"name": "a", "size": str(SIZE), "generation": "1"}).encode(), (JSON,)),
    ),
    "az": Kind("az://bucket", azure_account, "comp=list", "/bucket/a", _azure_page, lambda _: Answer(404)),
}


class Store:
    """A store whose answers a test sets.

    Attributes:
      kind: how it speaks.
      url: its address.
      listing, content: the answers to requests for a listing, and for the bytes of a file.
      described: the answers to others.
      window: the number of bytes of the first request for a file.
      sent: the bytes of a body that never ends that were sent.
      closing: set when the test ends.
    """

    def __init__(self, kind: Kind):
        self.kind, self.url, self.sent, self.closing = kind, "", 0, threading.Event()
        self.listing: Callable[[Request], Answer] = lambda _: kind.page(self.url, [("a", SIZE)], "")
        self.window = 2 * FIRST_WINDOW if "gs://" in kind.root else FIRST_WINDOW
        self.content: Callable[[Request], Answer] = lambda _: part(0, self.window)
        self.described = kind.described
        self.checked = False

    def answer(self, request: Request) -> Answer:
        """Answers a request; the first listing is the check of the bucket."""
        if self.kind.reads in request.path:
            return self.content(request)
        if self.kind.lists in request.path:
            if not self.checked and self.kind.root.partition(":")[0] != "hf":
                self.checked = True
                return self.kind.page(self.url, [], "")
            return self.listing(request)
        return self.described(request)

    def endless(self) -> Iterator[bytes]:
        """The parts of a body that never ends."""
        while not self.closing.is_set():
            yield MANY
            self.sent += len(MANY)

    def slow(self) -> Iterator[bytes]:
        """Bytes that arrive now and then."""
        while not self.closing.wait(0.02):
            yield b" "


def part(start: int, stop: int, size: int = SIZE, **changes: Any) -> Answer:
    """The answer to a request for a part of a file."""
    headers = (("Content-Range", f"bytes {start}-{stop - 1}/{size}"), ("ETag", '"0"'))
    return Answer(206, bytes(stop - start), headers)._replace(**changes)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    module = {"hf": "huggingface_hub", "s3": "boto3", "gs": "google.cloud.storage", "az": "azure.storage.blob"}[
        request.param
    ]
    pytest.importorskip(module)
    store = Store(KINDS[request.param])
    fault: Fault = store.answer
    with faulty("", fault) as url:
        store.url = url
        for name, value in (store.kind.environment(url) | {"HF_HOME": str(tmp_path)}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("time.sleep", lambda _: None)
        try:
            yield store
        finally:
            store.closing.set()


def refused(store: Store, action: Callable[[], object], problem: str) -> None:
    """Asserts that an action fails with one line that names the path, the store, and the problem."""
    with pytest.raises(BucketError, match=problem) as caught:
        action()
    said = str(caught.value)
    assert said.startswith(store.kind.root) and store.url in said and "\n" not in said and said.isprintable()


def listed(store: Store) -> list[str]:
    return storage.files_below(store.kind.root, "**")


def episode_content(store: Store) -> bytes:
    with storage.open_read(f"{store.kind.root}/a") as file:
        return file.read()


def limit_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a request take half a second; the store sends without end, so a busy machine changes nothing."""
    monkeypatch.setattr(base, "MAX_SECONDS", 0.5)
    monkeypatch.setattr(base, "_MIN_BYTES_PER_SECOND", 1 << 20)


# Listings


def test_a_listing_that_repeats_itself(store: Store) -> None:
    store.listing = lambda _: store.kind.page(store.url, [("a", 1)], "again")
    refused(store, lambda: listed(store), "sends a listing that repeats itself|Pagination|same next token")


@pytest.mark.parametrize("entries", [0, 50])
def test_a_listing_that_never_ends(entries: int, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_LISTED", 5_000)
    numbers = itertools.count()
    files = [(f"x{i:02}", 1) for i in range(entries)]
    store.listing = lambda _: store.kind.page(store.url, files, f"n{next(numbers)}")
    refused(store, lambda: listed(store), r"lists more than 5,000 files: name a directory with fewer")
    assert next(numbers) < 40


@pytest.mark.parametrize("size", [-5, "many", 2.5])
def test_sizes_that_are_none(size: object, store: Store) -> None:
    store.listing = lambda _: store.kind.page(store.url, [("a", size)], "")
    refused(store, lambda: listed(store), r"says that the size of \S*a is|sends an answer that cannot be read")


def test_names_that_lead_elsewhere_are_left_out(store: Store) -> None:
    names = ["../x", "a/../../x", "\x1b]52;c;x", "b\x00c", "line\nbreak", "a/b", "..", "."]
    store.listing = lambda _: store.kind.page(store.url, [(name, 1) for name in names], "")
    assert listed(store) == [f"{store.kind.root}/a/b"]


BODIES: dict[str, tuple[bytes, int | None]] = {
    "nested": (b"[" * 300_000, None),
    "nested objects": (b'{"items":' * 300_000, None),
    "nested tags": (b"<a>" * 300_000, None),
    "half": (b'{"items": [{"name', None),
    "nothing": (b"", None),
    "a number": (b"7", None),
    "a text": (b'"text"', None),
    "a list of numbers": (b"[1, 2]", None),
    "items that are none": (b'{"items": [1, null]}', None),
    "not UTF-8": (b"\xff\xfe{}", None),
}


EMPTY = {("nothing", "s3")}
"""The body and the store for which it is a listing without files."""


@pytest.mark.parametrize("body", BODIES)
def test_a_listing_that_is_something_else(body: str, store: Store) -> None:
    content, length = BODIES[body]
    store.listing = lambda _: Answer(200, content, (JSON,), length=length)
    if (body, store.kind.root[:2]) in EMPTY:
        assert listed(store) == []
    else:
        refused(
            store, lambda: listed(store), "sends an answer that|does not answer as|: Unable to parse|Internal Server"
        )


def test_a_listing_without_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_ANSWER_BYTES", 1 << 20)
    for length in (None, 1 << 40):
        store.listing = lambda _, length=length: Answer(200, store.endless(), (JSON,), length=length)  # type: ignore[misc]
        refused(store, lambda: listed(store), r"1,048,576 bytes")
    assert store.sent < 64 << 20  # with what is in the buffers of sockets


def test_a_listing_that_arrives_slowly(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_time(monkeypatch)
    store.listing = lambda _: Answer(200, store.slow(), (JSON,), length=1 << 20)
    refused(store, lambda: listed(store), r"takes more than \d s to answer")


@pytest.mark.parametrize("target", ["/again", "file:///etc/passwd", "//"])
def test_redirects_that_lead_nowhere(target: str, store: Store) -> None:
    moved = Answer(302, b"", (("Location", target),))
    store.listing = store.described = lambda _: moved
    with pytest.raises(BucketError) as caught:
        listed(store)
    assert "\n" not in str(caught.value)


# Files


def test_a_store_that_ignores_ranges(store: Store) -> None:
    store.content = lambda _: Answer(200, store.endless(), (("ETag", '"0"'),))
    refused(store, lambda: episode_content(store), r"sends more|Content-Range response header is missing")
    assert store.sent < 64 << 20


def ranged(text: str) -> tuple[tuple[str, str], ...]:
    return (("Content-Range", text), ("ETag", '"0"'))


WRONG: dict[str, tuple[Callable[[int], Answer], str]] = {
    "no Content-Range": (lambda stop: part(0, stop, headers=(("ETag", '"0"'),)), "no Content-Range"),
    "another part": (lambda stop: part(1, stop + 1), "answers with bytes 1-"),
    "text": (lambda stop: part(0, stop, headers=ranged("bytes a-b/c")), "bytes a-b/c"),
    "control": (lambda stop: part(0, stop, headers=ranged("\x1b[2J")), r"\\x1b"),
    "no size": (lambda stop: part(0, stop, headers=ranged(f"bytes 0-{stop - 1}/*")), r"/\*"),
    "huge size": (lambda stop: part(0, stop, headers=ranged(f"bytes 0-{stop - 1}/{'9' * 40}")), "/9999"),
    "short": (lambda stop: part(0, stop, body=bytes(100)), "and sends 100|sends 100 bytes as|the bytes 100 to"),
    "long": (lambda stop: part(0, stop, body=bytes(2 * stop)), f"sends {1 << 18}|sends {1 << 19}"),
    "huge": (lambda stop: part(0, stop, length=1 << 40), f"sends {1 << 40}"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_other_bytes_than_those_asked_for(wrong: str, store: Store) -> None:
    answer, problem = WRONG[wrong]
    store.content = lambda _: answer(store.window)
    refused(store, lambda: episode_content(store), problem)


def test_a_file_that_has_no_version(store: Store) -> None:
    if store.kind is KINDS["hf"]:
        pytest.skip("a commit of the Hub is one")
    store.content = lambda _: part(0, 1 << 17, headers=(("Content-Range", f"bytes 0-131071/{SIZE}"),))
    about = json.dumps({"name": "a", "size": str(SIZE)}).encode()
    store.described = lambda _: Answer(200, about, (JSON,))
    refused(store, lambda: episode_content(store), "sends no ETag|does not say the generation")


def test_bytes_that_arrive_slowly(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_time(monkeypatch)
    store.content = lambda _: part(0, store.window, body=store.slow(), length=store.window)
    refused(store, lambda: episode_content(store), r"takes more than \d s to answer")


@pytest.mark.parametrize("body", [MANY, b"["])
def test_memory_stays_small(body: bytes, store: Store, tmp_path: Path) -> None:
    """A command in a process with little memory, and a store that sends without end."""
    store.listing = store.content = lambda _: Answer(200, itertools.repeat(body * (len(MANY) // len(body))), (JSON,))
    environment = {**os.environ, **store.kind.environment(store.url), "HF_HOME": str(tmp_path), "HOME": str(tmp_path)}
    command = ["prlimit", f"--as={6 << 30}", *RLDS_BEAM, "inspect", f"{store.kind.root}/toy"]
    with start(command, env=environment) as process:
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode in (1, 2), out, err.count("\n")) == (True, "", 1), err
    assert store.url in err and "Traceback" not in err
