"""Schemas and episodes as text: trees of their fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.episodes.dimensions import shown_dimensions
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.text import count, format_size, printable

if TYPE_CHECKING:
    from rlds_beam.episodes.episode import Column, Episode
    from rlds_beam.episodes.schema import Field, Schema


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
    return tree({"step": fields_text(schema.steps), "episode": fields_text(schema.metadata)})


def fields_text(fields: Mapping[str, Field]) -> dict[str, str]:
    """The type of each field by path."""
    return {path: kind_of(field) for path, field in sorted(fields.items())}


def kind_of(field: Field) -> str:
    """The type of a value: `float32 (2,): x, y`, `uint8 (96, 96, 3) jpeg`, `text`."""
    encoding = f" {field.encoding}" if field.encoding not in ("none", "text") else ""
    return f"{_kind('text' if field.dtype == 'string' else field.dtype, field.shape)}{encoding}{_names(field.names)}"


def _names(names: Sequence[str]) -> str:
    """The names of a vector's values, as many as views show."""
    shown = [printable(name, 40) for name in names[: shown_dimensions(len(names))]]
    more = [f"... {len(names) - len(shown)} more"] if len(names) > len(shown) else []
    return f": {', '.join(shown + more)}" if names else ""


def episode_tree(episode: Episode) -> str:
    """An episode's key, and the types of its columns as a tree."""
    steps = {path: kind_of_column(column) for path, column in sorted(episode.steps.items())}
    metadata = {path: kind_of_value(value) for path, value in sorted(episode.metadata.items())}
    faults = [f"fault: {printable(fault)}" for fault in episode.faults]
    title = f"Episode {episode.key}: {count(len(episode), 'step')}"
    return "\n".join(line for line in [title, *faults, tree({"step": steps, "episode": metadata})] if line)


def kind_of_column(column: Column) -> str:
    """The type of a column's values: `float32 (7,)`, `uint8 (96, 96, 3) jpeg, 1.2 MB`, `text`."""
    if isinstance(column, EncodedImages):
        size = format_size(sum(len(image) for image in column))
        return f"{_kind(column.dtype, column.shape)} {column.encoding}, {size}"
    if column.dtype.kind in "OSU":
        return "arrays of several shapes" if any(isinstance(value, np.ndarray) for value in column) else "text"
    return _kind(column.dtype.name, column.shape[1:])


def kind_of_value(value: Any, most: int = 60) -> str:
    """A value of the episode in up to `most` characters, or its type if it is an image or a large array."""
    if isinstance(value, (bytes, str)):
        is_text = isinstance(value, str) or not value.startswith((b"\xff\xd8\xff", b"\x89PNG"))
        return printable(value, most) if is_text else f"image, {format_size(len(value))}"
    array = np.asarray(value)
    return printable(value, most) if array.size <= 8 else _kind(array.dtype.name, array.shape)


def tree(groups: Mapping[str, Mapping[str, str]]) -> str:
    """Trees of paths, each with a text: one tree for each group that has any."""
    lines: list[tuple[str, str]] = []
    for name, texts in groups.items():
        if texts:
            lines.append((name, ""))
            lines += _branches({tuple(path.split("/")): text for path, text in texts.items()}, "")
    width = max((len(name) for name, text in lines if text), default=0)
    return "\n".join(f"{name:{width}}  {text}".rstrip() for name, text in lines)


def shape_text(shape: tuple[int | None, ...]) -> str:
    """A shape as numpy writes it, with unknown sizes as question marks: `(7,)`, `(?, 3)`, `()`."""
    dims = ", ".join("?" if size is None else str(size) for size in shape)
    return f"({dims}{',' if len(shape) == 1 else ''})"


def _kind(dtype: str, shape: tuple[int | None, ...]) -> str:
    return f"{dtype} {shape_text(shape)}" if shape else dtype


def _branches(texts: Mapping[tuple[str, ...], str], indent: str) -> Iterable[tuple[str, str]]:
    """The lines below a node: each with the name, and the text of a leaf."""
    names = list(dict.fromkeys(path[0] for path in texts))
    for name in names:
        last = name == names[-1]
        yield f"{indent}{'└── ' if last else '├── '}{printable(name)}", texts.get((name,), "")
        below = {path[1:]: text for path, text in texts.items() if path[0] == name and len(path) > 1}
        if below:
            yield from _branches(below, indent + ("    " if last else "│   "))
