"""Paths of the Hugging Face Hub: `hf://datasets/USER/NAME[@REVISION][/FILE]`."""

from __future__ import annotations

import pytest

from rlds_beam.buckets.hub_paths import hub_path
from rlds_beam.errors import UsageError


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hf://datasets/u/n", ("u/n", None, "")),
        ("hf://datasets/u/n/", ("u/n", None, "")),
        ("hf://datasets/u-1/n.v_2/a/b", ("u-1/n.v_2", None, "a/b")),
        ("hf://datasets/u/n@v1.0/a", ("u/n", "v1.0", "a")),
        ("hf://datasets/u/n@refs%2Fconvert%2Fparquet/a", ("u/n", "refs/convert/parquet", "a")),
        ("hf://datasets/u/n@refs/convert/parquet/a/b", ("u/n", "refs/convert/parquet", "a/b")),
        ("hf://datasets/u/n@refs/pr/12", ("u/n", "refs/pr/12", "")),
        ("hf://datasets/u/n/a@b", ("u/n", None, "a@b")),
        ("hf://datasets/u/n/100%2F", ("u/n", None, "100%2F")),
    ],
)
def test_paths(path: str, expected: tuple[str, str | None, str]) -> None:
    assert hub_path(path)[:3] == expected


@pytest.mark.parametrize(
    "path",
    [
        "hf://",
        "hf://u/n",
        "hf://datasets/n",
        "hf://datasets//n",
        "hf://models/u/n",
        "hf://datasets/../n/a",
        "hf://datasets/u/n@../x",
        "hf://datasets/u/n@a%00b",
        "hf://datasets/u/n@%2e%2e/x",
        "hf://datasets/u/n@/x",
        "hf://datasets/u/n/../../x",
        "hf://datasets/u/n/a\nb",
        "hf://datasets/u/n/a//b",
        "hf://datasets/u/n/a\\b",
        "hf://datasets/u?x=/n",
        "hf://datasets/u/n#x",
        "hf://datasets/u/n.git",
    ],
)
def test_paths_that_do_not_become_addresses(path: str) -> None:
    with pytest.raises(UsageError, match=r"^hf://.*: "):
        hub_path(path)
