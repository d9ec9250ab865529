"""Reads damaged datasets, each in this process, and prints a JSON line about each: the child of `fuzz.py`.

python fuzz_child.py DIRECTORY SEED '[["npz", 0, 100], ...]'
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytest
from fuzz_mutations import mutate
from fuzz_readers import Comparison
from fuzzed_datasets import DATASETS

from rlds_beam.cli import flags
from rlds_beam.cli import main as cli
from rlds_beam.cli.parsers import job_parser
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import BadEpisode, RldsBeamError
from rlds_beam.formats.inputs import open_input
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.jobs.convert import prepare
from rlds_beam.output.directory import lock_output
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.runners import process_setup

CODES = {0, 1, 2, 3}
MAX_GROWTH_BYTES = 800 << 20
"""Resident memory that a step may add; the datasets have a few kB."""
_ADDRESS_SPACE_BYTES = 4 << 30
_MAX_MESSAGE, _MAX_LINES, _MAX_ERROR_LINES = 2000, 25, 2
CONVERTS, INSPECTS, VALIDATES = 0.1, 0.05, 0.001
"""How often a damaged dataset is also converted, inspected, and validated, which takes longer."""
MAPPINGS = (
    "metadata.yaml",
    "topics.yaml",
    "profile.yaml",
    "connectors.yaml",
    "keep.txt",
    "rlds_beam.json",
    "info.json",
    "manifest.json",
    ".spec",
)
"""Files that say which values are which field: if one is changed, others may be right."""


class Child:
    """Reads damaged copies of one dataset.

    Args:
      root: a directory for the datasets.
      name: the dataset in `DATASETS`.
      report: prints facts.
    """

    def __init__(self, root: Path, name: str, report: Any):
        self.name, self.dataset, self.report = name, DATASETS[name], report
        self.whole, self.scratch = root / name, root / f"{name}-{os.getpid()}"
        *_, self.parser = job_parser("convert", [*self.dataset.argv(self.whole), "--to=rlds"])
        if not self.whole.exists():
            self.dataset.make(self.whole)
        self.notes = {*open_input(self.config(self.whole)).notes}
        episodes, silent = self.read(self.whole)
        assert silent and episodes, f"{name}: the undamaged dataset is not read"
        self.comparison = Comparison.of(self.dataset.read, self.whole, episodes) if self.dataset.read else None
        report(name=name, compared=list(self.comparison.places) if self.comparison else [])

    def config(self, where: Path) -> Any:
        given, *more = self.dataset.argv(where)
        argv = [given, str(self.scratch / "out"), *more, "--to=rlds"]
        return flags.parse_config(self.parser, ConvertConfig, argv, ())

    def read(self, where: Path) -> tuple[list[Episode], bool]:
        """Returns the accepted episodes, and whether nothing was rejected or reported."""
        source = open_input(self.config(where))
        reader = EpisodeReader(source)
        found = [e for work in plan_ranges(source) for s in work.segments for e in reader.read(work.split, s)]
        accepted = [episode for episode in found if not episode.faults and _has_images(episode)]
        reported = source.violations or source.left_out or {*source.notes} - self.notes
        return accepted, len(accepted) == len(found) and not reported

    def convert(self, where: Path) -> None:
        job = prepare(self.config(where))
        with lock_output(job.directory):
            for work in job.open():
                job.converter.convert_range(work, {})
            report = job.committer.commit()
        assert report.records == report.valid + report.rejected, report

    def mutation(self, seed: str, case: int) -> None:
        """Damages a copy and reads it; prints what happened."""
        rng = random.Random(f"{self.name} {seed} {case}")
        shutil.rmtree(self.scratch, ignore_errors=True)
        where = self.scratch / str(case)  # each has its own path, since caches know files by their paths
        shutil.copytree(self.whole, where, symlinks=True)
        try:
            what = mutate(where, rng)
        except Exception as error:
            self.report(name=self.name, case=case, outcome="not changed", what=f"{type(error).__name__}: {error}")
            return
        facts: dict[str, Any] = {"name": self.name, "case": case, "what": what}
        try:
            episodes: list[Episode] = []
            silent = False

            def read() -> None:
                nonlocal episodes, silent
                episodes, silent = self.read(where)

            said = self.step(facts, "read", where, read)
            facts["outcome"] = "refused" if said else "accepted" if silent else "rejected"
            facts["said"] = said and said[:300]
            if self.comparison is not None and episodes and not any(name in what for name in MAPPINGS):
                self.report(step="compare", **facts)
                wrong, facts["reader"] = self.comparison.problem(where, episodes, silent)
                if wrong:
                    raise ProblemError(wrong)
            if rng.random() < CONVERTS or "listed" in self.name:
                self.step(facts, "convert", where, lambda: self.convert(where))
            given, *more = self.dataset.argv(where)
            more = [flag for flag in more if not flag.startswith(("--only", "--connectors"))]
            if rng.random() < INSPECTS:
                recognized = [flag for flag in more if rng.random() < 0.7 or not flag.startswith("--from=")]
                self.step(facts, "inspect", where, lambda: command(["inspect", given, *recognized]))
            if rng.random() < VALIDATES:
                self.step(
                    facts, "check", "--rules", where, lambda: command(["check", "--rules", given, *more, "--workers=1"])
                )
        except ProblemError as error:
            facts["problem"] = str(error)
        except Exception:
            facts["problem"] = f"the comparison: {traceback.format_exc()[-2500:]}"
        self.report(**facts)

    def step(self, facts: dict[str, Any], name: str, where: Path, function: Any) -> str | None:
        """Runs a function; returns the message of its error, if it is one for users.

        Raises:
          ProblemError: it raised another error, printed something, or used much memory.
        """
        self.report(step=name, **facts)
        _noise()
        before, peak = resident("VmRSS"), _peak()
        said = None
        try:
            function()
        except ProblemError:
            raise
        except (RldsBeamError, OSError) as error:
            said = str(error)
            first = said.partition("\n")[0]
            most = _MAX_LINES if first.endswith(":") or "Here is a proposal" in said else _MAX_ERROR_LINES  # a list
            if len(said) > _MAX_MESSAGE or said.count("\n") >= most or not said.strip() or _controls(said):
                raise ProblemError(f"{name}: {type(error).__name__} is no line: {said!r:.600}") from None
        except BaseException:
            raise ProblemError(f"{name}: {traceback.format_exc()[-2500:]}") from None
        if (after := _peak()) > peak and after - before > MAX_GROWTH_BYTES:
            raise ProblemError(f"{name}: {(after - before) >> 20} MB more memory")
        if noise := _noise():
            raise ProblemError(f"{name}: a library printed {noise!r:.500}")
        return said


class ProblemError(Exception):
    """What is wrong with how a damaged dataset was read."""


def _has_images(episode: Episode) -> bool:
    """Reads the images; those of videos are decoded now."""
    try:
        return all([*column] for column in episode.steps.values() if isinstance(column, EncodedImages))
    except BadEpisode:
        return False


def command(argv: list[str]) -> None:
    """Runs a command. Raises ProblemError for what a user must not see."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(argv)
    said = err.getvalue()
    wrong = None
    if code not in CODES or "Traceback" in said or "Error: " in said.replace("rlds-beam: ", ""):
        wrong = f"exit {code}"
    elif code in (1, 2) and not said.strip():
        wrong = f"exit {code} without a word"
    elif len(said) > _MAX_MESSAGE or said.count("\n") > _MAX_LINES:
        wrong = f"exit {code}: more than a screen"
    elif control := _controls(out.getvalue() + said):
        wrong = f"exit {code}: control characters {control}"
    if wrong:
        raise ProblemError(f"{argv[0]}: {wrong}: {said[:1500]}")


