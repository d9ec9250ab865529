"""The event that signal handlers set."""

from __future__ import annotations

import signal

from rlds_beam import interrupts


def test_a_handler_sets_an_event_that_the_interrupted_code_waits_for() -> None:
    """`threading.Event.set` would wait for the interrupted `wait`, forever, in about one of a thousand."""
    before = signal.getsignal(signal.SIGVTALRM)
    try:
        for i in range(500):
            event = interrupts.SignalEvent()
            signal.signal(signal.SIGVTALRM, lambda *_, event=event: event.set())
            signal.setitimer(signal.ITIMER_VIRTUAL, 1e-4 * (1 + i % 5))
            while not event.wait(0):
                pass
            assert event.is_set()
    finally:
        signal.signal(signal.SIGVTALRM, before)
