"""Keeps everybody but the user's own browser away from the server."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
