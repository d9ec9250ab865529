"""Keeps everybody but the user's own browser away from the server."""

from __future__ import annotations

import http.cookies
import json
import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self'; "
    "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.ASCII)
"""With any port: SSH may map the port to another one."""
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """ASGI middleware: refuses requests for other hosts, without the token, or that would write.

    The host is checked because a page of another site may resolve its own name to 127.0.0.1 (DNS rebinding). Cookies
    are shared between the ports of a host, so the cookie's name has the port.
    """

    def __init__(self, app: ASGIApp, token: str, port: int, on_login: Callable[[], object]):
        self._app, self._token, self._cookie, self._on_login = app, token, f"rlds_beam_{port}", on_login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        cookie = None if refusal is not None or scope["path"] != "/" else self._new_cookie(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                there = {name for name, _ in headers}
                for name, value in {**_HEADERS, "cache-control": "no-store"}.items():
                    if name.encode() not in there:
                        headers.append((name.encode(), value.encode()))
                if cookie is not None:
                    headers.append((b"set-cookie", cookie.encode()))
                    self._on_login()
                message = {**message, "headers": headers}
            await send(message)

        if refusal is None:
            await self._app(scope, receive, guarded)
            return
        status, error = refusal
        body = json.dumps({"error": error}).encode()
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
        await guarded({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and reason to refuse a request; None to accept it."""
        headers = scope["headers"]
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or _OWN_HOST.fullmatch(hosts[0]) is None:
            return 403, "this server answers for 127.0.0.1 and localhost only"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "this server is read-only"
        if not self._has_cookie(scope) and not (scope["path"] == "/" and self._has_token(scope)):
            return 403, "open the address that rlds-beam browse printed; it has a token"
        return None

    def _has_token(self, scope: Scope) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return len(given) == 1 and self._equals(given[0])

    def _has_cookie(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"cookie":
                jar: http.cookies.SimpleCookie = http.cookies.SimpleCookie()
                try:
                    jar.load(value.decode("latin-1"))
                except http.cookies.CookieError:
                    continue
                if self._cookie in jar and self._equals(jar[self._cookie].value):
                    return True
        return False

    def _equals(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self._token.encode())

    def _new_cookie(self, scope: Scope) -> str | None:
        if not self._has_token(scope):
            return None
        return f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
