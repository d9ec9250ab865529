"""A server on loopback that speaks what `HfFileSystem` and `rlds-beam upload` need of the Hugging Face Hub.

Repositories are datasets in memory. Files are large files (LFS) if they hold NUL bytes or more than 64 KB.
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
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

TOKEN = "hf_testtoken_of_robots"
"""The only valid token; its user is `robots`."""


@dataclasses.dataclass(frozen=True)
class Blob:
    """A file; the id of its git object, and the SHA-256 that a large file has as well."""

    content: bytes
    large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self) -> str:
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.content)}\n"
        content = pointer.encode() if self.large else self.content
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def describe(self, path: str) -> dict[str, Any]:
        size = len(self.content)
        lfs = {"lfs": {"oid": self.sha256, "size": size, "pointerSize": 130}} if self.large else {}
        return {"type": "file", "oid": self.oid, "size": size, "path": path, **lfs}


@dataclasses.dataclass
class Repo:
    """A dataset repository: the files of each commit, and the commits of branches and tags."""

    private: bool = False
    commits: dict[str, dict[str, Blob]] = dataclasses.field(default_factory=dict)
    branches: dict[str, str] = dataclasses.field(default_factory=dict)
    tags: dict[str, str] = dataclasses.field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, Blob], message: str) -> str:
        content = f"{self.branches.get(branch)} {message} {sorted((n, b.oid) for n, b in files.items())}"
        oid = hashlib.sha1(content.encode()).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        return oid

    @property
    def files(self) -> dict[str, Blob]:
        return self.commits[self.branches["main"]]


@dataclasses.dataclass
class Answer:
    """A response: its status, and a body that is JSON unless it is bytes."""

    body: Any
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


def refusal(status: int, message: str, code: str = "") -> Answer:
    return Answer({"error": message}, status, {"X-Error-Message": message, "X-Error-Code": code})


class Refused(Exception):
    """Its argument is the answer that is sent."""


@dataclasses.dataclass
class Call:
    """A request that matched a route."""

    server: HubServer
    headers: dict[str, str]
    query: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def user(self) -> str | None:
        given = self.headers.get("authorization")
        if given not in (None, f"Bearer {TOKEN}"):
            raise Refused(refusal(401, "Invalid credentials in Authorization header"))
        return "robots" if given else None

    def repo(self, name: str, write: bool = False) -> Repo:
        repo, user = self.server.repos.get(name), self.user
        if write and user is None:
            raise Refused(refusal(401, "Invalid username or password."))
        if repo is None or (repo.private and user is None):
            raise Refused(refusal(404 if user else 401, "Repository not found", "RepoNotFound"))
        return repo

    def revision(self, name: str, revision: str, write: bool = False) -> tuple[Repo, str, dict[str, Blob]]:
        repo = self.repo(name, write)
        oid = repo.branches.get(revision) or repo.tags.get(revision) or revision
        if oid not in repo.commits:
            raise Refused(refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound"))
        return repo, oid, repo.commits[oid]


class HubServer:
    """The server.

    Attributes:
      url: the address, for `HF_ENDPOINT`.
      repos: the repositories by name.
      stored: the content of each large file ever uploaded, by SHA-256.
      puts: how often the content of each large file was sent.
      requests: `METHOD path` of each request.
      hook: called with these of each request before it is answered; if it returns an answer, that is sent instead.
    """

    url = ""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.stored: dict[str, bytes] = {}
        self.puts: Counter[str] = Counter()
        self.requests: list[str] = []
        self.hook: Callable[[str], Answer | None] = lambda _: None
        self._lock = threading.Lock()

    def environment(self, home: Path, token: str | None = None) -> dict[str, str]:
        """The variables with which `huggingface_hub` uses this server; an empty token hides a user's own."""
        flags = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_TOKEN": token or "", **flags}

    def add(self, directory: Path, name: str, **settings: Any) -> str:
        """Makes a commit with the files of a directory; returns the path."""
        contents = {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
        files = {path.relative_to(directory).as_posix(): Blob(c, is_large(c, len(c))) for path, c in contents.items()}
        self.repos.setdefault(name, Repo(**settings)).commit("main", files, "Add files")
        return f"hf://datasets/{name}"

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        self.requests.append(f"{method} {target}")
        if (instead := self.hook(self.requests[-1])) is not None:
            return instead
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        with self._lock:
            for pattern, route in ROUTES:
                if (match := re.fullmatch(pattern, f"{method} {parts.path}")) is not None:
                    try:
                        return route(Call(self, headers, query, body), *(unquote(one or "") for one in match.groups()))
                    except Refused as refused:
                        return refused.args[0]
        return refusal(501, f"{method} {target} is not served here")


def is_large(sample: bytes, size: int) -> bool:
    return b"\0" in sample[:512] or size > 1 << 16


def info(call: Call, name: str, revision: str) -> Answer:
    repo, oid, files = call.revision(name, revision or "main")
    about = {"id": name, "sha": oid, "private": repo.private, "siblings": [{"rfilename": file} for file in files]}
    return Answer({"_id": "0", "tags": [], "downloads": 0, "likes": 0, "gated": False, "disabled": False, **about})


def tree(call: Call, name: str, revision: str, below: str) -> Answer:
    prefix = f"{below}/" if below else ""
    files = {path: blob for path, blob in call.revision(name, revision)[2].items() if path.startswith(prefix)}
    if below and not files:
        return refusal(404, f"{below} does not exist on {revision!r}", "EntryNotFound")
    recursive, found = call.query.get("recursive", "").lower() == "true", {}
    for path, blob in files.items():
        folders = path.removeprefix(prefix).split("/")[:-1]
        for depth in range(1, 1 + (len(folders) if recursive else min(1, len(folders)))):
            folder = prefix + "/".join(folders[:depth])
            found[folder] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
        if recursive or not folders:
            found[path] = blob.describe(path)
    return Answer([found[path] for path in sorted(found)])


def paths_info(call: Call, name: str, revision: str) -> Answer:
    files, body = call.revision(name, revision)[2], call.body.decode()
    paths = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body).get("paths", [])
    return Answer([files[path].describe(path) for path in paths if path in files])


