"""Fault cases 25 and 26, through the real command: tables that are full, that block, or that do not match."""

from __future__ import annotations

import pytest

pytest.importorskip("reverb")

import reverb
from pushes import PAIRS, look, size
from servers import tight


class TestNoRoom:
    """Case 25: a table that would drop items or make the writer wait is refused, unless an option allows it."""

    def test_25_too_small(self, push, table) -> None:
        address = table(tight(100))
        push(address).assert_refused(
            address,
            f"'t' has 0 of at most 100 items; {PAIRS:,} more would silently drop {PAIRS - 100:,}",
            f"serve --tables=t:uniform:{PAIRS}",
            "--allow_eviction",
        )
        assert look(address).limiter.inserts == 0
        check = push(address, "--allow_eviction").assert_clean()
        assert (check["inserted"], check["size"]) == (PAIRS, 100)
        assert check["note"].startswith(f"{PAIRS - 100:,} items were dropped")

    def test_25_a_limiter_that_would_wait(self, push, table) -> None:
        ratio = reverb.rate_limiters.SampleToInsertRatio(1.0, 10, 20.0)
        uniform, fifo = reverb.selectors.Uniform(), reverb.selectors.Fifo()
        address = table(reverb.Table.queue("t", 50), reverb.Table("ratio", uniform, fifo, 10**6, ratio))
        for name, room in {"t": 50, "ratio": 30}.items():
            ran = push(address, table=name)
            ran.assert_refused(f"'{name}' admits {room} of {PAIRS:,} items", "--allow_blocking", "uniform")
            assert look(address, name).limiter.inserts == 0
            push(address, "--allow_blocking", "--timeout=5", table=name).assert_not_verified(
                "no item was acknowledged for 5 s", "rate limiter"
            )
            assert size(address, name) == room
