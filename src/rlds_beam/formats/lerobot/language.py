"""LeRobot's language columns: rows of annotations (roles, texts, tool calls), kept in episodes as JSON text.

    language_events        a list of rows in each frame: language_events of the steps
    language_persistent    the same list in all frames: episode_metadata/language_persistent

A text is a list of rows: `[{"role": "assistant", "content": "reach", "style": "subtask", "timestamp": 0.0, "camera":
null, "tool_calls": null}]`. Rows of events have no timestamp. See LeRobot's `datasets/language.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np

from rlds_beam.encoding.metadata import convert, parse_json
from rlds_beam.errors import BadEpisode, UsageError, Violation

if TYPE_CHECKING:
    import pyarrow as pa


EVENTS, PERSISTENT = "language_events", "language_persistent"
COLUMNS = (PERSISTENT, EVENTS)
"""Features that LeRobot always reads as language columns."""

EPISODE_PATH = f"episode_metadata/{PERSISTENT}"
"""The episode field of `language_persistent`."""


class _Event(TypedDict):
    role: str
    content: NotRequired[str | None]
    style: NotRequired[str | None]
    camera: NotRequired[str | None]
    tool_calls: NotRequired[list[Any] | None]


class _Persistent(_Event):
    timestamp: float


_ROWS = {EVENTS: list[_Event], PERSISTENT: list[_Persistent]}
_KEYS = {
    EVENTS: ("role", "content", "style", "camera", "tool_calls"),
    PERSISTENT: ("role", "content", "style", "timestamp", "camera", "tool_calls"),
}


def read_texts(name: str, column: pa.Array) -> list[bytes]:
    """The JSON text of each frame of a language column. Raises ValueError if the rows have other fields or types."""
    known: dict[str, bytes] = {}
    texts = []
    for rows in column.to_pylist():
        made = [_row(name, row) for row in rows]
        key = repr(made)
        if key not in known:
            convert(made, _ROWS[name], name)
            known[key] = json.dumps(made, ensure_ascii=False).encode()
        texts.append(known[key])
    return texts


def shared_text(column: pa.Array) -> bytes:
    """The JSON text of `language_persistent`, which all frames of an episode share.

    Raises:
      ValueError: the frames differ, or the rows have other fields or types.
    """
    counts, flat = np.asarray(column.value_lengths()), column.flatten()
    first = flat.slice(0, counts[0])
    same = (counts == counts[0]).all()
    if not same or not all(flat.slice(i * counts[0], counts[0]).equals(first) for i in range(1, len(counts))):
        raise ValueError(
            "its rows differ from frame to frame; LeRobot repeats the same ones in each frame of an episode"
        )
    return read_texts(PERSISTENT, column.slice(0, 1))[0]


def _row(name: str, row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"a row is {type(row).__name__}, not an object")
    unknown = sorted(row.keys() - _KEYS[name])
    if unknown:
        raise ValueError(f"a row has the unknown field {unknown[0]}")
    made = {key: row.get(key) for key in _KEYS[name]}
    if isinstance(made.get("timestamp"), float):
        made["timestamp"] = float(np.float32(made["timestamp"]))  # as LeRobot reads it
    if isinstance(made["tool_calls"], list):
        made["tool_calls"] = [_tool_call(call) for call in made["tool_calls"]]
    return made


def _tool_call(call: Any) -> Any:
    """A tool call, which is stored as JSON text or as a struct."""
    if not isinstance(call, str):
        return call
    try:
        return parse_json(call, "a tool call")
    except UsageError:
        return call


def checked_texts(name: str, texts: Sequence[str], path: str) -> Sequence[str]:
    """The texts of a field, if each is a list of rows. Raises BadEpisode if one is not."""
    for text in dict.fromkeys(texts):
        try:
            _rows(name, text)
        except UsageError as error:
            detail = f"LeRobot's {name} holds rows of annotations as JSON, but {error}"
            raise BadEpisode(Violation("wrong_dtype_or_shape", detail, path)) from None
    return texts


def _rows(name: str, text: str) -> list[dict[str, Any]]:
    """The rows in a text; none in an empty one, which a repair or a connector added."""
    rows: list[dict[str, Any]] = parse_json(text or "[]", name)
    convert(rows, _ROWS[name], name)
    return rows


def rows_array(name: str, texts: Sequence[str]) -> pa.Array:
    """Texts as a language column."""
    import pyarrow as pa

    known = {text: _rows(name, text) for text in dict.fromkeys(texts)}
    for rows in known.values():
        for row in rows:
            if row.get("tool_calls") is not None:
                row["tool_calls"] = [json.dumps(call, ensure_ascii=False) for call in row["tool_calls"]]
    return pa.array([known[text] for text in texts], arrow_type(name))


def arrow_type(name: str) -> pa.DataType:
    """The type of a language column. Tool calls are JSON text, which `datasets` accepts for its type `Json`."""
    import pyarrow as pa

    kinds = dict.fromkeys(_KEYS[name], pa.string())
    kinds |= {"tool_calls": pa.list_(pa.string())} | ({"timestamp": pa.float32()} if name == PERSISTENT else {})
    return pa.list_(pa.struct([pa.field(key, kinds[key], nullable=key != "role") for key in _KEYS[name]]))
