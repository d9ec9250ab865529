"""`hf://` datasets of the Hugging Face Hub, for reading, with the token that `huggingface_hub` finds.

A branch or tag is resolved to its commit once, so all files that a job reads belong together. The files of a commit are
listed once; a file is read by ranges, from the address that the Hub redirects to.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, NoReturn
from urllib.parse import quote, urljoin, urlsplit

from rlds_beam._version import __version__
from rlds_beam.buckets import base, files, ranges
from rlds_beam.buckets.base import Entry, Listing, Result, Store, WrongAnswer, check_extent, limit_parts
from rlds_beam.buckets.hub_paths import HubPath, hub_path
from rlds_beam.errors import BucketAccessError, BucketError, RldsBeamError, UsageError
from rlds_beam.naming import is_file_path
from rlds_beam.text import printable, without_secrets

_ATTEMPTS = 8
"""Attempts per request, over about 40 s; responses that break off are retried as often."""
_TIMEOUT = 60.0
_MAX_REDIRECTS = 8
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_WHOLE_BYTES = 8 << 20
"""Maximum size in bytes of a file that a Hub may send whole although only a part was asked for."""
_MAX_WAIT_SECONDS = 330.0
"""The longest wait in seconds that a rate limit may ask for; the Hub counts requests in windows of five minutes."""
_CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
"""The packages whose errors mean that a connection failed; which one depends on the version of `huggingface_hub`."""
_TEMPORARY = (408, 429, 500, 502, 503, 504)
_LOG_IN = "run 'hf auth login', or set HF_TOKEN"

READ_ONLY = "hf:// paths are read-only: write to a local directory, then publish it with 'rlds-beam upload'"


class Answer(NamedTuple):
    """An answer to a GET request.

    Attributes:
      status_code: its status.
      headers: its headers; the case of names does not matter.
      url: the address that it came from, after redirects.
      content: its body; empty if it is not a success.
      next: the address of the next page of a listing; empty if this is the last one.
    """

    status_code: int
    headers: Mapping[str, str]
    url: str
    content: bytes
    next: str


def _hide_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = without_secrets(record.getMessage()), ()
    return True


class Hub(Store):
    """A client for one Hub (`HF_ENDPOINT`) and one token.

    Attributes:
      endpoint: the address of the Hub.
      signed_in: whether there is a token.
    """

    def __init__(self) -> None:
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers, get_session

        self.endpoint = (os.environ.get("HF_ENDPOINT") or str(constants.ENDPOINT)).rstrip("/")
        self._session = get_session
        for name in ("httpx", "httpx2"):  # log every address, and some are signed
            logging.getLogger(name).addFilter(_hide_secrets)
        self._headers: Mapping[str, str] = {
            **build_hf_headers(library_name="rlds-beam", library_version=__version__),
            "Accept-Encoding": "identity",  # ranges are of the file, not of its compressed bytes
        }
        self.signed_in = "authorization" in self._headers
        self._lock = threading.RLock()
        self._commits: dict[str, str] = {}
        self._trees: dict[tuple[str, str], _Tree] = {}

    def root(self, path: str) -> str:
        return hub_path(path).root

    def check(self, path: str) -> None:
        self._commit(hub_path(path))

    def pin(self, path: str) -> str:
        place = hub_path(path)
        return place.at(self._commit(place, again=True))

    def open_read(self, path: str) -> BinaryIO:
        file = _File(self, path)
        size, first = file.open(files.FIRST_WINDOW)
        return files.reader(file.fetch, size, first)

    def open_ranges(self, path: str) -> ranges.RangeReader:
        file = _File(self, path)
        file.open(1)
        return ranges.RangeReader(file.sign, file.fetch)

    def open_write(self, path: str) -> BinaryIO:
        raise UsageError(f"{path}: {READ_ONLY}")

    def rename(self, source: str, destination: str) -> None:
        raise UsageError(f"{destination}: {READ_ONLY}")

    def delete(self, paths: Sequence[str]) -> None:
        raise UsageError(f"{paths[0] if paths else 'hf://'}: {READ_ONLY}")

    def find(self, path: str) -> Entry | None:
        place = hub_path(path)
        found = self._tree(place).files.get(place.name)
        return None if found is None else Entry(path, *found)

    def entries(self, prefix: str, *, below: bool) -> Iterator[Entry]:
        place = hub_path(prefix)
        tree, start = self._tree(place), len(place.name)
        if not place.name and not prefix.endswith("/"):
            return
        seen = ""
        for at in range(bisect.bisect_left(tree.names, place.name), len(tree.names)):
            name = tree.names[at]
            if not name.startswith(place.name):
                return
            slash = -1 if below else name.find("/", start)
            if slash < 0:
                yield Entry(f"{place.root}/{name}", *tree.files[name])
            elif name[:slash] != seen:
                seen = name[:slash]
                yield Entry(f"{place.root}/{seen}", None)

    def url(self, place: HubPath) -> str:
        """The address of a file."""
        name = quote(place.name)
        return f"{self.endpoint}/datasets/{place.repo}/resolve/{self._commit(place)}/{name}"

    def _commit(self, place: HubPath, again: bool = False) -> str:
        """The commit of a path's revision; asks the Hub once, or `again`."""
        with self._lock:
            if place.root not in self._commits or (again and not place.is_pinned):
                revision = quote(place.revision or "main", safe="")
                answer = self.get(f"{self.endpoint}/api/datasets/{place.repo}/revision/{revision}", place.root)
                self._commits[place.root] = self.checked_commit(place.root, self._json(answer, dict, place.root))
            return self._commits[place.root]

    def _tree(self, place: HubPath) -> _Tree:
        """The files of a commit."""
        commit = self._commit(place)
        with self._lock:
            if (place.repo, commit) not in self._trees:
                self._trees[place.repo, commit] = _Tree(self._list_files(place, commit))
            return self._trees[place.repo, commit]

    def _list_files(self, place: HubPath, commit: str) -> Iterator[tuple[str, int, str]]:
        """Lists (name, size, checksum) of all files, page by page."""
        url = f"{self.endpoint}/api/datasets/{place.repo}/tree/{commit}?recursive=true&expand=false"
        listing = Listing(place.root, self.endpoint)
        while url:
            answer = self.get(url, place.root)
            entries = self._json(answer, list, place.root)
            url = answer.next
            listing.add_page(len(entries), url)
            if not all(isinstance(entry, dict) for entry in entries):
                raise self.wrong(place.root)
            for entry in entries:
                if entry.get("type") == "file" and is_file_path(entry.get("path")):
                    large = entry["lfs"] if isinstance(entry.get("lfs"), dict) else {}
                    size, checksum = large.get("size", entry.get("size")), large.get("oid", entry.get("oid"))
                    if listing.is_file(entry["path"], size):
                        yield entry["path"], size, str(checksum)
            if url and not self.is_own(url):
                server = printable(urlsplit(url).netloc, 80)
                raise BucketError(f"{place.root}: the listing continues on another server, {server}")

    def checked_commit(self, path: str, described: Mapping[str, Any]) -> str:
        """The commit that the Hub names as `sha`; raises BucketError if it is none."""
        commit = described.get("sha")
        if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
            raise self.wrong(path)
        return commit

    def wrong(self, path: str) -> BucketError:
        """The error for an answer that the Hugging Face Hub would not send."""
        return BucketError(f"{path}: {self.endpoint} does not answer as the Hugging Face Hub does")

    def _json(self, answer: Answer, kind: type, path: str) -> Any:
        """The JSON of an answer; raises BucketError if it is of another kind."""
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(answer.content)
            if isinstance(content, kind):
                return content
        raise self.wrong(path)

    def is_own(self, url: str) -> bool:
        """Whether an address is on the Hub itself, which alone gets the token."""
        return urlsplit(url)[:2] == urlsplit(self.endpoint)[:2]

    def get(self, url: str, path: str, extent: tuple[int, int] | None = None, elsewhere: str | None = None) -> Answer:
        """Sends a GET request, and retries it if that can help.

        Args:
          url: the address on the Hub.
          path: the path that it is for, for errors.
          extent: the part of a file to read: start and stop.
          elsewhere: the address that the Hub redirected to earlier; if it has expired, the Hub is asked again.
        """
        session = self._session()  # older versions of huggingface_hub have one for each thread

        def request() -> Answer:
            if elsewhere:
                answer = self._send(session, elsewhere, extent)
                if answer.status_code < 300 or answer.status_code >= 500:
                    return answer  # otherwise its signature has expired
            return self._send(session, url, extent)

        return self.calling(path, request, 0 if extent is None else extent[1] - extent[0])

    def _send(self, session: Any, url: str, extent: tuple[int, int] | None) -> Answer:
        """Sends a GET request and follows redirects; only the Hub itself gets the token.

        Raises:
          WrongAnswer: the answer is too long, or leads nowhere.
        """
        ranged = {} if extent is None else {"Range": f"bytes={extent[0]}-{extent[1] - 1}"}
        for _ in range(_MAX_REDIRECTS + 1):
            headers = self._headers if self.is_own(url) else {"Accept-Encoding": "identity"}
            with _stream(session, url, {**headers, **ranged}) as (answer, parts):
                target = answer.headers.get("location")
                if answer.status_code in _REDIRECTS and target:
                    there = urljoin(url, target)
                    if urlsplit(there).scheme not in {"https", urlsplit(url).scheme}:
                        raise WrongAnswer(f"redirects to {printable(there, 80)}")
                    url = there
                    continue
                content = b"" if answer.status_code >= 300 else _body(answer, parts, extent)
                following = answer.links.get("next", {}).get("url", "")
                return Answer(answer.status_code, answer.headers, url, content, following)
        raise WrongAnswer(f"redirects more than {_MAX_REDIRECTS} times")

    def calling(self, path: str, request: Callable[[], Result], size: int = 0) -> Result:
        """Makes a request, and repeats it if that can help.

        Args:
          path: the path that it is for, for errors.
          request: returns a response, or raises an error of `huggingface_hub`.
          size: the number of bytes of files that it sends or receives.

        Raises:
          BucketError: the Hub refuses the request, failed `_ATTEMPTS` times, or sends something else.
          FileNotFoundError: the Hub has no such file.
        """
        attempt, waited = 0, 0.0
        while True:
            attempt += 1
            lost: BaseException | None = None
            try:
                result = base.within(request, path, self.endpoint, size=size)
                answer: Any = result if hasattr(result, "status_code") else None
                if answer is None or answer.status_code < 300 or answer.status_code == 416:
                    return result
            except RldsBeamError:
                raise
            except base.UNREADABLE as error:
                raise BucketError(f"{path}: {self.endpoint} {base.describe_answer(error)}") from error
            except Exception as error:
                cause = _cause(error)
                answer = getattr(cause, "response", None)
                if answer is None and not _is_of_a_connection(cause):
                    raise _offline(path, cause) or error from error
                lost = error
            if answer is None and attempt == _ATTEMPTS:
                raise BucketAccessError(
                    f"{path}: {self.endpoint} does not answer ({type(lost).__name__}); check the network and "
                    "HF_ENDPOINT"
                ) from lost
            asked = None if answer is None or answer.status_code != 429 else _wait_asked(answer.headers)
            if asked is not None and waited + asked <= _MAX_WAIT_SECONDS:
                waited, attempt = waited + asked, attempt - 1
                time.sleep(asked)
                continue
            if answer is not None and (answer.status_code not in _TEMPORARY or attempt == _ATTEMPTS):
                self.refuse(path, answer, lost)
            time.sleep(random.random() * 2 ** (attempt - 1))

    def refuse(self, path: str, answer: Any, cause: BaseException | None = None) -> NoReturn:
        """Raises the error for a response of the Hub that is not a success."""
        raise self._refusal(path, answer) from cause

    def _refusal(self, path: str, answer: Any) -> Exception:
        place, status, code = hub_path(path), answer.status_code, answer.headers.get("x-error-code", "")
        repo, said = f"hf://datasets/{place.repo}", " ".join(answer.headers.get("x-error-message", "").split())[:200]
        page = f"{self.endpoint}/datasets/{place.repo}"
        if code == "EntryNotFound":
            return FileNotFoundError(f"no such file: {path}")
        if code == "RevisionNotFound":
            return BucketAccessError(f"{repo} has no branch, tag, or commit {place.revision or 'main'!r}")
        if code == "GatedRepo":
            login = "" if self.signed_in else f", then {_LOG_IN}"
            return BucketAccessError(f"{repo} is gated: accept its terms at {page}{login}")
        if status == 401 and self.signed_in and code != "RepoNotFound":
            return BucketAccessError(f"{repo}: the Hub rejects the token: {_LOG_IN}")
        if code == "RepoNotFound" or status in (401, 404):
            other = "" if self.signed_in else f"; if it is private, {_LOG_IN}"
            private = ", or this token may not read it" if self.signed_in else ""
            return BucketAccessError(f"{repo}: there is no such dataset{private}; check its name{other}")
        if status == 403:
            return BucketAccessError(
                f"{repo}: access denied ({said or 'no reason given'}); check the token's permissions"
            )
        if status == 429:
            return BucketError(f"{path}: the Hub allows no more requests for now (429); try again later, or {_LOG_IN}")
        return BucketError(f"{path}: the Hub answers {status} {said}".rstrip())


