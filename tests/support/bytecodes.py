"""How much Python a call executes: the same on every machine, so a test can bound it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def bytecodes(call: Callable[[], Any]) -> int:
    """The number of bytecode instructions that a call executes, in all functions it calls."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 counts none unless a frame asked before settrace
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
