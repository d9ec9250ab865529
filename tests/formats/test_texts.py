"""Texts that formats cannot hold: an output keeps them, rejects the episode with its place, or leaves the field out."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export, read_back

from rlds_beam import open_dataset
from rlds_beam.episodes.columns import text_bytes
from rlds_beam.errors import BadEpisode
from rlds_beam.processing.report import Report
from rlds_beam.testing import make_episode, write_dataset

ZERO, LAST_ZERO, NOT_UTF8 = [b"a\0b"], [b"\0", b"end\0"], [b"\xff\xfe", b"a\xed\xa0\x80"]
TEXTS = [b"plain", "é\U0001f600".encode(), *ZERO, *LAST_ZERO, *NOT_UTF8]
PLACES = ["note", "observation/mission", "language_instruction", "episode_metadata/policy"]
OUTPUTS: dict[str, tuple[str, dict[str, Any], list[bytes], str]] = {
    "rlds": ("rlds", {}, [], ""),
    "numpy": ("numpy", {}, [], ""),
    "trajectories": ("trajectories", {"keep": PLACES}, [], ""),
    "zarr": ("zarr", {}, LAST_ZERO, "a text ends with a zero byte"),
    "minari": ("minari", {}, [*ZERO, *LAST_ZERO, *NOT_UTF8], "has a zero byte|is not UTF-8"),
    "lerobot": ("lerobot", {"fps": 10}, NOT_UTF8, "not UTF-8"),
    "lerobot 2.1": ("lerobot", {"fps": 10, "lerobot_version": "2.1"}, NOT_UTF8, "not UTF-8"),
}
"""Name -> the output, its options, the texts that it rejects, and what it says of them."""


def convert(tmp_path: Path, place: str, to: str, options: dict[str, Any]) -> Report:
    """Converts an episode for each text, which is at step 1, or in the metadata."""
    made = []
    for i, text in enumerate(TEXTS):
        columns = {} if "metadata" in place else {place: [b"first", text, b"last"]}
        metadata = None if columns else {place.partition("/")[2]: text}
        made.append(make_episode(3, seed=i, observation={"state": 2}, columns=columns, metadata=metadata))
    if "keep" in options:
        options = {**options, "keep": (place,)}
    return export(write_dataset(tmp_path, made, name="texts"), tmp_path / "out", to, **options)


def stored(output: Path, to: str, place: str) -> list[bytes]:
    """The texts of an output, in order."""
    if to == "trajectories":  # two frames of each episode: steps 0 and 1, and steps 1 and 2
        rows = [row[place] for row in open_dataset(output)]
        return [bytes(row if "metadata" in place else row[1]) for row in rows[::2]]
    episodes = read_back(output, to)
    return [bytes(e.metadata[place] if "metadata" in place else e.steps[place][1]) for e in episodes]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_text_is_kept_as_it_is_or_its_episode_is_rejected(output: str, place: str, tmp_path: Path) -> None:
    to, options, rejected, said = OUTPUTS[output]
    report = convert(tmp_path, place, to, options)
    assert stored(tmp_path / "out", to, place) == [text for text in TEXTS if text not in rejected]
    assert report.rejected == len(rejected) and not [path for path in report.left_out if place in path]
    details = [detail for rule in report.rules.values() for _, detail in rule.samples]
    assert len(details) == len(rejected)
    for detail in details:
        assert detail.startswith(place) and any(part in detail for part in said.split("|"))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("to", ["d3rlpy", "scope_rl", "rllib"])
def test_an_output_without_texts_says_that_it_leaves_them_out(to: str, place: str, tmp_path: Path) -> None:
    report = convert(tmp_path, place, to, {})
    assert (report.rejected, report.valid) == (0, len(TEXTS))
    if (to, place) != ("scope_rl", "episode_metadata/policy"):
        assert place in report.left_out
        return
    (file,) = (tmp_path / "out").glob("*.pickle")
    names = sorted(text.decode("utf-8", "backslashreplace") for text in TEXTS)
    assert pickle.loads(file.read_bytes())["behavior_policy"] == "+".join(names)  # no two become equal


def test_half_of_a_surrogate_pair_is_a_violation() -> None:
    with pytest.raises(BadEpisode, match="surrogate pair"):
        text_bytes("\ud800", "note")
    assert text_bytes(np.str_("é"), "note") == "é".encode()