class _Tree:
    """The files of a commit.

    Attributes:
      files: name -> (size, checksum).
      names: the names, sorted.
    """

    def __init__(self, listed: Iterator[tuple[str, int, str]]):
        self.files = {name: (size, checksum) for name, size, checksum in listed}
        self.names = sorted(self.files)


class _File:
    """A file that is read by ranges. Asks the Hub for its location once; later ranges come from there."""

    def __init__(self, hub: Hub, path: str):
        self._hub, self._path, self._size = hub, path, 0
        self._url = hub.url(hub_path(path))
        self._elsewhere: str | None = None

    def open(self, window: int) -> tuple[int, bytes]:
        """Reads the size and the first bytes with one request."""
        answer = self._get(0, window)
        if answer.status_code == 416:  # the file is empty
            return 0, b""
        if answer.status_code != 206:  # the whole file
            return len(answer.content), answer.content
        self._size = self._check_answer(answer, 0, window)
        return self._size, answer.content

    def sign(self) -> ranges.Address | None:
        """The address that the Hub redirected to last; None if it sends the file itself."""
        return None if self._elsewhere is None else ranges.Address(self._elsewhere, {})

    def fetch(self, start: int, stop: int) -> bytes:
        """Reads exactly the bytes from `start` to `stop`."""
        answer = self._get(start, stop)
        if self._check_answer(answer, start, stop) != self._size:
            raise BucketError(f"{self._path}: {self._hub.endpoint} says now that the file has another size")
        return answer.content

    def _check_answer(self, answer: Answer, start: int, stop: int) -> int:
        """The size of the file, if the answer has the bytes from `start` to `stop`; else raises BucketError."""
        try:
            size = check_extent(answer.headers.get("content-range"), start, stop)
        except WrongAnswer as error:
            raise BucketError(f"{self._path}: {self._hub.endpoint} {error}") from None
        if len(answer.content) != min(stop, size) - start:
            raise BucketError(
                f"{self._path}: {self._hub.endpoint} was asked for {min(stop, size) - start:,} bytes, and sends "
                f"{len(answer.content):,}"
            )
        return size

    def _get(self, start: int, stop: int) -> Answer:
        answer = self._hub.get(self._url, self._path, (start, stop), self._elsewhere)
        self._elsewhere = None if self._hub.is_own(answer.url) else answer.url
        return answer


