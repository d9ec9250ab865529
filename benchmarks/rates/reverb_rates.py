"""The cost of a pushed item: processor time of the client and server, and the server's memory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401
from tables import frames_of, items_of, options_of, servers, target_of

from rlds_beam.jobs.push import open_input
from rlds_beam.reverb.writing import StreamWriter


def push(dataset: str, repeats: int) -> dict[str, float]:
    """Pushes step pairs into a fresh server `repeats` times; the lowest of each cost counts.

    Returns:
      The number of items; and per item: `client_us` (making requests, sending them, waiting), `server_us` (processor
      microseconds of the server), `server_bytes` (growth of its resident memory), `wire_bytes`, and `wall_us`, the
      time of the slower side if both have a core.
    """
    source = open_input(options_of(dataset))
    made = items_of(frames_of(source), source.items)
    runs = [_once(dataset, source, made) for _ in range(repeats)]
    # The memory at the end; the largest run is the one that reuse of freed pages hides least.
    return {name: (max if name == "server_bytes" else min)(run[name] for run in runs) for name in runs[0]}


def _once(dataset: str, source: Any, made: Any) -> dict[str, float]:
    before = children()
    with servers(source, 1) as (address,):
        (server,) = children() - before
        writer = StreamWriter(target_of(options_of(dataset, server=address)))
        used, resident = usage(server)
        began, cpu, items = time.perf_counter(), time.process_time(), 0
        for one in made:
            writer.write(writer.encode(one))
            items += len(one)
        writer.flush()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - began
        used_after, resident_after = usage(server)
        writer.close()
    return {
        "items": items,
        "client_us": 1e6 * cpu / items,
        "server_us": 1e6 * (used_after - used) / items,
        "wall_us": 1e6 * wall / items,
        "server_bytes": (resident_after - resident) / items,
        "wire_bytes": writer.sent_bytes / items,
    }


def children() -> set[int]:
    """The child processes."""
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def usage(pid: int) -> tuple[float, int]:
    """(processor seconds so far, resident bytes) of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")
