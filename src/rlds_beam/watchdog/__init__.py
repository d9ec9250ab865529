"""Ends a process whose main thread a library no longer returns to: `marks` is in it, `watcher` in another process."""

from rlds_beam.watchdog.marks import SignalEvent as SignalEvent
from rlds_beam.watchdog.marks import interrupts as interrupts
from rlds_beam.watchdog.marks import keep_marks as keep_marks
from rlds_beam.watchdog.marks import marks_path as marks_path
from rlds_beam.watchdog.marks import on_interrupt as on_interrupt
from rlds_beam.watchdog.marks import reading as reading
from rlds_beam.watchdog.marks import start_watchdog as start_watchdog
from rlds_beam.watchdog.marks import waiting as waiting
