"""A real second wheel whose entry points are formats and connectors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import readme
from checkout import ROOT

import rlds_beam
from rlds_beam import connectors, plugins
from rlds_beam.checking.signals import SIGNALS
from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode

MODULE = '''
import dataclasses
from rlds_beam.checking.signals import signal
from rlds_beam.connectors import EpisodeConnector
from rlds_beam.formats import Format
from rlds_beam.options import Options, option
from rlds_beam_logs_formats import JsonSource

LOG = Format(source="rlds_beam_logs:LogSource", names=("*.jsonl",))
OURS = Format(source="rlds_beam_logs:LogSource")

@dataclasses.dataclass(frozen=True)
class LogOptions(Options):
    """How logs are read."""
    log_files: int = option(100, "read at most this many files", least=1)

@dataclasses.dataclass(frozen=True)
class LogSource(JsonSource):
    options_class = LogOptions

    @classmethod
    def open(cls, input, *, split=None, features=None, options):
        opened = JsonSource.open(input, split=split, features=features)
        (split,) = opened.splits
        return cls(opened.dataset, (dataclasses.replace(split, shards=split.shards[:options.log_files]),))

class HalveReward(EpisodeConnector):
    """Halves rewards."""

    def edit(self, episode, fields):
        return episode.with_columns({fields.rewards: episode.steps[fields.rewards] / 2})

def not_marked(batch):
    return batch

@signal("Motion", "share of steps", 0.5, remedy="drive slower")
def fast_share(episodes):
    """Steps in which an observation is above 1."""
    motions = episodes.motions
    return {path: episodes.share((motions[path].values > 1).any(axis=0)) for path in motions}
'''

PROJECT = """
[project]
name = "rlds-beam-logs"
version = "2.5"
[project.entry-points."rlds_beam.formats"]
robot_log = "rlds_beam_logs:LOG"
rlds = "rlds_beam_logs:OURS"
gone = "rlds_beam_logs:GONE"
odd = "rlds_beam_logs:HalveReward"
[project.entry-points."rlds_beam.connectors"]
HalveReward = "rlds_beam_logs:HalveReward"
NotMarked = "rlds_beam_logs:not_marked"
[project.entry-points."rlds_beam.signals"]
fast_share = "rlds_beam_logs:fast_share"
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[tool.setuptools]
py-modules = ["rlds_beam_logs", "rlds_beam_logs_formats"]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed wheel."""
    pytest.importorskip("setuptools")
    project, site = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    page = readme.blocks(ROOT / "docs" / "how_to" / "own_source.md")
    (project / "rlds_beam_logs_formats.py").write_text(next(b.code for b in page if "class JsonSource" in b.code))
    (project / "rlds_beam_logs.py").write_text(MODULE)
    (project / "pyproject.toml").write_text(PROJECT)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, f"--target={site}", str(project)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return site


@pytest.fixture(autouse=True)
def _installed(site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(site))  # of worker processes
    monkeypatch.syspath_prepend(site)
    _forget()
    known = dict(SIGNALS)
    yield
    SIGNALS.clear()
    SIGNALS.update(known)  # importing the wheel's module adds its signal
    for name in ("rlds_beam_logs", "rlds_beam_logs_formats"):
        sys.modules.pop(name, None)
    _forget()


def _forget() -> None:
    for cached in (plugins._read_declared, plugins.find):
        cached.cache_clear()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for number in range(2):
        steps = make_episode(10, seed=number, observation=2, action=()).steps
        line = json.dumps({name: column.tolist() for name, column in steps.items()})
        (tmp_path / "robot").mkdir(exist_ok=True)
        (tmp_path / "robot" / f"{number}.jsonl").write_text(f"{line}\n")
    return tmp_path / "robot"


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main([*words]) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_it_is_recognized_and_read(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "robot_log (0.jsonl)" in said(capsys, "inspect", "robot")
    assert "accepted  2 episodes" in said(capsys, "convert", "robot", "pairs", "--workers=2")
    assert rlds_beam.check("robot", from_="robot_log", rules=True).report.episodes == 2
    assert rlds_beam.check("robot", log_files=1, rules=True).report.episodes == 1
    assert "accepted  1 episode" in said(capsys, "check", "--rules", "robot", "--from=robot_log", "--log_files=1")
    assert len(rlds_beam.open_dataset("robot")) == 2


def test_a_signal_is_measured_in_workers_too(logs: Path) -> None:
    check = ["check", "robot", "--from=robot_log", "--reject=fast_share > -1", "--json"]
    done = subprocess.run([sys.executable, "-m", "rlds_beam", *check], capture_output=True, text=True, timeout=600)
    found = json.loads(done.stdout)
    assert found["chosen"] == 2 and found["signals"]["fast_share"]["measured"] == 2


def test_errors_name_it(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "robot_log, or module:Class" in said(capsys, "check", "--rules", "robot", "--from=robot_lag", code=2)
    assert "did you mean HalveReward" in said(capsys, "check", "--rules", "robot", "--connectors=HalvReward", code=2)
    Path("nothing").mkdir()
    assert re.search(r"robot_log +\*\.jsonl", said(capsys, "check", "--rules", "nothing", code=2))


def test_a_connector(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "convert", "robot", "half", "--to=rlds", "--connectors=HalveReward")
    whole, half = (rlds_beam.open_dataset(path)[0]["steps/reward"] for path in ("robot", "half"))
    assert (half == whole / 2).all()
    assert connectors.HalveReward is sys.modules["rlds_beam_logs"].HalveReward
    assert "not_marked" not in said(capsys, "check", "--rules", "robot", "--connectors=NotMarked", code=2)
    with pytest.raises(AttributeError):
        _ = connectors.NoSuchConnector


def test_what_cannot_be_used_is_refused_in_a_line(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, named in {
        ("check", "--rules", "robot", "--from=gone"): "gone, of the package rlds-beam-logs 2.5 (rlds_beam_logs:GONE)",
        ("check", "--rules", "robot", "--from=odd"): "not a rlds_beam.formats.Format",
        ("convert", "robot", "out", "--to=robot_log"): "there is no such output",
    }.items():
        text = said(capsys, *words, code=2)
        assert named in text and len(text.splitlines()) == 1
