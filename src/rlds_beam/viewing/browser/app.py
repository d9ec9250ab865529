"""The routes of the browser's server, for the user's own browser only; videos are sent with Range."""

from __future__ import annotations

import functools
import json
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.checking.signals.conditions import parse_conditions
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.images.headers import ImageTooLargeError, UndecodableImageError, check_decodable
from rlds_beam.images.thumbnails import thumbnail
from rlds_beam.viewing.browser.dataset import BrowsedDataset, MissingError
from rlds_beam.viewing.browser.episodes import media_type
from rlds_beam.viewing.browser.learner_view import MAX_ITEMS
from rlds_beam.viewing.browser.table import Query as Wanted

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger("uvicorn.error")  # printed to the terminal

MAX_ROWS = 500
_MIN_HEIGHT, _MAX_HEIGHT = 16, 512
_FOREVER = "private, max-age=31536000, immutable"
_VENDORED = ("uPlot.iife.min.js", "uPlot.min.css", "preact-htm.module.js")
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}


class WrongRequestError(ValueError):
    """The parameters of a request are wrong; the message says how."""


class Parameters:
    """The parameters of a request, checked."""

    def __init__(self, request: Request, datasets: Sequence[BrowsedDataset]):
        self._given, self._datasets = request.query_params, datasets

    def text(self, name: str, default: str | None = None) -> str:
        value = self._given.get(name, default)
        if value is None:
            raise WrongRequestError(f"the parameter {name} is missing")
        return value

    def all(self, name: str) -> list[str]:
        return self._given.getlist(name)

    def number(self, name: str, default: int | None = None, most: int = 1 << 53) -> int:
        text = self.text(name, None if default is None else str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise WrongRequestError(f"{name} must be a whole number, not {text[:40]!r}")
        if int(text) > most:
            raise WrongRequestError(f"{name} must be at most {most:,}")
        return int(text)

    @property
    def dataset(self) -> BrowsedDataset:
        given = self.text("dataset", "0")
        for dataset in self._datasets:
            if dataset.id == given:
                return dataset
        raise MissingError(f"there is no dataset {given[:40]!r}")

    @property
    def key(self) -> EpisodeKey:
        text = self.text("key")
        try:
            key = EpisodeKey.parse(text)
        except ValueError as error:
            raise WrongRequestError(f"{text[:80]!r} is not an episode key") from error
        if max(key.shard, key.position, key.part) >= 1 << 62:
            raise WrongRequestError(f"{text[:80]!r} is not an episode key: its numbers are too large")
        if key.dataset != self.dataset.source.dataset:
            raise MissingError(f"{text[:80]} is not a key of {self.dataset.source.dataset}")
        return key


Answer = Callable[[Parameters], Any]


def create_app(
    datasets: Sequence[BrowsedDataset], token: str, port: int, on_login: Callable[[], object] = lambda: None
) -> ASGIApp:
    """The ASGI application.

    Args:
      datasets: the datasets to show.
      token: the secret in the address.
      port: the port of the server, for the check of the host.
      on_login: called when a browser has sent the token.
    """
    from starlette.applications import Starlette
    from starlette.routing import Route

    answers: dict[str, Answer] = {
        "/api/datasets": lambda _: [dataset.about() for dataset in datasets],
        "/api/episodes": lambda q: _answer_query(
            q, q.dataset.rows, q.number("offset", 0), q.number("limit", 100, MAX_ROWS)
        ),
        "/api/summary": lambda q: q.dataset.summary(),
        "/api/episode": lambda q: q.dataset.episode(q.key),
        "/api/made": lambda q: q.dataset.made(q.key, q.number("offset", 0), q.number("limit", MAX_ITEMS, MAX_ITEMS)),
        "/api/counterpart": lambda q: q.dataset.counterpart(q.key),
        "/api/videos": lambda q: q.dataset.videos(q.key),
        "/api/step": lambda q: q.dataset.step(q.key, q.number("step")),
    }
    routes = [Route(path, _endpoint(datasets, functools.partial(_json, answer))) for path, answer in answers.items()]
    routes += [Route("/image", _endpoint(datasets, _image)), Route("/video", _endpoint(datasets, _video))]
    routes += [Route(path, _static(file)) for path, file in static_files().items()]
    return Guard(Starlette(routes=routes), token, port, on_login)


def _answer_query(query: Parameters, answer: Callable[..., Any], *arguments: Any) -> Any:
    """The answer for the filters and the order of a request."""
    try:
        wanted = Wanted(
            query.text("sort", ""),
            query.text("desc", "0") in ("1", "true"),
            tuple(parse_conditions(text) for text in query.all("filter") if text.strip()),
            query.text("text", "").strip(),
            query.text("split", ""),
            query.text("rule", ""),
        )
        return answer(wanted, *arguments)
    except UsageError as error:
        raise WrongRequestError(str(error)) from error


def static_files() -> dict[str, Any]:
    """The page's files by path."""
    viewing = resources.files("rlds_beam.viewing")
    files = {f"/static/{name}": viewing / "vendored" / name for name in _VENDORED}
    for file in (viewing / "page").iterdir():
        if file.is_file():
            files["/" if file.name == "index.html" else f"/static/{file.name}"] = file
    return files


def _static(file: Any) -> Callable[[Request], Response]:
    def send(request: Request) -> Response:
        from starlette.responses import Response

        kind = _TYPES.get(file.name.rpartition(".")[2], "application/octet-stream")
        return Response(file.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})

    return send


