"""A relay that passes bytes on later: `python slow_link.py PORT TARGET_PORT MILLISECONDS`, on all interfaces."""

from __future__ import annotations

import asyncio
import contextlib
import sys

_CHUNK = 1 << 16


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Passes bytes on in order, each `delay` seconds after it came."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)

    async def write() -> None:
        while True:
            due, data = await chunks.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                return
            writer.write(data)
            await writer.drain()

    writing = asyncio.create_task(write())
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            await chunks.put((loop.time() + delay, data))
    await chunks.put((loop.time() + delay, b""))
    with contextlib.suppress(ConnectionError):
        await writing
    writer.close()


async def _serve(port: int, target: int, delay: float) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_pass_on(reader, back, delay / 2), _pass_on(there, writer, delay / 2))

    server = await asyncio.start_server(relay, "0.0.0.0", port, backlog=512)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000))
