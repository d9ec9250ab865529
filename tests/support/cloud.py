"""Fake Google Cloud Storage and Dataflow on loopback: the parts that Beam's real clients use.

The store keeps objects in memory. The job service acts like Dataflow: it fetches the staged pipeline from the store,
runs it in another interpreter (`execute.py`, on Beam's FnApiRunner), and reports its state, messages and metrics.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import subprocess
import threading
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import google_crc32c
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

EXECUTE = Path(__file__).parent / "execute.py"

Reply = tuple[int, dict[str, str], bytes]


class Cloud:
    """Both services on one port.

    Attributes:
      objects: the content of each `bucket/name`.
      jobs: the submitted jobs as JSON, each with its `state`, `error` and `metrics`.
    """

    def __init__(self, execute: Callable[[str, Path], subprocess.CompletedProcess[str]], home: Path):
        self.objects: dict[str, bytes] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.looked_at: Callable[[], None] = lambda: None  # called when a client asks for a job's state
        self._execute, self._home = execute, home
        self._uploads: dict[str, tuple[str, bytearray]] = {}
        self._lock = threading.RLock()
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, headers, answer = cloud.answer(
                    self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body
                )
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://localhost:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process use these services instead of the cloud."""
        return {
            "STORAGE_EMULATOR_HOST": self.address,
            "GOOGLE_BASE_URL": self.address,
            "GOOGLE_APPLICATION_CREDENTIALS": str(self._credentials),
        }

    @property
    def _credentials(self) -> Path:
        """Writes the credentials of a service account whose tokens come from this server."""
        path = self._home / "credentials.json"
        if not path.exists():
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            account = {
                "type": "service_account",
                "client_email": "tests@project.invalid",
                "private_key": key.decode(),
                "token_uri": f"{self.address}/token",
                "project_id": "project",
            }
            path.write_text(json.dumps(account))
        return path

    def token(self, **_: Any) -> Reply:
        return _json({"access_token": "token", "token_type": "Bearer", "expires_in": 3600})

    def upload(self, directory: Path, where: str) -> str:
        """Copies a directory into the store and returns its path there."""
        for path in directory.rglob("*"):
            if path.is_file():
                self.objects[f"{where}/{path.relative_to(directory)}"] = path.read_bytes()
        return f"gs://{where}"

    def download(self, where: str, directory: Path) -> Path:
        """Copies everything below `where` to a directory."""
        for name, content in self.objects.items():
            if name.startswith(f"{where}/"):
                path = directory / name.removeprefix(f"{where}/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return directory

    def answer(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Reply:
        parts = urlsplit(url)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        with self._lock:
            for pattern, route in _ROUTES:
                match = re.fullmatch(pattern, f"{method} {parts.path}")
                if match is not None:
                    found = [unquote(group) for group in match.groups()]
                    try:
                        return route(self, *found, query=query, headers=headers, body=body)
                    except Exception:  # 4xx, because clients retry any other error
                        return _json({"error": {"code": 400, "message": traceback.format_exc()}}, 400)
        return _json({"error": {"code": 501, "message": f"{method} {url} is not served here"}}, 501)

    # The store: its JSON API, with which Beam stages files, and its XML API, which obstore uses.

    def bucket(self, bucket: str, **_: Any) -> Reply:
        return _json({"name": bucket, "softDeletePolicy": {"retentionDurationSeconds": "0"}})

    def about(self, bucket: str, name: str, **_: Any) -> Reply:
        return self._about(f"{bucket}/{name}") if f"{bucket}/{name}" in self.objects else _json({}, 404)

    def start(self, bucket: str, *, query: dict[str, str], body: bytes, **_: Any) -> Reply:
        """Begins a resumable upload."""
        name = query.get("name") or json.loads(body)["name"]
        upload = str(len(self._uploads))
        self._uploads[upload] = f"{bucket}/{name}", bytearray()
        return 200, {"Location": f"{self.address}/upload/{upload}"}, b""

    def go_on(self, upload: str, *, headers: dict[str, str], body: bytes, **_: Any) -> Reply:
        key, content = self._uploads[upload]
        content += body
        if headers["content-range"].endswith("/*"):
            return 308, {"Range": f"bytes=0-{len(content) - 1}"} if content else {}, b""
        self.objects[key] = bytes(content)
        return self._about(key)

    def list(self, bucket: str, *, query: dict[str, str], **_: Any) -> Reply:
        prefix, delimiter = f"{bucket}/{query.get('prefix', '')}", query.get("delimiter")
        found = dict[str, str]()
        for key in sorted(key for key in self.objects if key.startswith(prefix)):
            name = escape(key.removeprefix(f"{bucket}/"))
            if delimiter and delimiter in key.removeprefix(prefix):
                folder = escape(key[: key.index(delimiter, len(prefix)) + 1].removeprefix(f"{bucket}/"))
                found[folder] = f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"
            else:
                found[name] = (
                    f"<Contents><Key>{name}</Key><Size>{len(self.objects[key])}</Size><ETag>{_tag(self.objects[key])}"
                    "</ETag><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
                )
        answer = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found.values())}</ListBucketResult>"
        return 200, {}, answer.encode()

    def get(self, bucket: str, name: str, *, headers: dict[str, str], **_: Any) -> Reply:
        content = self.objects.get(f"{bucket}/{name}")
        if content is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        about = {"ETag": _tag(content), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if headers.get("if-match", about["ETag"]) != about["ETag"]:
            return 412, {}, b""
        if (wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))) is None:
            return 200, about, content
        first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
        return 206, {**about, "Content-Range": f"bytes {first}-{last}/{len(content)}"}, content[first : last + 1]

    def put(self, bucket: str, name: str, *, headers: dict[str, str], body: bytes, **_: Any) -> Reply:
        if source := headers.get("x-goog-copy-source"):
            body = self.objects[unquote(source).lstrip("/")]
        self.objects[f"{bucket}/{name}"] = body
        return 200, {"ETag": _tag(body)}, b""

    def delete(self, bucket: str, name: str, **_: Any) -> Reply:
        return (404 if self.objects.pop(f"{bucket}/{name}", None) is None else 204), {}, b""

    def _about(self, key: str) -> Reply:
        bucket, _, name = key.partition("/")
        content = self.objects[key]
        checksum = b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()
        about = {"size": str(len(content)), "generation": "1", "crc32c": checksum, "updated": "2026-01-01T00:00:00Z"}
        return _json({"kind": "storage#object", "bucket": bucket, "name": name, **about})

    # The job service.

    def submit(self, *, body: bytes, **_: Any) -> Reply:
        job = {**json.loads(body), "id": f"job-{len(self.jobs)}"}
        self.jobs[job["id"]] = {**job, "state": "JOB_STATE_RUNNING", "error": None, "metrics": []}
        threading.Thread(target=self._run, args=(self.jobs[job["id"]],), daemon=True).start()
        return _json(_state(self.jobs[job["id"]]))

    def _run(self, job: dict[str, Any]) -> None:
        url = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
        home = self._home / job["id"]
        home.mkdir(parents=True)
        (home / "pipeline.pb").write_bytes(self.objects[url.removeprefix("gs://")])
        done = self._execute(job["id"], home)
        with self._lock:
            if done.returncode == 0:
                job["metrics"] = json.loads(done.stdout.splitlines()[-1])
            else:
                job["error"] = done.stderr
            job["state"] = "JOB_STATE_DONE" if done.returncode == 0 else "JOB_STATE_FAILED"

    def job(self, job: str, **_: Any) -> Reply:
        self.looked_at()
        return _json(_state(self.jobs[job]))

    def change(self, job: str, *, body: bytes, **_: Any) -> Reply:
        wanted = json.loads(body)["requestedState"]
        self.jobs[job]["state"] = "JOB_STATE_CANCELLED" if wanted == 5 else wanted  # the client sends numbers
        return _json(_state(self.jobs[job]))

    def messages(self, job: str, **_: Any) -> Reply:
        error = self.jobs[job]["error"]
        message = {"time": "2026-01-01T00:00:00Z", "messageText": error, "messageImportance": "JOB_MESSAGE_ERROR"}
        return _json({"jobMessages": [message] if error else []})

    def metrics(self, job: str, **_: Any) -> Reply:
        found = []
        for context, name, value in self.jobs[job]["metrics"]:
            for tentative in ({}, {"tentative": "true"}):
                found.append({"name": {"origin": "user", "name": name, "context": {**context, **tentative}}, **value})
        return _json({"metrics": found})