def _endpoint(
    datasets: Sequence[BrowsedDataset], answer: Callable[[Request, Parameters], Response]
) -> Callable[[Request], Response]:
    """A route whose errors are JSON."""

    def respond(request: Request) -> Response:
        try:
            return answer(request, Parameters(request, datasets))
        except WrongRequestError as error:
            return _error(400, error)
        except (MissingError, RldsBeamError, OSError) as error:
            return _error(404, error)
        except Exception:
            _log.exception("%s", request.url.path)
            return to_json({"error": "internal error: please report it with the traceback in the terminal"}, 500)

    return respond


def _json(answer: Answer, request: Request, query: Parameters) -> Response:
    return to_json(answer(query))


def to_json(content: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


def _error(status: int, error: Exception) -> Response:
    return to_json({"error": str(error)}, status)


def _image(request: Request, query: Parameters) -> Response:
    from starlette.responses import Response

    dataset, key, step = query.dataset, query.key, query.number("step")
    height = query.number("height", 0, _MAX_HEIGHT)
    headers = _caching(query)
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    image = dataset.image(key, query.text("camera"), step)
    try:
        check_decodable(image)
    except ImageTooLargeError:  # a picture that says so: the page must not decode it either
        height = height or _MAX_HEIGHT
    except UndecodableImageError:
        pass
    if height:
        image = thumbnail(image, max(height, _MIN_HEIGHT))
    kind = media_type(image)
    if kind is None:
        raise MissingError(f"{key}: the image at step {step} is neither JPEG nor PNG")
    return Response(image, media_type=kind, headers=headers)


def _video(request: Request, query: Parameters) -> Response:
    span = query.dataset.video(query.key, query.text("camera"))
    return send_file(request, span.path, "video/mp4", _caching(query))


def _caching(query: Parameters) -> dict[str, str]:
    """Headers for bytes that change only with the dataset's files: a URL with their version never expires."""
    version = query.dataset.version(query.key)
    control = _FOREVER if query.text("v", "") == version else "private, no-cache"
    return {"cache-control": control, "etag": f'"{version}"'}


_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_BLOCK = 1 << 18


def send_file(request: Request, path: str, media_type: str, headers: dict[str, str]) -> Response:
    """The file, or the part that the request's `Range` names (one part; others are ignored).

    Raises:
      OSError: the file cannot be read.
    """
    from starlette.responses import Response, StreamingResponse

    size = storage.size(path)
    headers = {**headers, "accept-ranges": "bytes"}
    asked = request.headers.get("range")
    if asked is not None and request.headers.get("if-range", headers.get("etag")) != headers.get("etag"):
        asked = None  # the file is another one than the client has a part of
    start, stop = 0, size
    if asked is not None and (match := _RANGE.fullmatch(asked.strip())) and match[0] != "bytes=-":
        first, last = match.groups()
        if first:
            start, stop = int(first), min(size, int(last) + 1 if last else size)
        else:
            start = max(0, size - int(last))
        if start >= stop:
            return Response(status_code=416, headers={**headers, "content-range": f"bytes */{size}"})
        headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
    headers["content-length"] = str(stop - start)
    status = 206 if "content-range" in headers else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=media_type)
    return StreamingResponse(_blocks(path, start, stop), status, headers, media_type)


def _blocks(path: str, start: int, stop: int) -> Iterator[bytes]:
    with storage.open_read(path) as file:
        file.seek(start)
        while start < stop and (block := file.read(min(_BLOCK, stop - start))):
            start += len(block)
            yield block


_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self'; "
    "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.ASCII | re.IGNORECASE)
"""With any port: SSH may map the port to another one."""
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Guard:
    """ASGI middleware: refuses requests for other hosts, without the token, or that would write.

    The host is checked because a page of another site may resolve its own name to 127.0.0.1 (DNS rebinding). Cookies
    are shared between the ports of a host, so the cookie's name has the port.
    """

    def __init__(self, app: ASGIApp, token: str, port: int, on_login: Callable[[], object]):
        self._app, self._token, self._cookie, self._on_login = app, token, f"rlds_beam_{port}", on_login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.datastructures import MutableHeaders
        from starlette.requests import Request
        from starlette.responses import JSONResponse

        request = Request(scope)
        refusal = self._refusal(request)
        login = refusal is None and scope["path"] == "/" and self._has_token(request)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**_HEADERS, "cache-control": "no-store"}.items():
                    headers.setdefault(name, value)
                if login:
                    cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append("set-cookie", cookie)
                    self._on_login()
            await send(message)

        refused = None if refusal is None else JSONResponse({"error": refusal[1]}, refusal[0])
        await (refused or self._app)(scope, receive, guarded)

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        """The status and reason to refuse a request; None to accept it."""
        if _OWN_HOST.fullmatch(",".join(request.headers.getlist("host"))) is None:
            return 403, "this server answers for 127.0.0.1 and localhost only"
        if request.method not in ("GET", "HEAD"):
            return 405, "this server is read-only"
        known = self._equals(request.cookies.get(self._cookie, ""))
        if not known and not (request.url.path == "/" and self._has_token(request)):
            return 403, "open the address that rlds-beam browse printed; it has a token"
        return None

    def _has_token(self, request: Request) -> bool:
        given = request.query_params.getlist("token")
        return len(given) == 1 and self._equals(given[0])

    def _equals(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self._token.encode())
