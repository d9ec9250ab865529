"""An object in a notebook: its text, and pictures below it."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Iterable

from rlds_beam.text import printable


@dataclasses.dataclass(frozen=True)
class View:
    """The result of `rlds_beam.show`: a notebook displays the text with pictures, `print` prints the text.

    Attributes:
      text: what `print` shows.
      pictures: the HTML below the text.
    """

    text: str
    pictures: str = ""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<pre style="overflow-x:auto">{html.escape(self.text)}</pre>{self.pictures}'


def strip(label: str, pictures: Iterable[tuple[str, bytes]]) -> str:
    """A row of JPEGs, each with a caption; Jupyter's own `max-width` for images would shrink them to a word."""
    style = "display:inline-block;width:min-content;margin:0 2px 0 0;font-size:11px"
    figures = "".join(
        f'<figure style="{style}"><img alt="" style="display:block;max-width:none" '
        f'src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"/>'
        f"{html.escape(printable(caption, 500))}</figure>"
        for caption, jpeg in pictures
    )
    return f"<div>{html.escape(printable(label, 500))}</div><div>{figures}</div>" if figures else ""
