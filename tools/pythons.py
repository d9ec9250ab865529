"""`make test-pythons`: tests the base package on every supported Python that is installed.

Each interpreter has its own environment (.venv-py311 and so on), built from its lock in requirements/, with the wheel.
None has TensorFlow: tests skip what is not installed. One Python runs all tests of the base package; the others run
those whose result may depend on the versions of Python and numpy.
"""

from __future__ import annotations

import os
import shlex
import sys

from environments import ROOT, Outcome, all_passed, build, find, install_wheel, print_table, test, version_of

TESTS = ROOT / "tests"

PYTHONS = ("3.11", "3.12", "3.13", "3.14")

WHOLE = "3.13"
"""The Python that all tests of the base package run on."""

LEFT_OUT = (
    "buckets",
    "dataflow",
    "docs",
    "faults",
    "flink",
    "peers",
    "project/test_real_data.py",
    "wheel",
)
"""Tests that kill processes, fill disks, measure memory, build packages or run the pages: `make test` has them, on
Python 3.11. They take most of the time, and what they test depends on the machine rather than on the Python."""

SENSITIVE = (
    # Bytes: the recorded outputs, numpy's casts, sums and random values, images.
    "connectors/statistics/test_episode_statistics.py",
    "encoding/test_arrayrecord.py",
    "encoding/test_example.py",
    "encoding/test_tfrecord.py",
    "episodes/test_columns.py",
    "formats/columns/test_output.py",
    "formats/test_exact_values.py",
    "images/test_codecs.py",
    "project/test_golden.py",
    "reading/test_decoding.py",
    "trajectories/test_items.py",
    # Python: pickling, imports, dataclasses and annotations, argparse, how processes start, warnings.
    "connectors/test_configuration.py",
    "connectors/test_every_connector.py",
    "core/test_user_functions.py",
    "cli/test_main.py",
    "cli/test_functions.py",
    "project/test_public.py",
    "runners/test_notebooks.py",
    "runners/test_local.py",
    "runners/test_worker_pool.py",
    "extending/test_own_output.py",
    "extending/test_own_source.py",
    "trajectories/test_frames.py",
    # Libraries with a release for each Python: Beam, gymnasium, PyArrow.
    "formats/lerobot/test_output.py",
    "pipelines/test_convert.py",
    "pipelines/test_record.py",
)
"""Tests whose result may depend on the versions of Python, numpy, and compiled packages."""


def test_on(version: str, interpreter: str, arguments: list[str]) -> Outcome:
    """Runs the tests on one Python."""
    name = f"py{version.replace('.', '')}"
    python = build(ROOT / f".venv-{name}", interpreter, ROOT / "requirements" / f"base-{name}.lock")
    install_wheel(python)
    numpy = version_of(python, "numpy")
    print(f"\n== Python {version}, numpy {numpy}", flush=True)
    return test(version, numpy, python, arguments)


def default_tests(version: str, arguments: list[str]) -> list[str]:
    """The tests to run if the arguments name none."""
    if any(argument.startswith("tests") for argument in arguments):
        return []
    if version == WHOLE or os.environ.get("RLDS_BEAM_ALL_CASES"):
        return [*(f"--ignore={TESTS / name}" for name in LEFT_OUT), str(TESTS)]
    return [str(TESTS / name) for name in SENSITIVE]


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 if an interpreter was found, and tests passed and none failed on each.

    Args:
      arguments: Python versions (default: all), then pytest's arguments; if these name tests, each Python runs them.
    """
    versions = [argument for argument in arguments if argument in PYTHONS] or PYTHONS
    rest = [argument for argument in arguments if argument not in PYTHONS]
    missing = [name for name in (*LEFT_OUT, *SENSITIVE) if not (TESTS / name).exists()]
    assert not missing, missing
    outcomes = []
    for version in versions:
        interpreter = find(version)
        if interpreter is None:
            print(f"no Python {version} with venv was found: skipped", flush=True)
        else:
            outcomes.append(test_on(version, interpreter, [*rest, *default_tests(version, rest)]))
    print_table(outcomes, "python", "numpy")
    if not outcomes:
        print(f"none of Python {', '.join(versions)} was found", file=sys.stderr)
    return 0 if all_passed(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main([word for argument in sys.argv[1:] for word in shlex.split(argument)]))
