"""Writes the page of all connectors, `reference/connectors.md`, from their docstrings and signatures.

    python docs/connector_reference.py

`make docs` runs it, and a test compares the page with what it writes.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlds_beam import connectors
from rlds_beam.connectors import CONNECTORS, ColumnConnector, EpisodeConnector, FittedConnector, StepFields
from rlds_beam.connectors.catalog import SECTIONS, names, summary

PAGE = Path(__file__).parent / "reference" / "connectors.md"

HEAD = """\
# Connectors

A connector is a function over the episodes of a record: it edits them, drops them, or adds columns for a learner.
This page has every connector with its arguments and a picture of its arrays;
`help(rlds_beam.connectors.FrameStacking)` and `rlds-beam help connectors` show them in the terminal. To use them, see
[Edit episodes](../how_to/connectors.md). `docs/connector_reference.py` writes this page from the docstrings; do not
edit it.

T is the number of transitions of an episode with T + 1 steps, B the number of sequences, and N the number of rows.

## How connectors run

`--connectors="MinimumLength(10),FlipChannels"` lists them in the order in which they run; arguments are literals. A
file does the same, and can name your own connectors:

```yaml
fields: {obs: observation/state}     # if the data does not use RLDS's names
connectors:
  - MinimumLength: {transitions: 10}
  - my_project.pieces:ClipReward: {limit: 1.0}
```

- **Commands.** `--connectors` runs them between the check and the output. `inspect` runs them on a sample,
  `validate` on every episode without writing, and `stats` computes the statistics of the result.
- **Order.** Connectors that edit episodes come before those that add columns.
- **The result is known before the first episode is read.** A dry run on episodes of zeros finds it. A connector must
  return the same fields, dtypes and shapes for every episode.
- **Nothing is lost.** What was read is written, rejected, or dropped by a named connector. The summary and the report
  count episodes and steps before and after each connector.
- **They are part of the plan.** With another argument or an edited module, the output is a different one.
- **Some need the whole dataset first**, for example to normalize by its mean. The job then reads the dataset once
  more for each, and keeps the result in `fitted.json` of the output.
- **A file is code.** `module:name` imports that module. Only subclasses of connectors and functions marked with
  `rlds_beam.configurable` are called. Use files of people you trust.
- **Reverb.** `push --columns` sends the columns, one item for each row, in the order in which `tf.nest` flattens a
  dict of them. `--module=NAME` selects one of several modules.

## All connectors
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, modules in SECTIONS.items():
        parts += [f"**{title}**\n", *(f"- [`{name}`](#{name.lower()}): {summary(name)}" for name in names(modules)), ""]
    for title, modules in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [entry(name) for name in names(modules)]
    left = set(CONNECTORS.values()) - {module for modules in SECTIONS.values() for module in modules}
    if left:
        raise ValueError(f"no section has the connectors of {', '.join(sorted(left))}")
    parts.append("## Field names\n")
    parts.append("Where connectors find things in the steps: `fields` in a file, or `StepFields` in Python.\n")
    parts.append(described(StepFields, head=False))
    return "\n".join(parts)


def entry(name: str) -> str:
    """One connector."""
    made: Any = getattr(connectors, name)
    return f"### {name}\n\n{described(made)}"


def described(made: Any, *, head: bool = True) -> str:
    """The docstring as Markdown, then a list of the arguments."""
    text, _, attributes = inspect.getdoc(made).partition("\nAttributes:\n")
    lines = [*markdown(text), *kind(made)] if head else []
    rows = list(arguments(made, documented(attributes)))
    if rows:
        lines += ["Arguments:\n", *rows, ""]
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
    """A sentence about the kind of a connector, from its base class."""
    if issubclass(made, FittedConnector):
        yield "Needs the whole dataset first, unless `statistics` are given.\n"
    elif issubclass(made, EpisodeConnector):
        yield "Edits episodes: it comes before the connectors that add columns.\n"
    elif issubclass(made, ColumnConnector):
        yield "Adds columns, and keeps existing ones.\n"


def documented(attributes: str) -> dict[str, str]:
    """Argument -> what its docstring says; several may share a line."""
    found = {}
    for item in re.split(r"\n(?=  \S)", "\n" + attributes):
        given, colon, text = item.strip().partition(": ")
        if colon:
            found |= {name.strip(): " ".join(text.split()) for name in given.split(",")}
    return found


def arguments(made: Any, texts: dict[str, str]) -> Iterator[str]:
    """An item of a list for each argument.

    Raises:
      ValueError: the docstring leaves one out, or has one that is not there.
    """
    parameters = dict(inspect.signature(made).parameters)
    if parameters.keys() != texts.keys():
        wrong = ", ".join(sorted(parameters.keys() ^ texts.keys()))
        raise ValueError(f"{made.__name__}: only the signature, or only the docstring, has {wrong}")
    for name, parameter in parameters.items():
        text = texts[name].rstrip(".")
        yield f"- `{name}` (`{parameter.annotation}`{default(made, parameter)}): {text[:1].lower()}{text[1:]}."


def default(made: Any, parameter: inspect.Parameter) -> str:
    """The default value as Python writes it; empty if the argument is required."""
    value = parameter.default
    if value is parameter.empty:
        return ", required"
    for field in dataclasses.fields(made):
        if field.name == parameter.name and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
    return f" = `{value!r}`"


if __name__ == "__main__":
    PAGE.write_text(page())
