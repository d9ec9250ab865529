"""Runs commands with the test modules in the current directory, like a user's modules."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
from collections.abc import Sequence
from typing import Any

import pytest
from checkout import SUPPORT

from rlds_beam.cli.main import main
from rlds_beam.formats.rlds.source import RldsSource

_MODULES = SUPPORT.with_name("extending")


def options(**environment: str) -> dict[str, Any]:
    """Options for `processes.running`."""
    return {"cwd": _MODULES, "env": {**os.environ, "PYTHONPATH": str(SUPPORT), **environment}}


def run(*arguments: object) -> tuple[int, str, str]:
    """Runs a command in this process; returns its exit code, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(_MODULES)
        patch.setenv("PYTHONPATH", str(SUPPORT))  # for its workers
        code = main([*map(str, arguments)])
    return code, out.getvalue(), err.getvalue()


@dataclasses.dataclass(frozen=True)
class NamedSource(RldsSource):
    """A user's source with any name and split; the input is `DIRECTORY,DATASET,SPLIT`."""

    @classmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> RldsSource:
        directory, dataset, name = str(input).split(",")
        found = RldsSource.open(directory)
        splits = tuple(dataclasses.replace(one, name=name) for one in found.splits)
        return dataclasses.replace(found, dataset=dataset, splits=splits)