def _state(job: dict[str, Any]) -> dict[str, Any]:
    return {"id": job["id"], "name": job["name"], "currentState": job["state"]}


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def _json(content: Any, status: int = 200) -> Reply:
    return status, {"Content-Type": "application/json"}, json.dumps(content).encode()


_JOBS = r"/v1b3/projects/[^/]+/locations/[^/]+/jobs"
_ROUTES: list[tuple[str, Callable[..., Reply]]] = [
    (r"POST /token", Cloud.token),
    (r"GET /storage/v1/b/([^/]+)", Cloud.bucket),
    (r"GET /storage/v1/b/([^/]+)/o/([^/]+)", Cloud.about),
    (r"POST /upload/storage/v1/b/([^/]+)/o", Cloud.start),
    (r"PUT /upload/(\d+)", Cloud.go_on),
    (rf"POST {_JOBS}", Cloud.submit),
    (rf"GET {_JOBS}/([^/]+)", Cloud.job),
    (rf"PUT {_JOBS}/([^/]+)", Cloud.change),
    (rf"GET {_JOBS}/([^/]+)/messages", Cloud.messages),
    (rf"GET {_JOBS}/([^/]+)/metrics", Cloud.metrics),
    (r"GET /([^/]+)", Cloud.list),
    (r"(?:GET|HEAD) /([^/]+)/(.+)", Cloud.get),
    (r"PUT /([^/]+)/(.+)", Cloud.put),
    (r"DELETE /([^/]+)/(.+)", Cloud.delete),
]


@contextlib.contextmanager
def serving(execute: Callable[[str, Path], subprocess.CompletedProcess[str]], home: Path) -> Iterator[Cloud]:
    cloud = Cloud(execute, home)
    try:
        yield cloud
    finally:
        cloud.close()


def content(directory: Path) -> dict[str, bytes]:
    """Reads the files of an output, without the input's fingerprints: a bucket's differ from a directory's."""
    read = {path: (directory / path).read_bytes() for path in files(directory)}
    plan, manifest = (json.loads(read[name]) for name in ("plan.json", "manifest.json"))
    for each in (plan["plan"], *plan.get("appended", ())):
        del each["inputs"]
    read["plan.json"] = json.dumps(plan).encode()
    for digest in (manifest["plan_sha256"], *(each["plan_sha256"] for each in manifest.get("appends", ()))):
        read = {path: data.replace(digest.encode(), b"") for path, data in read.items()}
    return read


def files(directory: Path) -> list[str]:
    """The files of an output, without the input of its plan."""
    found = (path for path in directory.rglob("*") if path.is_file() and path.name[:7] != "inputs-")
    return sorted(str(path.relative_to(directory)) for path in found)
