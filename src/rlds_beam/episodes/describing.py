"""Fields as text: trees of their paths, types, and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlds_beam.text import printable


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


def type_text(dtype: str, shape: tuple[int | None, ...]) -> str:
    """A dtype and a shape: `float32 (7,)`, `bool`."""
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
