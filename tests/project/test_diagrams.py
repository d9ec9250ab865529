"""The diagrams are up to date and readable on a phone."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from checkout import ROOT

DOCS = ROOT / "docs"
PHONE = 358
"""Width in pixels of a picture on a phone 390 pixels wide."""


@pytest.fixture(scope="module")
def drawn() -> dict[Path, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        module: Any = importlib.import_module("diagrams")
        for name in ("diagrams", "svg"):
            sys.modules.pop(name, None)
        files: dict[Path, str] = module.drawn()
        return files


def test_each_file_is_what_the_script_draws(drawn: dict[Path, str]) -> None:
    assert [path.name for path, text in drawn.items() if not path.exists() or path.read_text() != text] == [], (
        "run `make docs`, or python docs/diagrams.py"
    )


def test_each_picture_is_well_formed_and_described(drawn: dict[Path, str]) -> None:
    for path, text in drawn.items():
        root = ElementTree.fromstring(text)
        found = {child.tag.rpartition("}")[2]: child.text or "" for child in root}
        assert found["title"] and len(found["desc"]) > 40, path.name
        assert root.findall(".//{*}text"), f"{path.name} has no text"


def test_a_phone_shows_readable_text(drawn: dict[Path, str]) -> None:
    for path, text in drawn.items():
        width = int(ElementTree.fromstring(text).attrib["width"])
        smallest = min(map(float, re.findall(r'font-size="([\d.]+)"', text)))
        shown = smallest * min(1, PHONE / width)
        assert shown >= 9, f"{path.name}: text of {smallest} in a picture {width} wide is {shown:.1f} pixels on a phone"


def test_each_diagram_is_on_a_page(drawn: dict[Path, str]) -> None:
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *DOCS.rglob("*.md")])
    assert [path.name for path in drawn if path.name.endswith("-light.svg") and path.name not in pages] == []


def test_nothing_is_drawn_outside_of_a_picture(drawn: dict[Path, str]) -> None:
    for path, text in drawn.items():
        root = ElementTree.fromstring(text)
        width, height = (float(root.attrib[name]) for name in ("width", "height"))
        for shape in root.iter():
            x, y = (float(shape.get(name, 0)) for name in ("x", "y"))
            wide, high = (float(shape.get(name, 0)) if shape.get("x") else 0 for name in ("width", "height"))
            assert x + wide <= width and y + high <= height, f"{path.name}: {ElementTree.tostring(shape)!r}"
