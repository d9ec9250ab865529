"""A server on loopback that speaks what `huggingface_hub` needs of the Hub: datasets, revisions, large files, commits.

Repositories are in memory. Files are large files (LFS) if they hold NUL bytes or more than 64 KB.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from bucket_faults import Answer, Fault, Handler, Request, serve

TOKEN = "hf_testtoken_of_robots"
"""The only valid token; its user is `robots`."""


@dataclasses.dataclass(frozen=True)
class Blob:
    """A file."""

    content: bytes
    large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self) -> str:
        """The id of the git object: of the pointer file for a large file."""
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.content)}\n"
        content = pointer.encode() if self.large else self.content
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclasses.dataclass
class Repo:
    """A dataset repository."""

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


class HubServer:
    """The server.

    Attributes:
      url: the address, for `HF_ENDPOINT`.
      repos: the repositories by name.
      stored: the content of each large file ever uploaded, by SHA-256.
      puts: how often the content of each large file was sent.
      requests: `METHOD path` of each request.
      fault: answers or cuts requests instead of the server.
    """

    url = ""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.stored: dict[str, bytes] = {}
        self.puts: Counter[str] = Counter()
        self.requests: list[str] = []
        self.fault: Fault = lambda _: None

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
        files = {}
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            content = path.read_bytes()
            files[path.relative_to(directory).as_posix()] = Blob(content, is_large(content))
        self.repos.setdefault(name, Repo(**settings)).commit("main", files, "Add files")
        return f"hf://datasets/{name}"


class Refused(Exception):
    """A response that is not a success."""

    def __init__(self, status: int, message: str, code: str = ""):
        self.answer = json_answer({"error": message}, status, ("X-Error-Message", message), ("X-Error-Code", code))


def is_large(sample: bytes, size: int | None = None) -> bool:
    return b"\0" in sample[:512] or (len(sample) if size is None else size) > 1 << 16


def json_answer(content: Any, status: int = 200, *headers: tuple[str, str]) -> Answer:
    return Answer(status, json.dumps(content).encode(), (("Content-Type", "application/json"), *headers))


@dataclasses.dataclass
class Call:
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
        oid = repo.branches.get(revision) or repo.tags.get(revision) or revision
        if oid not in repo.commits:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return repo, oid


def whoami(call: Call) -> Answer:
    call.writer()
    return json_answer({"type": "user", "name": call.user, "orgs": [], "auth": {"accessToken": {"role": "write"}}})


def create(call: Call) -> Answer:
    call.writer()
    asked = json.loads(call.body)
    name = f"{asked.get('organization') or call.user}/{asked['name']}"
    if asked.get("organization") not in (None, call.user):
        raise Refused(403, f"You don't have the rights to create a dataset under the namespace {asked['organization']}")
    there = name in call.server.repos
    if not there:
        repo = Repo(private=asked.get("private") is True or asked.get("visibility") == "private")
        call.server.repos[name] = repo
        repo.commit("main", {".gitattributes": Blob(b"*.parquet filter=lfs\n", False)}, "initial commit")
    return json_answer({"url": f"{call.server.url}/datasets/{name}", "name": name}, 409 if there else 200)


def info(call: Call, name: str, revision: str = "main") -> Answer:
    repo, oid = call.revision(name, revision)
    siblings = [{"rfilename": file} for file in sorted(repo.commits[oid])]
    facts = {"_id": "0", "author": name.split("/")[0], "tags": [], "downloads": 0, "likes": 0, "gated": False}
    return json_answer(
        {**facts, "id": name, "sha": oid, "private": repo.private, "disabled": False, "siblings": siblings}
    )


def described(path: str, blob: Blob) -> dict[str, Any]:
    size = len(blob.content)
    lfs = {"lfs": {"oid": blob.sha256, "size": size, "pointerSize": 130}} if blob.large else {}
    return {"type": "file", "oid": blob.oid, "size": size, "path": path, **lfs}


def tree(call: Call, name: str, revision: str, below: str = "") -> Answer:
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
            found[path] = described(path, blob)
    return json_answer([found[path] for path in sorted(found)])


def paths_info(call: Call, name: str, revision: str) -> Answer:
    repo, oid = call.revision(name, revision)
    body = call.body.decode()
    paths = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body).get("paths", [])
    paths = [paths] if isinstance(paths, str) else paths
    return json_answer([described(path, repo.commits[oid][path]) for path in paths if path in repo.commits[oid]])


def refs(call: Call, name: str) -> Answer:
    repo = call.repo(name)
    kinds = {"branches": ("heads", repo.branches), "tags": ("tags", repo.tags)}
    found = {
        kind: [{"name": ref, "ref": f"refs/{where}/{ref}", "targetCommit": oid} for ref, oid in known.items()]
        for kind, (where, known) in kinds.items()
    }
    return json_answer({**found, "converts": [], "pullRequests": []})


def resolve(call: Call, name: str, revision: str, path: str) -> Answer:
    """A file, or the bytes that a Range header names."""
    repo, oid = call.revision(name, revision)
    blob = repo.commits[oid].get(path)
    if blob is None:
        raise Refused(404, "Entry not found", "EntryNotFound")
    size, tag = len(blob.content), f'"{blob.sha256 if blob.large else blob.oid}"'
    about = (("X-Repo-Commit", oid), ("Accept-Ranges", "bytes"), ("ETag", tag))
    if blob.large:
        call.server.stored.setdefault(blob.sha256, blob.content)
        about += (("X-Linked-Size", str(size)), ("X-Linked-Etag", tag))
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", call.headers.get("range", ""))
    if wanted is None:
        return Answer(200, blob.content, about)
    start, stop = int(wanted[1]), min(size, int(wanted[2] or size) + 1)
    if start >= size:
        return Answer(416, b"", (*about, ("Content-Range", f"bytes */{size}")))
    return Answer(206, blob.content[start:stop], (*about, ("Content-Range", f"bytes {start}-{stop - 1}/{size}")))


def preupload(call: Call, name: str, revision: str) -> Answer:
    call.writer()
    repo, oid = call.revision(name, revision)
    answers = []
    for one in json.loads(call.body)["files"]:
        there, large = repo.commits[oid].get(one["path"]), is_large(base64.b64decode(one["sample"]), one["size"])
        known = None if there is None else there.sha256 if there.large else there.oid
        mode = "lfs" if large else "regular"
        answers.append({"path": one["path"], "uploadMode": mode, "shouldIgnore": False, "oid": known})
    return json_answer({"files": answers})


def lfs_batch(call: Call, name: str) -> Answer:
    call.writer()
    call.repo(name)
    answers = []
    for one in json.loads(call.body)["objects"]:
        upload = {"upload": {"href": f"{call.server.url}/lfs/{one['oid']}", "header": {}}}
        known = one["oid"] in call.server.stored
        answers.append({"oid": one["oid"], "size": one["size"], **({} if known else {"actions": upload})})
    return json_answer({"transfer": "basic", "objects": answers})


def put(call: Call, oid: str) -> Answer:
    assert hashlib.sha256(call.body).hexdigest() == oid, "the content differs from its SHA-256"
    call.server.stored[oid] = call.body
    call.server.puts[oid] += 1
    return Answer(200)


def commit(call: Call, name: str, revision: str) -> Answer:
    call.writer()
    repo, oid = call.revision(name, revision)
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
            files[value["path"]] = Blob(call.server.stored[value["oid"]], True)
        elif key == "deletedFile":
            del files[value["path"]]
        else:
            raise Refused(400, f"unknown operation {key}")
    new = repo.commit(revision, files, message)
    url = f"{call.server.url}/datasets/{name}/commit/{new}"
    return json_answer({"success": True, "commitOid": new, "commitUrl": url, "hookOutput": ""})


def tag(call: Call, name: str, revision: str) -> Answer:
    call.writer()
    repo, oid = call.revision(name, revision)
    wanted = json.loads(call.body)["tag"]
    if wanted in repo.tags:
        raise Refused(409, f"Tag {wanted} already exists")
    repo.tags[wanted] = oid
    return json_answer({})


def untag(call: Call, name: str, wanted: str) -> Answer:
    call.writer()
    del call.repo(name).tags[wanted]
    return json_answer({})


REPO, REVISION = "([^/]+/[^/]+)", "([^/]+)"
ROUTES: list[tuple[str, Callable[..., Answer]]] = [
    (r"GET /api/whoami-v2", whoami),
    (r"POST /api/repos/create", create),
    (r"POST /api/validate-yaml", lambda call: json_answer({"errors": [], "warnings": []})),
    (rf"GET /api/datasets/{REPO}", info),
    (rf"GET /api/datasets/{REPO}/revision/{REVISION}", info),
    (rf"GET /api/datasets/{REPO}/tree/{REVISION}", tree),
    (rf"GET /api/datasets/{REPO}/tree/{REVISION}/(.+)", tree),
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


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    """Runs a server without repositories; skips the test if `huggingface_hub` is not installed."""
    pytest.importorskip("huggingface_hub")
    hub = HubServer()

    class Hub(Handler):
        def fault(self, request: Request) -> Answer | None:
            hub.requests.append(f"{request.method} {request.path}")
            return hub.fault(request)

        def answer(self, body: bytes) -> Answer:
            headers = {name.lower(): value for name, value in self.headers.items()}
            path, query = urlsplit(self.path).path, {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
            with self.lock:
                for pattern, route in ROUTES:
                    if (match := re.fullmatch(pattern, f"{self.command} {path}")) is not None:
                        try:
                            return route(Call(hub, headers, query, body), *map(unquote, match.groups()))
                        except Refused as refused:
                            return refused.answer
            return Refused(501, f"{self.command} {self.path} is not served here").answer

    with serve(Hub) as port:
        hub.url = f"http://127.0.0.1:{port}"
        yield hub
