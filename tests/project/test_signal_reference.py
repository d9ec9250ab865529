"""The page of signals is up to date."""

from __future__ import annotations

import importlib
import sys

from checkout import ROOT

from rlds_beam.checking.signals import SIGNALS


def test_the_page_is_up_to_date_and_has_every_signal():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        script = importlib.import_module("signal_reference")
    finally:
        sys.path.remove(str(ROOT / "docs"))
    page = script.page()
    assert script.PAGE.read_text() == page, "run `make docs`, or python docs/signal_reference.py"
    assert [name for name in SIGNALS if f"### `{name}`\n" not in page] == []
