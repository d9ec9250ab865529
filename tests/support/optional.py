"""Skips a test whose own code imports a missing package; a missing import in product code still fails it.

So `pytest tests` runs in any environment, and a base install that suddenly needs TensorFlow is still an error.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
OPTIONAL = frozenset(
    (
        "IPython",
        "array_record",
        "cv2",
        "google.cloud",
        "ipykernel",
        "reverb",
        "tensorflow",
        "tensorflow_datasets",
        "tensorflow_metadata",
        "tf_agents",
    )
)
"""Packages of the extras and of the environments of `make test-pythons`."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    yield from _skipping()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    yield from _skipping()


def _skipping() -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name in OPTIONAL and _is_imported_by_a_test(error):
            pytest.skip(f"{error.name} is not installed")
        raise


def _is_imported_by_a_test(error: ImportError) -> bool:
    """Whether the innermost frame outside the import system is in a file below tests/."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    importers = [file for file in files if not file.startswith("<frozen importlib")]
    return bool(importers) and TESTS in Path(importers[-1]).parents
