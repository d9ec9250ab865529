"""An output can be resumed only with the same input and code."""

from __future__ import annotations

import importlib
import linecache
import shutil
import sys
import textwrap
from pathlib import Path

import pytest
from versions import FORMATS, episodes, make_shards, record


@pytest.mark.parametrize(
    ("kind", "flags"), [("tfrecord", ()), *((kind, ("--accept=duplicate_episode",)) for kind in FORMATS)]
)
def test_rerecorded_input_changes_the_plan(tmp_path, convert, kind, flags):
    source = record(tmp_path / "data", 0, kind)
    sizes = [p.stat().st_size for p in make_shards(source)]
    first = convert(source, *flags)
    assert first.code == 0
    record(tmp_path / "data", 0, kind)  # the same again: nothing has changed
    again = convert(source, *flags)
    assert again.code == 0 and "nothing to do: " in again.out
    record(tmp_path / "data", 100, kind)
    assert [p.stat().st_size for p in make_shards(source)] == sizes
    changed = convert(source, *flags)
    assert changed.code == 2
    for text in ("the input has changed", "--overwrite"):
        assert text in changed.err
    replaced = convert(source, *flags, "--overwrite")
    assert replaced.code == 0
    assert replaced.items[0]["observation"].tobytes() == episodes(100)[0].steps["observation"][:2].tobytes()


def test_half_an_output_is_not_finished_with_other_input(tmp_path, convert):
    """The state after a kill: one range is committed, the other is not."""
    source = record(tmp_path / "data", 0)
    output = convert(source, "--shards=2").output
    (output / "manifest.json").unlink()
    (output / "_commits" / "train-00001-of-00002.json").unlink()
    record(tmp_path / "data", 100)
    ran = convert(source, "--shards=2")
    assert ran.code == 2 and "the input has changed" in ran.err
    record(tmp_path / "data", 0)
    assert convert(source, "--shards=2").code == 0


FUNCTION = """
    import numpy as np

    def scale():
        return {scale}

    def info(steps, following):
        return {{"score": np.full(len(steps["reward"]), scale(), np.float32)}}
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a user module, and imports it as a new process would."""
    monkeypatch.chdir(tmp_path)
    name = f"edited_{tmp_path.name}"  # directories of other tests are also on the path

    def forget() -> None:
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        linecache.clearcache()
        shutil.rmtree("__pycache__", ignore_errors=True)

    def write(scale: float, version: str | None = None) -> str:
        text = textwrap.dedent(FUNCTION.format(scale=scale))
        text += "" if version is None else f"\ninfo.__version__ = {version!r}\n"
        Path(f"{name}.py").write_text(text)
        forget()
        return f"{name}:info"

    yield write
    forget()


def test_an_edited_function_changes_the_plan(tmp_path, convert, module):
    source = record(tmp_path / "data", 0)
    flag = f"--policy_info_fn={module(1.0)}"
    assert convert(source, flag).code == 0
    module(1.0)
    assert convert(source, flag).code == 0
    module(2.0)  # edits a function that it calls
    ran = convert(source, flag)
    assert ran.code == 2
    for text in ("the code has changed: edited_test", ":info", "--overwrite"):
        assert text in ran.err


def test_a_version_replaces_the_source(tmp_path, convert, module):
    source = record(tmp_path / "data", 0)
    flag = f"--policy_info_fn={module(1.0, version='1')}"
    assert convert(source, flag).code == 0
    module(2.0, version="1")
    assert convert(source, flag).code == 0
    module(2.0, version="2")
    assert "the code has changed" in convert(source, flag).err
