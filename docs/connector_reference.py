"""Writes the page of all connectors, `reference/connectors.md`, from their docstrings and signatures.

    python docs/connector_reference.py

`make docs` runs it, and a test fails where the page is not what it writes.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlds_beam import connectors
from rlds_beam.connectors import CONNECTORS, ColumnConnector, EpisodeConnector, FittedConnector, StepFields
from rlds_beam.connectors.catalog import SECTIONS, names

PAGE = Path(__file__).parent / "reference" / "connectors.md"

HEAD = """\
# Connector reference

Every connector, with its arguments and a picture of its arrays. What connectors are, and how they run:
[Connectors](../how_to/connectors.md). `docs/connector_reference.py` generates this page from the docstrings;
do not edit it.

T is the number of transitions of an episode with T + 1 steps, B the number of sequences, and N the number of rows.
"""

_CELL = str.maketrans({"|": r"\|", "\n": " "})


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, modules in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [entry(name) for name in names(modules)]
    left = set(CONNECTORS.values()) - {module for modules in SECTIONS.values() for module in modules}
    if left:
        raise ValueError(f"no section has the connectors of {', '.join(sorted(left))}")
    parts.append("## Where things are found in the steps\n")
    parts.append("`fields` of a configuration, or `StepFields` in Python.\n")
    parts.append(described(StepFields, head=False))
    return "\n".join(parts)


def entry(name: str) -> str:
    """One connector."""
    made: Any = getattr(connectors, name)
    return f"### {name}\n\n{described(made)}"


def described(made: Any, *, head: bool = True) -> str:
    """The docstring as Markdown, then a table of the arguments."""
    text, _, attributes = inspect.getdoc(made).partition("\nAttributes:\n")
    lines = [*markdown(text), *kind(made)] if head else []
    rows = list(arguments(made, documented(attributes)))
    if rows:
        lines += ["| argument | type | default | |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def markdown(text: str) -> Iterator[str]:
    """The paragraphs of a docstring; what is indented, or set in columns, is a picture."""
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        lines = paragraph.split("\n")
        if is_picture(lines):
            yield "```text"
            yield from inspect.cleandoc("\n" + paragraph).split("\n")
            yield "```"
        else:
            yield from (line.strip() for line in lines)
        yield ""


def is_picture(lines: list[str]) -> bool:
    return all(line.startswith("    ") for line in lines) or any(re.search(r"\S {3,}\S", line) for line in lines)


def kind(made: Any) -> Iterator[str]:
    """What can be said of a connector by its class."""
    if issubclass(made, FittedConnector):
        yield "Needs the whole dataset first, unless `statistics` are given.\n"
    elif issubclass(made, EpisodeConnector):
        yield "Edits episodes, so it comes before the connectors that add columns.\n"
    elif issubclass(made, ColumnConnector):
        yield "Adds columns; those that are there already stay.\n"


def documented(attributes: str) -> dict[str, str]:
    """Argument -> what its docstring says; several may share a line."""
    found = {}
    for item in re.split(r"\n(?=  \S)", "\n" + attributes):
        given, colon, text = item.strip().partition(": ")
        if colon:
            found |= {name.strip(): " ".join(text.split()) for name in given.split(",")}
    return found


def arguments(made: Any, texts: dict[str, str]) -> Iterator[str]:
    """A row for each argument.

    Raises:
      ValueError: the docstring leaves one out, or has one that is not there.
    """
    parameters = dict(inspect.signature(made).parameters)
    if parameters.keys() != texts.keys():
        wrong = ", ".join(sorted(parameters.keys() ^ texts.keys()))
        raise ValueError(f"{made.__name__}: only the signature, or only the docstring, has {wrong}")
    for name, parameter in parameters.items():
        cells = (f"`{name}`", cell(parameter.annotation), default(made, parameter), texts[name].translate(_CELL))
        yield f"| {' | '.join(cells)} |"


def cell(annotation: Any) -> str:
    return f"`{annotation}`".translate(_CELL)


def default(made: Any, parameter: inspect.Parameter) -> str:
    """The value as Python writes it; nothing where there is none."""
    value = parameter.default
    if value is parameter.empty:
        return ""
    for field in dataclasses.fields(made):
        if field.name == parameter.name and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
    return f"`{value!r}`".translate(_CELL)


if __name__ == "__main__":
    PAGE.write_text(page())
