"""Schemas and episodes as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.text import printable


def schema_tree(schema: Schema) -> str:
    """The fields of a dataset as a tree.

    step
    ├── action       float32 (7,)
    ├── observation
    │   ├── image    uint8 (96, 96, 3) jpeg
    │   └── state    float32 (7,)
    └── reward       float32
    episode
    └── episode_id   text
    """
    lines: list[tuple[str, str]] = []
    for name, fields in (("step", schema.steps), ("episode", schema.metadata)):
        if fields:
            lines.append((name, ""))
            lines += _branches({tuple(path.split("/")): field for path, field in sorted(fields.items())}, "")
    width = max((len(name) for name, kind in lines if kind), default=0)
    return "\n".join(f"{name:{width}}  {kind}".rstrip() for name, kind in lines)


def kind_of(field: Field) -> str:
    """The type of a value: `float32 (7,)`, `uint8 (96, 96, 3) jpeg`, `text`."""
    dtype = "text" if field.dtype == "string" else field.dtype
    dims = ", ".join("?" if size is None else str(size) for size in field.shape)
    shape = f" ({dims}{',' if len(field.shape) == 1 else ''})" if field.shape else ""
    encoding = f" {field.encoding}" if field.encoding not in ("none", "text") else ""
    return f"{dtype}{shape}{encoding}"


def _branches(fields: Mapping[tuple[str, ...], Field], indent: str) -> Iterable[tuple[str, str]]:
    """The lines below one node: the text with the name, and the type of a leaf."""
    names = list(dict.fromkeys(path[0] for path in fields))
    for name in names:
        last = name == names[-1]
        leaf = fields.get((name,))
        yield f"{indent}{'└── ' if last else '├── '}{printable(name)}", "" if leaf is None else kind_of(leaf)
        below = {path[1:]: field for path, field in fields.items() if path[0] == name and len(path) > 1}
        if below:
            yield from _branches(below, indent + ("    " if last else "│   "))