def _controls(text: str) -> set[str]:
    """The characters that a terminal may obey."""
    return {c for c in text if not c.isprintable() and c not in "\n\t"}


def resident(what: str) -> int:
    """Memory of this process in bytes: `VmRSS`, or `VmSize`, the address space."""
    pages = Path("/proc/self/statm").read_text().split()
    return int(pages[what == "VmRSS"]) * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _noise() -> str:
    """What was printed past Python's streams since the last call."""
    size = os.lseek(1, 0, os.SEEK_END)
    said = os.pread(1, min(size, 10_000), 0).decode("utf-8", "replace")
    os.ftruncate(1, 0)
    return said


def main(directory: str, seed: str, jobs: str) -> None:
    faulthandler.enable()
    os.environ.update(process_setup.ENVIRONMENT)
    with os.fdopen(os.dup(1), "w") as out, tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)

        def report(**facts: Any) -> None:
            print(json.dumps(facts), file=out, flush=True)

        for name, first, stop in json.loads(jobs):
            report(step="make", name=name)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
            try:
                child = Child(Path(directory), name, report)
            except (ImportError, pytest.skip.Exception) as error:  # an extra is not installed
                report(name=name, outcome="skipped", what=str(error))
                continue
            except Exception:
                report(name=name, outcome="problem", problem=f"the undamaged dataset: {traceback.format_exc()[-2500:]}")
                continue
            # The address space, not the memory, which bounds the size of one allocation.
            resource.setrlimit(resource.RLIMIT_AS, (resident("VmSize") + _ADDRESS_SPACE_BYTES, resource.RLIM_INFINITY))
            for case in range(first, stop):
                child.mutation(seed, case)
            if stop - first > 1:  # a single one is looked at
                shutil.rmtree(child.scratch, ignore_errors=True)
        report(done=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
