"""The conformance tests of each source, on small datasets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fuzzed_datasets import DATASETS

from rlds_beam.formats.registry import SOURCES
from rlds_beam.testing import SourceTests


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets, each written by the first test that needs it."""
    return tmp_path_factory.mktemp("written")


class TestEverySource(SourceTests):
    @pytest.fixture(autouse=True, params=SOURCES)
    def _choose(self, request: pytest.FixtureRequest, written: Path) -> None:
        self.source, self._whole = request.param, written / request.param

    def write(self, directory: Path) -> str:
        dataset = DATASETS["hdf5_aloha" if self.source == "hdf5" else self.source]
        if not self._whole.exists():
            dataset.make(self._whole)
        shutil.copytree(self._whole, directory)
        given, *flags = dataset.argv(directory)
        named = dict(flag.removeprefix("--").split("=") for flag in flags)
        self.options = {name: value for name, value in named.items() if name != "from"}
        return given
