"""Pictures in a terminal."""

from __future__ import annotations

import base64
import re

import imagecodecs
import numpy as np
import pytest

from rlds_beam.viewing.pictures import Images, picture, protocol_for


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm-kitty", "COLORTERM": "truecolor"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app", "COLORTERM": "truecolor"}, "iterm2"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm2"),
        ({"TERM_PROGRAM": "WezTerm"}, "iterm2"),
        ({"TERM": "tmux-256color", "TERM_PROGRAM": "iTerm.app", "COLORTERM": "truecolor"}, "blocks"),
        ({"TERM": "screen", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux"}, None),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "blocks"),
        ({"TERM": "xterm-256color", "COLORTERM": "24bit"}, "blocks"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}, None),
        ({"TERM": "dumb", "COLORTERM": "truecolor"}, None),
        ({"TERM": "xterm-256color"}, None),
        ({}, None),
    ],
)
def test_what_a_terminal_can_show(environment: dict[str, str], expected: str | None) -> None:
    def protocol(images: Images, *, is_terminal: bool = True, encoding: str = "utf-8") -> str | None:
        return protocol_for(environment, is_terminal=is_terminal, encoding=encoding, images=images)

    assert protocol("auto") == expected
    assert protocol("auto", is_terminal=False) is None
    assert protocol("never") is None
    assert protocol("always", is_terminal=False) == (expected or "blocks")
    if expected == "blocks":
        assert protocol("auto", encoding="latin-1") is None


PIXELS = np.random.default_rng(0).integers(0, 255, (40, 120, 3), np.uint8)


def test_kitty() -> None:
    text = picture(PIXELS, "kitty", 100)
    chunks = re.findall(r"\x1b_G(?P<keys>[^;]*);(?P<data>[A-Za-z0-9+/=]*)\x1b\\", text)
    assert text == "".join(f"\x1b_G{keys};{data}\x1b\\" for keys, data in chunks) + "\n"
    assert chunks[0][0] == "a=T,f=100,c=15,m=1" and {keys for keys, _ in chunks[1:-1]} <= {"m=1"}
    assert chunks[-1][0] == "m=0" and all(len(data) <= 4096 for _, data in chunks)
    png = base64.b64decode("".join(data for _, data in chunks))
    np.testing.assert_array_equal(imagecodecs.png_decode(png), PIXELS)


def test_iterm2() -> None:
    found = re.fullmatch(
        r"\x1b\]1337;File=inline=1;width=10;preserveAspectRatio=1:(.*)\x07\n", picture(PIXELS, "iterm2", 10)
    )
    assert found is not None
    np.testing.assert_array_equal(imagecodecs.png_decode(base64.b64decode(found[1])), PIXELS)


def test_half_blocks() -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:2] = [255, 0, 0]
    lines = picture(pixels, "blocks", 80).splitlines()
    assert [line.count("▀") for line in lines] == [6, 6] and all(line.endswith("\x1b[0m") for line in lines)
    assert lines[0].startswith("\x1b[38;2;255;0;0m\x1b[48;2;255;0;0m▀")
    assert lines[1].startswith("\x1b[38;2;0;0;0m\x1b[48;2;0;0;0m▀")
    assert [line.count("▀") for line in picture(PIXELS, "blocks", 30).splitlines()] == [30] * 5


@pytest.mark.parametrize("protocol", ["kitty", "iterm2", "blocks"])
def test_no_picture(protocol: str) -> None:
    assert picture(np.zeros((0, 0, 3), np.uint8), protocol, 80) == ""
