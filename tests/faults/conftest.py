"""A dataset, its expected items, and its push, for the push tests."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest
from pushes import Push, dataset, due


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def pairs() -> collections.Counter[bytes]:
    return due()


@pytest.fixture
def push(data, capsys) -> Push:
    return Push(data, capsys)