def refs(call: Call, name: str) -> Answer:
    repo = call.repo(name)
    kinds = {"branches": ("heads", repo.branches), "tags": ("tags", repo.tags)}
    found = {
        kind: [{"name": ref, "ref": f"refs/{where}/{ref}", "targetCommit": oid} for ref, oid in known.items()]
        for kind, (where, known) in kinds.items()
    }
    return Answer({**found, "converts": [], "pullRequests": []})


def resolve(call: Call, name: str, revision: str, path: str) -> Answer:
    """A file, or the bytes that a Range header names."""
    _, oid, files = call.revision(name, revision)
    if (blob := files.get(path)) is None:
        return refusal(404, "Entry not found", "EntryNotFound")
    size, tag = len(blob.content), f'"{blob.sha256 if blob.large else blob.oid}"'
    about = {"X-Repo-Commit": oid, "Accept-Ranges": "bytes", "ETag": tag}
    about |= {"X-Linked-Size": str(size), "X-Linked-Etag": tag} if blob.large else {}
    if (wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", call.headers.get("range", ""))) is None:
        return Answer(blob.content, 200, about)
    start, stop = int(wanted[1]), min(size, int(wanted[2] or size) + 1)
    if start >= size:
        return Answer(b"", 416, {**about, "Content-Range": f"bytes */{size}"})
    return Answer(blob.content[start:stop], 206, {**about, "Content-Range": f"bytes {start}-{stop - 1}/{size}"})


def create(call: Call) -> Answer:
    owner = call.json.get("organization") or call.user
    if call.user is None:
        return refusal(401, "Invalid username or password.")
    if owner != call.user:
        return refusal(403, f"You don't have the rights to create a dataset under the namespace {owner}")
    name = f"{owner}/{call.json['name']}"
    there = name in call.server.repos
    if not there:
        private = call.json.get("private") is True or call.json.get("visibility") == "private"
        repo = call.server.repos[name] = Repo(private)
        repo.commit("main", {".gitattributes": Blob(b"*.parquet filter=lfs\n", False)}, "initial commit")
    return Answer({"url": f"{call.server.url}/datasets/{name}", "name": name}, 409 if there else 200)


def preupload(call: Call, name: str, revision: str) -> Answer:
    files, answers = call.revision(name, revision, write=True)[2], []
    for one in call.json["files"]:
        there, large = files.get(one["path"]), is_large(base64.b64decode(one["sample"]), one["size"])
        known = None if there is None else there.sha256 if there.large else there.oid
        mode = "lfs" if large else "regular"
        answers.append({"path": one["path"], "uploadMode": mode, "shouldIgnore": False, "oid": known})
    return Answer({"files": answers})


def lfs_batch(call: Call, name: str) -> Answer:
    call.repo(name, write=True)
    answers = []
    for one in call.json["objects"]:
        upload = {"upload": {"href": f"{call.server.url}/lfs/{one['oid']}", "header": {}}}
        answers.append({**one, **({} if one["oid"] in call.server.stored else {"actions": upload})})
    return Answer({"transfer": "basic", "objects": answers})


def put(call: Call, oid: str) -> Answer:
    assert hashlib.sha256(call.body).hexdigest() == oid, "the content differs from its SHA-256"
    call.server.stored[oid] = call.body
    call.server.puts[oid] += 1
    return Answer(b"")


def commit(call: Call, name: str, revision: str) -> Answer:
    repo, oid, files = call.revision(name, revision, write=True)
    files, message = dict(files), ""
    for key, value in (json.loads(line).values() for line in call.body.splitlines()):
        if key == "header":
            message = value["summary"]
            if value.get("parentCommit", oid) != oid:
                return refusal(412, "The branch has moved since the parent commit")
        elif key == "deletedFile":
            del files[value["path"]]
        else:
            large = key == "lfsFile"
            content = call.server.stored[value["oid"]] if large else base64.b64decode(value["content"])
            files[value["path"]] = Blob(content, large)
    new = repo.commit(revision, files, message)
    url = f"{call.server.url}/datasets/{name}/commit/{new}"
    return Answer({"success": True, "commitOid": new, "commitUrl": url, "hookOutput": ""})


def tag(call: Call, name: str, revision: str) -> Answer:
    repo, oid, _ = call.revision(name, revision, write=True)
    wanted = call.json["tag"]
    if wanted in repo.tags:
        return refusal(409, f"Tag {wanted} already exists")
    repo.tags[wanted] = oid
    return Answer({})


def untag(call: Call, name: str, wanted: str) -> Answer:
    del call.repo(name, write=True).tags[wanted]
    return Answer({})


REPO, REVISION = "([^/]+/[^/]+)", "([^/]+)"
ROUTES: list[tuple[str, Callable[..., Answer]]] = [
    (r"POST /api/repos/create", create),
    (r"POST /api/validate-yaml", lambda call: Answer({"errors": [], "warnings": []})),
    (rf"GET /api/datasets/{REPO}(?:/revision/{REVISION})?", info),
    (rf"GET /api/datasets/{REPO}/tree/{REVISION}(?:/(.+))?", tree),
    (rf"POST /api/datasets/{REPO}/paths-info/{REVISION}", paths_info),
    (rf"GET /api/datasets/{REPO}/refs", refs),
    (rf"POST /api/datasets/{REPO}/preupload/{REVISION}", preupload),
    (rf"POST /api/datasets/{REPO}/commit/{REVISION}", commit),
    (rf"POST /api/datasets/{REPO}/tag/{REVISION}", tag),
    (rf"DELETE /api/datasets/{REPO}/tag/{REVISION}", untag),
    (rf"(?:GET|HEAD) /datasets/{REPO}/resolve/{REVISION}/(.+)", resolve),
    (rf"POST /datasets/{REPO}\.git/info/lfs/objects/batch", lfs_batch),
    (r"PUT /lfs/([0-9a-f]+)", put),
]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: HubServer

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.hub.answer(self.command, self.path, headers, body)
        content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        with contextlib.suppress(ConnectionError):  # a client that was killed
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _any  # noqa: N815

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    """Runs a server without repositories; skips the test if `huggingface_hub` is not installed."""
    pytest.importorskip("huggingface_hub")
    hub = HubServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    yield hub
    server.shutdown()
    server.server_close()
