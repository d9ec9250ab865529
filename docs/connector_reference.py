"""Writes the page of all connectors, `reference/connectors.md`, from their docstrings and signatures.

    python docs/connector_reference.py

`make docs` runs it, and a test compares the page with what it writes.
"""

import dataclasses
import inspect
import re
from pathlib import Path

from rlds_beam import connectors
from rlds_beam.connectors import CONNECTORS, StepFields
from rlds_beam.connectors.configuration import SECTIONS, names

PAGE = Path(__file__).parent / "reference" / "connectors.md"

MAX_PICTURE_LINES = 3
"""A larger picture is only in the docstring."""

HEAD = """\
# Connectors

A connector is a function over the episodes of a record: it edits them, drops them, or adds columns for a learner.
In Python, `help(rlds_beam.connectors.FrameStacking)` shows the whole docstring of one, with each argument.
[Edit episodes](../how_to/connectors.md) shows how to use them. `docs/connector_reference.py` writes this page from the
docstrings.

T is the number of transitions of an episode with T + 1 steps, B the number of sequences, and N the number of rows.

- **The result is known before the first episode is read**, from a dry run on episodes of zeros. A connector must return
  the same fields, dtypes and shapes for every episode.
- **Nothing is lost.** What was read is written, rejected, or dropped by a named connector. The summary and the report
  count episodes and steps before and after each connector.
- **They are part of the plan.** With another argument or an edited module, the output is a different one.
- **Some need the whole dataset first**, for example to normalize by its mean. The job then reads the dataset once more
  for each, and keeps the result in `fitted.json` of the output.
- **A file of connectors is code.** `module:name` imports that module, and calls only subclasses of connectors and
  functions marked with `rlds_beam.configurable`.
- **Reverb.** `push --columns` sends the columns, one item for each row, in the order in which `tf.nest` flattens a dict
  of them. `--module=NAME` selects one of several modules.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, modules in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [entry(name, getattr(connectors, name)) for name in names(modules)]
    left = set(CONNECTORS.values()) - {module for modules in SECTIONS.values() for module in modules}
    if left:
        raise ValueError(f"no section has the connectors of {', '.join(sorted(left))}")
    parts.append("## Field names\n")
    parts.append("Where connectors find things in the steps: `fields` in a file, or `StepFields` in Python.\n")
    parts.append(f"`{signature(StepFields)}`\n")
    return "\n".join(parts)


def entry(name: str, connector: type) -> str:
    """One connector: its signature, the first two sentences of its docstring, and a small picture."""
    text, _, attributes = (inspect.getdoc(connector) or "").partition("\nAttributes:\n")
    if left := set(inspect.signature(connector).parameters) ^ set(documented(attributes)):
        raise ValueError(f"{name}: only the signature, or only the docstring, has {', '.join(sorted(left))}")
    paragraphs = [paragraph.split("\n") for paragraph in re.split(r"\n\s*\n", text.strip("\n"))]
    words = " ".join(" ".join(map(str.strip, lines)) for lines in paragraphs if not is_picture(lines))
    sentences = re.split(r"(?<=[.)])\s+(?=[A-Z`])", words)[:2]
    pictures = [lines for lines in paragraphs if is_picture(lines) and len(lines) <= MAX_PICTURE_LINES][:1]
    drawn = [
        line
        for lines in pictures
        for line in ("```text", *inspect.cleandoc("\n".join(["", *lines])).split("\n"), "```")
    ]
    called = signature(connector)
    return "\n".join([f"### {name}", *([f"`{called}`"] if called != "()" else []), " ".join(sentences), *drawn, ""])


def is_picture(lines: list[str]) -> bool:
    return all(line.startswith("    ") for line in lines) or any(re.search(r"\S {3,}\S", line) for line in lines)


def documented(attributes: str) -> list[str]:
    """The arguments that a docstring describes; several may share a line."""
    items = [item.strip().partition(": ") for item in re.split(r"\n(?=  \S)", "\n" + attributes)]
    return [name.strip() for given, colon, _ in items if colon for name in given.split(",")]


def signature(connector: type) -> str:
    """The arguments with their defaults: `(transitions, *, fields=None)`."""
    parameters = inspect.signature(connector).parameters.values()
    fields = dataclasses.fields(connector) if dataclasses.is_dataclass(connector) else ()
    made = {field.name: field.default_factory for field in fields}
    parts = []
    for parameter in parameters:
        value = parameter.default
        factory = made.get(parameter.name, dataclasses.MISSING)
        value = factory() if factory is not dataclasses.MISSING else value
        parts.append(parameter.name if value is parameter.empty else f"{parameter.name}={value!r}")
    return f"({', '.join(parts)})"


if __name__ == "__main__":
    PAGE.write_text(page())
