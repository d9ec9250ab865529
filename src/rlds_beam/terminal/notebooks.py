"""Progress in a notebook: a bar that is drawn again in place."""

from __future__ import annotations

import html
import sys
from typing import Any, TextIO

from rlds_beam.terminal.displays import PlainLines, Status

_TRACK = "display:inline-block;width:16em;height:.6em;border-radius:.3em;background:rgba(128,128,128,.3)"
_COLORS = {"": "", "done": "color:#10b981", "warning": "color:#d97706", "faint": "opacity:.7"}


def in_notebook() -> bool:
    """Whether this process is a kernel that displays HTML: Jupyter, Colab, VS Code; not IPython in a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar with name, percent, and facts; removed at the end."""

    def __init__(self, stream: TextIO):
        self._lines = PlainLines(stream)
        self._handle: Any = None

    def update(self, status: Status) -> None:
        """Draws the bar again."""
        self._draw({"text/html": bar_html(status), "text/plain": status.line()})

    def say(self, text: str) -> None:
        """Prints a line."""
        self._lines.say(text)

    def close(self) -> None:
        """Removes the bar."""
        if self._handle is not None:
            self._draw({"text/html": "", "text/plain": ""})

    def _draw(self, content: dict[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def bar_html(status: Status) -> str:
    """A status as HTML, in the colors of the notebook's theme."""
    facts = ", ".join(f'<span style="{_COLORS[fact.tone]}">{html.escape(fact.text)}</span>' for fact in status.facts)
    bar = ""
    if status.fraction is not None:
        percent = f"{min(max(status.fraction, 0.0), 1.0):.0%}"
        done = f'<span style="display:block;width:{percent};height:100%;border-radius:.3em;background:#3b82f6"></span>'
        bar = f' <span role="progressbar" aria-valuenow="{percent[:-1]}" style="{_TRACK}">{done}</span> {percent}'
    return f"<div><b>{html.escape(status.name)}</b>{bar} {facts}</div>"
