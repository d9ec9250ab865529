"""Only `platforms` names what one operating system has; ruff refuses modules and functions, this test paths."""

from __future__ import annotations

import ast
import errno
import os
import re
import socket

import pytest
from checkout import ROOT, parse

from rlds_beam import platforms
from rlds_beam.errors import RldsBeamError
from rlds_beam.reverb.serving.loopback import keep_to_loopback

ALLOWED = {"platforms.py", "watcher.py"}  # the latter starts without the package
PATHS = re.compile(r"^/(proc|sys|dev/shm)\b")


def test_no_other_module_names_a_path_of_linux() -> None:
    for folder in ("src/rlds_beam", "pipelines", "runners", "transforms"):
        for file in (ROOT / folder).rglob("*.py"):
            texts = [node.value for node in ast.walk(parse(file)) if isinstance(node, ast.Constant)]
            named = [text for text in texts if isinstance(text, str) and PATHS.match(text)]
            assert not named or file.name in ALLOWED, f"{file}: {named}: use rlds_beam.platforms"


def test_a_system_that_cannot_restrict_a_server_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "_DESCRIPTORS", "/no/such/directory")
    with pytest.raises(RldsBeamError, match=r"cannot restrict Reverb to loopback .* Use --host=0\.0\.0\.0"):
        keep_to_loopback(1)


def test_loopback_is_refused_by_a_system_without_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_BINDTODEVICE", raising=False)
    with socket.socket() as listener, pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        platforms.bind_to_loopback(listener)


def test_a_system_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "_THREADS", "/no/such/directory")
    assert platforms.count_cores() >= 1
    with platforms.same_priority():
        pass