@contextlib.contextmanager
def _stream(session: Any, url: str, headers: Mapping[str, str]) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """Sends a GET request without redirects; yields the response, and the parts of its body as they arrive."""
    if callable(getattr(session, "stream", None)):  # httpx
        with session.stream("GET", url, headers=headers, timeout=_TIMEOUT, follow_redirects=False) as answer:
            yield answer, answer.iter_raw()
    else:  # requests, before version 1 of huggingface_hub
        with session.get(url, headers=headers, timeout=_TIMEOUT, allow_redirects=False, stream=True) as answer:
            yield answer, answer.raw.stream(1 << 16, decode_content=False)


def _body(answer: Any, parts: Iterator[bytes], extent: tuple[int, int] | None) -> bytes:
    """The body of a successful answer; raises WrongAnswer if it is longer than what was asked for."""
    most = base.MAX_ANSWER_BYTES if extent is None else _MAX_WHOLE_BYTES
    if extent is not None and answer.status_code == 206:
        most = extent[1] - extent[0]
    if (encoding := answer.headers.get("content-encoding", "identity")) != "identity":
        raise WrongAnswer(f"compresses its answer ({printable(encoding, 40)}), which was not asked for")
    base.check_length(answer.headers.get("content-length"), most)
    return b"".join(limit_parts(parts, most))


def _cause(error: BaseException) -> BaseException:
    """The error behind one that `huggingface_hub` raises while it sends a file."""
    return error.__cause__ if type(error) is RuntimeError and error.__cause__ is not None else error


def _is_of_a_connection(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _CLIENTS


def _wait_asked(headers: Mapping[str, str]) -> float | None:
    """The seconds that a rate limit asks to wait: `Retry-After: 7` or `RateLimit: "api";r=0;t=7`."""
    after = headers.get("retry-after", "")
    limit = re.search(r";\s*t\s*=\s*(\d{1,6})", headers.get("ratelimit", ""))
    if re.fullmatch(r"\d{1,6}", after):
        return float(after)
    return float(limit[1]) + 1 if limit else None


def _offline(path: str, error: BaseException) -> BucketAccessError | None:
    """The error for `HF_HUB_OFFLINE=1`."""
    if type(error).__name__ != "OfflineModeIsEnabled":
        return None
    return BucketAccessError(f"{path}: HF_HUB_OFFLINE is set; unset it to read from the Hub")
