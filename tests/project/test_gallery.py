"""The gallery: its pictures are what the script draws, and it shows each tutorial and each script."""

from __future__ import annotations

import re

import numpy as np
import pytest
from checkout import ROOT
from doc_scripts import script

from rlds_beam.images.decoding import decode_image

GALLERY = (ROOT / "docs" / "tutorials" / "gallery.md").read_text()


def test_the_charts_are_what_the_script_draws() -> None:
    drawn = script("gallery").pictures()
    for path, content in drawn.items():
        assert path.read_text() == content, f"{path.name}: run `make docs`, or python docs/gallery.py"
        assert path.name.endswith("-dark.svg") or path.name in GALLERY


def test_the_strip_of_images_is_of_the_example() -> None:
    """Within what a JPEG loses: other versions of the encoder may write other bytes."""
    gallery = script("gallery")
    stored = decode_image(gallery.CAMERA.read_bytes(), 3, "uint8").astype(int)
    drawn = gallery.camera().astype(int)
    assert stored.shape == drawn.shape == (96, 96 * gallery.IMAGES, 3)
    assert np.abs(stored - drawn).mean() < 3


def test_the_gallery_shows_each_tutorial_and_each_script() -> None:
    tutorials = set(script("notebooks").pages())
    assert set(re.findall(r"\[Tutorial\]\((\w+)\.md\)", GALLERY)) == tutorials
    scripts = [path.relative_to(ROOT / "examples").as_posix() for path in (ROOT / "examples").rglob("*.py")]
    assert [name for name in scripts if name not in GALLERY] == []


@pytest.mark.parametrize("picture", re.findall(r"!\[([^\]]*)\]", GALLERY))
def test_a_picture_is_described(picture: str) -> None:
    assert len(picture.split()) >= 5
