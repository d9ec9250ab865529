"""A server on loopback that speaks the API of the Hugging Face Hub: datasets, revisions, ranges, large files, commits.

The client is `huggingface_hub` itself. Repositories are in memory. Files are large files (LFS) if they hold NUL bytes
or more than 64 KB; the Hub redirects their readers to another host, as its CDN is (here `localhost`).
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from bucket_faults import HALF, Answer, Fault, Request, send
from hub_repositories import Blob, Refused, Repo, is_large, json_answer, ranged

TOKEN = "hf_testtoken_of_robots"
"""The only valid token; its user is `robots`."""
PAGE = 7
"""Entries on a page of a listing."""


class HubServer:
    """The server.

    Attributes:
      url: the address, for `HF_ENDPOINT`.
      repos: the repositories by name.
      stored: the content of each large file ever uploaded, by SHA-256.
      puts: how often the content of each large file was sent.
      requests: `METHOD path` of each request.
      fault: answers or cuts requests instead of the server.
      authorized_elsewhere: whether a token ever reached the other host.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.stored: dict[str, bytes] = {}
        self.puts: Counter[str] = Counter()
        self.requests: list[str] = []
        self.fault: Fault = lambda _: None
        self.authorized_elsewhere = False
        self._lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.elsewhere = f"http://localhost:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self, home: Path, token: str | None = None) -> dict[str, str]:
        """The variables with which `huggingface_hub` uses this server; an empty token hides a user's own."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_TOKEN": token or "",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def add(self, directory: Path, name: str, **settings: Any) -> str:
        """Makes a commit with the files of a directory; returns the path."""
        repo = self.repos.setdefault(name, Repo(**settings))
        files = {}
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            file = path.relative_to(directory).as_posix()
            content = path.read_bytes()
            files[file] = Blob(content, is_large(content))
        repo.commit("main", files, "Add files")
        return f"hf://datasets/{name}"

    def answer(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Answer:
        """Answers a request."""
        path, query = urlsplit(url).path, {k: v[0] for k, v in parse_qs(urlsplit(url).query).items()}
        try:
            with self._lock:
                for pattern, route in _ROUTES:
                    if (match := re.fullmatch(pattern, f"{method} {path}")) is not None:
                        return route(_Call(self, headers, query, body), *map(unquote, match.groups()))
        except Refused as refused:
            return refused.answer
        return Refused(501, f"{method} {url} is not served here").answer


@dataclasses.dataclass
class _Call:
    """A request that matched a route."""

    server: HubServer
    headers: dict[str, str]
    query: dict[str, str]
    body: bytes

    @property
    def user(self) -> str | None:
        given = self.headers.get("authorization")
        if given not in (None, f"Bearer {TOKEN}"):
            raise Refused(401, "Invalid credentials in Authorization header")
        return "robots" if given else None

    def writer(self) -> None:
        if self.user is None:
            raise Refused(401, "Invalid username or password.")

    def repo(self, name: str) -> Repo:
        repo, user = self.server.repos.get(name), self.user
        if repo is None or (repo.private and user is None):
            raise Refused(404 if user else 401, "Repository not found", "RepoNotFound")
        return repo

    def revision(self, name: str, revision: str) -> tuple[Repo, str]:
        repo = self.repo(name)
        oid = repo.resolve(revision)
        if oid is None:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return repo, oid


def _whoami(call: _Call) -> Answer:
    call.writer()
    return json_answer({"type": "user", "name": call.user, "orgs": [], "auth": {"accessToken": {"role": "write"}}})


def _create(call: _Call) -> Answer:
    call.writer()
    asked = json.loads(call.body)
    name = f"{asked.get('organization') or call.user}/{asked['name']}"
    if asked.get("organization") not in (None, call.user):
        raise Refused(403, f"You don't have the rights to create a dataset under the namespace {asked['organization']}")
    there = name in call.server.repos
    if not there:
        private = asked.get("private") is True or asked.get("visibility") == "private"
        repo = call.server.repos[name] = Repo(private=private)
        repo.commit("main", {".gitattributes": Blob(b"*.parquet filter=lfs\n", False)}, "initial commit")
    return json_answer({"url": f"{call.server.url}/datasets/{name}", "name": name}, 409 if there else 200)


def _info(call: _Call, name: str, revision: str = "main") -> Answer:
    repo, oid = call.revision(name, revision)
    return json_answer(
        {
            "_id": "0",
            "id": name,
            "author": name.split("/")[0],
            "sha": oid,
            "private": repo.private,
            "gated": "auto" if repo.gated else False,
            "disabled": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [{"rfilename": file} for file in sorted(repo.commits[oid])],
        }
    )


def _described(path: str, blob: Blob) -> dict[str, Any]:
    lfs = {"lfs": {"oid": blob.sha256, "size": blob.size, "pointerSize": 130}} if blob.large else {}
    return {"type": "file", "oid": blob.oid, "size": blob.size, "path": path, **lfs}


def _tree(call: _Call, name: str, revision: str, below: str = "") -> Answer:
    repo, oid = call.revision(name, revision)
    prefix = f"{below}/" if below else ""
    files = {path: blob for path, blob in sorted(repo.commits[oid].items()) if path.startswith(prefix)}
    if below and not files:
        raise Refused(404, f"{below} does not exist on {revision!r}", "EntryNotFound")
    recursive = call.query.get("recursive", "").lower() == "true"
    found = {}
    for path, blob in files.items():
        parts = path.removeprefix(prefix).split("/")
        for depth in range(1, len(parts)) if recursive else range(1, min(2, len(parts))):
            folder = prefix + "/".join(parts[:depth])
            found[folder] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
        if recursive or len(parts) == 1:
            found[path] = _described(path, blob)
    listed, start = [found[path] for path in sorted(found)], int(call.query.get("cursor", 0))
    more = ()
    if start + PAGE < len(listed):
        url = f"{call.server.url}/api/datasets/{name}/tree/{oid}{'/' + below if below else ''}"
        following = f'<{url}?recursive={str(recursive).lower()}&cursor={start + PAGE}>; rel="next"'
        more = (("Link", following),)
    return json_answer(listed[start : start + PAGE], 200, *more)


def _paths_info(call: _Call, name: str, revision: str) -> Answer:
    repo, oid = call.revision(name, revision)
    body = call.body.decode()
    paths = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body).get("paths", [])
    paths = [paths] if isinstance(paths, str) else paths
    return json_answer([_described(path, repo.commits[oid][path]) for path in paths if path in repo.commits[oid]])


def _refs(call: _Call, name: str) -> Answer:
    repo = call.repo(name)
    kinds = {"branches": ("heads", repo.branches), "tags": ("tags", repo.tags)}
    refs = {
        kind: [{"name": ref, "ref": f"refs/{where}/{ref}", "targetCommit": oid} for ref, oid in known.items()]
        for kind, (where, known) in kinds.items()
    }
    return json_answer({**refs, "converts": [], "pullRequests": []})


def _resolve(call: _Call, name: str, revision: str, path: str) -> Answer:
    repo, oid = call.revision(name, revision)
    if repo.gated and call.user is None:
        raise Refused(401, f"Access to dataset {name} is restricted. You must have access to it", "GatedRepo")
    blob = repo.commits[oid].get(path)
    if blob is None:
        raise Refused(404, "Entry not found", "EntryNotFound")
    about = (("X-Repo-Commit", oid), ("Accept-Ranges", "bytes"))
    if not blob.large:
        return ranged(blob, call.headers, *about, ("ETag", f'"{blob.oid}"'))
    call.server.stored.setdefault(blob.sha256, blob.content)
    location = f"{call.server.elsewhere}/cdn/{name}/{oid}/{quote(path)}?signature=1"
    linked = (("X-Linked-Size", str(blob.size)), ("X-Linked-Etag", f'"{blob.sha256}"'), ("Location", location))
    return Answer(302, b"", (*about, *linked))


def _cdn(call: _Call, user: str, name: str, oid: str, path: str) -> Answer:
    call.server.authorized_elsewhere |= "authorization" in call.headers
    if "signature" not in call.query:
        return Answer(403)
    blob = call.server.repos[f"{user}/{name}"].commits[oid][path]
    return ranged(blob, call.headers, ("ETag", f'"{blob.sha256[:16]}"'))


def _preupload(call: _Call, name: str, revision: str) -> Answer:
    call.writer()
    repo, oid = call.revision(name, revision)
    answers = []
    for one in json.loads(call.body)["files"]:
        there, large = repo.commits[oid].get(one["path"]), is_large(base64.b64decode(one["sample"]), one["size"])
        known = None if there is None else there.sha256 if there.large else there.oid
        mode = "lfs" if large else "regular"
        answers.append({"path": one["path"], "uploadMode": mode, "shouldIgnore": False, "oid": known})
    return json_answer({"files": answers})


def _batch(call: _Call, name: str) -> Answer:
    call.writer()
    call.repo(name)
    answers = []
    for one in json.loads(call.body)["objects"]:
        oid, size = one["oid"], one["size"]
        answer, url = {"oid": oid, "size": size}, f"{call.server.elsewhere}/lfs/{oid}"
        if oid not in call.server.stored:
            answer["actions"] = {"upload": {"href": url, "header": {}}}
        answers.append(answer)
    return json_answer({"transfer": "basic", "objects": answers})


def _put(call: _Call, oid: str) -> Answer:
    assert hashlib.sha256(call.body).hexdigest() == oid, "the content differs from its SHA-256"
    call.server.stored[oid] = call.body
    call.server.puts[oid] += 1
    return Answer(200)


def _commit(call: _Call, name: str, revision: str) -> Answer:
    call.writer()
    repo, oid = call.revision(name, revision)
    if revision not in repo.branches:
        raise Refused(400, f"{revision} is not a branch")
    files, message = dict(repo.commits[oid]), ""
    for line in call.body.splitlines():
        key, value = (one := json.loads(line))["key"], one["value"]
        if key == "header":
            message = value["summary"]
            if value.get("parentCommit", oid) != oid:
                raise Refused(412, "The branch has moved since the parent commit")
        elif key == "file":
            files[value["path"]] = Blob(base64.b64decode(value["content"]), False)
        elif key == "lfsFile":
            if value["oid"] not in call.server.stored:
                raise Refused(400, f"{value['path']}: the large file {value['oid']} was not uploaded")
            files[value["path"]] = Blob(call.server.stored[value["oid"]], True)
        elif key == "deletedFile":
            if files.pop(value["path"], None) is None:
                raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
        else:
            raise Refused(400, f"unknown operation {key}")
    new = repo.commit(revision, files, message)
    url = f"{call.server.url}/datasets/{name}/commit/{new}"
    return json_answer({"success": True, "commitOid": new, "commitUrl": url, "hookOutput": ""})


def _tag(call: _Call, name: str, revision: str) -> Answer:
    call.writer()
    repo, oid = call.revision(name, revision)
    tag = json.loads(call.body)["tag"]
    if tag in repo.tags:
        raise Refused(409, f"Tag {tag} already exists")
    repo.tags[tag] = oid
    return json_answer({})


def _untag(call: _Call, name: str, tag: str) -> Answer:
    call.writer()
    if call.repo(name).tags.pop(tag, None) is None:
        raise Refused(404, f"no tag {tag}", "RevisionNotFound")
    return json_answer({})


_REPO, _REV = "([^/]+/[^/]+)", "([^/]+)"
_ROUTES: list[tuple[str, Callable[..., Answer]]] = [
    (r"GET /api/whoami-v2", _whoami),
    (r"POST /api/repos/create", _create),
    (r"POST /api/validate-yaml", lambda call: json_answer({"errors": [], "warnings": []})),
    (rf"GET /api/datasets/{_REPO}", _info),
    (rf"GET /api/datasets/{_REPO}/revision/{_REV}", _info),
    (rf"GET /api/datasets/{_REPO}/tree/{_REV}", _tree),
    (rf"GET /api/datasets/{_REPO}/tree/{_REV}/(.+)", _tree),
    (rf"POST /api/datasets/{_REPO}/paths-info/{_REV}", _paths_info),
    (rf"GET /api/datasets/{_REPO}/refs", _refs),
    (rf"POST /api/datasets/{_REPO}/preupload/{_REV}", _preupload),
    (rf"POST /api/datasets/{_REPO}/commit/{_REV}", _commit),
    (rf"POST /api/datasets/{_REPO}/tag/{_REV}", _tag),
    (rf"DELETE /api/datasets/{_REPO}/tag/{_REV}", _untag),
    (rf"(?:GET|HEAD) /datasets/{_REPO}/resolve/{_REV}/(.+)", _resolve),
    (rf"POST /datasets/{_REPO}\.git/info/lfs/objects/batch", _batch),
    (r"(?:GET|HEAD) /cdn/([^/]+)/([^/]+)/([0-9a-f]+)/(.+)", _cdn),
    (r"PUT /lfs/([0-9a-f]+)", _put),
]


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self._chunks() if headers.get("transfer-encoding") == "chunked" else b""
            body = body or self.rfile.read(int(headers.get("content-length") or 0))
            with hub._lock:
                hub.requests.append(f"{self.command} {self.path}")
                number = len(hub.requests)
            wanted = hub.fault(Request(number, self.command, self.path))
            answer = hub.answer(self.command, self.path, headers, body) if wanted in (None, HALF) else wanted
            assert answer is not None
            with contextlib.suppress(ConnectionError):
                for _ in send(self, answer, cut=wanted is HALF):
                    pass

        def _chunks(self) -> bytes:
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    return Handler


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    """Runs a server without repositories; skips the test if `huggingface_hub` is not installed."""
    pytest.importorskip("huggingface_hub")
    server = HubServer()
    try:
        yield server
    finally:
        server.close()
