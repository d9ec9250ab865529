"""Counts the bytecode that a call executes: the same on every machine, so a test can bound it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def bytecodes(call: Callable[[], Any]) -> int:
    """Counts the bytecode instructions that a call executes, including those in the functions it calls."""
    return _monitored(call) if sys.version_info >= (3, 12) else _traced(call)


def _monitored(call: Callable[[], Any]) -> int:
    """Counts with `sys.monitoring`: since Python 3.12, `settrace` misses code that was not traced before."""
    count, monitoring = 0, sys.monitoring

    def executed(*_: Any) -> None:
        nonlocal count
        count += 1

    tool = monitoring.PROFILER_ID
    monitoring.use_tool_id(tool, "bytecodes")
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, executed)
    monitoring.set_events(tool, monitoring.events.INSTRUCTION)
    try:
        call()
    finally:
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
        monitoring.free_tool_id(tool)
    return count


def _traced(call: Callable[[], Any]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
