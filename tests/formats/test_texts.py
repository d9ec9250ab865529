"""Texts that formats cannot hold: each output keeps them, or rejects the episode and says where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exchanging import export, read_back

from rlds_beam.episodes.columns import text_bytes
from rlds_beam.errors import BadEpisode
from rlds_beam.testing import make_episode, write_dataset

STRANGE = [b"a\0b", b"\0", b"end\0", "é\U0001f600".encode()]


@pytest.mark.parametrize("to", ["minari", "zarr", "rlds", "numpy"])
def test_zero_bytes_are_kept_or_rejected(to: str, tmp_path: Path) -> None:
    if to == "minari":
        pytest.importorskip("h5py")
    columns = [{"note": [b"first", text, b"last"]} for text in [b"plain", *STRANGE]]
    made = [make_episode(3, seed=i, observation=2, columns=column) for i, column in enumerate(columns)]
    report = export(write_dataset(tmp_path, made, name="texts"), tmp_path / "out", to)
    kept = {bytes(episode.steps["note"][1]) for episode in read_back(tmp_path / "out", to) if "note" in episode.steps}
    if to == "minari":
        assert (report.rejected, kept) == (3, {b"plain", STRANGE[3]})
        said = [detail for _, detail in report.rules["not_representable"].samples]
        assert len(said) == 3 and all(detail == SAID for detail in said)
    elif to == "zarr":
        assert (report.rejected, kept) == (2, {b"plain", STRANGE[0], STRANGE[3]})
    elif kept:
        assert (report.rejected, kept) == (0, {b"plain", *STRANGE})


SAID = "note: the text at step 1 has a zero byte, which HDF5 does not keep"


def test_half_of_a_surrogate_pair_is_a_violation() -> None:
    with pytest.raises(BadEpisode, match="surrogate pair"):
        text_bytes("\ud800", "note")
    assert text_bytes(np.str_("é"), "note") == "é".encode()
