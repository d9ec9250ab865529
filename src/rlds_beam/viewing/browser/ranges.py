"""A file as an HTTP response, with Range requests: videos are seeked in the browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlds_beam import storage

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

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
