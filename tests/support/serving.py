"""Runs `rlds-beam serve` in a process, as a user does; tables to compare with."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from processes import DEADLINE

from rlds_beam.cli.main import main


class Serve:
    """The command in its own process."""

    def __init__(self, *flags: object):
        script = Path(sys.executable).with_name("rlds-beam")
        self.process = subprocess.Popen(
            [script, "serve", *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.text = ""

    def wait_ready(self, tables: int) -> Serve:
        """Waits until the command has listed this many tables."""
        assert self.process.stdout is not None
        deadline = threading.Timer(DEADLINE, self.process.kill)
        deadline.start()
        try:
            for line in self.process.stdout:
                self.text += line
                if self.text.count(" of at most ") == tables:
                    return self
        finally:
            deadline.cancel()
        raise AssertionError(self.process.communicate(timeout=DEADLINE))

    @property
    def address(self) -> str:
        match = re.search(r"serving +(\S+:\d+)", self.text)
        assert match is not None
        return match[1]

    @property
    def server(self) -> int:
        """The process id of the server."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (server,) = map(int, children)
        return server

    def end(self, *signals: int) -> tuple[int, str, str]:
        for number in signals:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err

    def __enter__(self) -> Serve:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=DEADLINE)


def a_table(name: str = "replay", **changes: Any) -> Any:
    import reverb

    uniform, fifo, limiter = reverb.selectors.Uniform(), reverb.selectors.Fifo(), reverb.rate_limiters.MinSize(1)
    return reverb.Table(
        **{"name": name, "sampler": uniform, "remover": fifo, "max_size": 1000, "rate_limiter": limiter, **changes}
    )


def refused(capsys, *flags: object, code: int = 2) -> str:
    """Returns the error of a command that refuses to start."""
    assert main(["serve", *map(str, flags)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rlds-beam: ") and len(captured.err.splitlines()) == 1
    return captured.err
