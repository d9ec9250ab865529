"""Gives instructions to episodes that have none, or rewrites them."""

from __future__ import annotations

import copy
import csv
import dataclasses
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.episode_lists import EXPECTED_KEY, check_dataset, parse_keys
from rlds_beam.connectors.cleaning.selection import decode_text, read_values
from rlds_beam.connectors.fields import StepFields, check_choices
from rlds_beam.encoding.metadata import parse_given, parse_json
from rlds_beam.episodes.columns import is_text
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Source
from rlds_beam.text import did_you_mean, printable, shorten
from rlds_beam.user_functions import resolve

Relabel = Callable[[str, Mapping[str, Any]], str]

TASK_FIELDS = (
    "language_instruction",
    "observation/language_instruction",
    "observation/natural_language_instruction",
    "natural_language_instruction",
    "observation/instruction",
    "instruction",
    "episode_metadata/language_instruction",
    "episode_metadata/natural_language_instruction",
    "episode_metadata/instruction",
    "episode_metadata/task",
)
"""Fields that may hold the instruction; the first one present is used."""

_HEADERS = ("key", "episode", "episode_key")
"""The first cell of a table's header."""


@dataclasses.dataclass(frozen=True)
class FillLanguage(EpisodeConnector, reads_images=False, reads_values=False):
    """Gives an instruction to episodes that have none: `--task=TEXT` and `--task_file=FILE`.

        text="fold the towel"

        no text field                         ->   language_instruction     "fold the towel"   "fold the towel"
        language_instruction     ""   ""      ->   language_instruction     "fold the towel"   "fold the towel"

    A table gives each episode its own, by the episode's key. It is a file: CSV or JSON lines of keys and texts, or a
    JSON or YAML mapping of keys to texts.

        toy/1.0.0:train:00000@0,fold the towel
        toy/1.0.0:train:00000@1,open the drawer

    If a file has one episode, its name can be used instead of the key, with as much of its path as tells files apart.

        episode_0.hdf5,fold the towel
        monday/episode_1.hdf5,open the drawer

    The first text field whose name says that it holds the instruction is filled, else `language_instruction` is added.

    Raises:
      UsageError: an episode has another instruction, or has none and neither has the table; or the file is no table.

    Attributes:
      text: the instruction of the episodes that are not in the table.
      table: the path of the table.
    """

    text: str | None = None
    table: str | None = None
    digest: str = dataclasses.field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        if self.text is None and self.table is None:
            raise UsageError("FillLanguage: give a text or a table")
        if self.text is not None and not self.text.strip():
            raise UsageError("--task is empty: give the instruction, for example --task='fold the towel'")
        texts = {} if self.table is None else _read_table(self.table)
        parse_keys((f"--task_file={self.table}", key) for key in texts if _is_key(key))
        object.__setattr__(self, "_texts", texts)
        object.__setattr__(self, "digest", hashlib.sha256(json.dumps(sorted(texts.items())).encode()).hexdigest())

    def for_source(self, source: Source) -> FillLanguage:
        """A copy whose table has the keys of the episodes whose files it names.

        Raises:
          UsageError: the source has no such episode, or several with the same name.
        """
        given: Mapping[str, str] = vars(self)["_texts"]
        texts = {key: text for key, text in given.items() if _is_key(key)}
        check_dataset(texts, source.dataset, f"--task_file={self.table}")
        files: dict[str, list[tuple[str, str]]] = {}  # by name: the paths of files with one episode, and its keys
        for split in source.splits if len(texts) < len(given) else ():
            for shard, low, high in split.taken:
                if (low, high, shard.records) == (0, 1, 1):
                    key = EpisodeKey(source.dataset, split.name, shard.index, 0)
                    files.setdefault(storage.split(shard.path)[1], []).append((shard.path, str(key)))
        for name in given.keys() - texts.keys():
            where, named = f"--task_file={self.table}: {shorten(name, 80)!r}", files.get(storage.split(name)[1], [])
            found = [key for path, key in named if f"/{path}".endswith(f"/{name}")]
            if not found:
                own = f", nor the name of a file with one episode{did_you_mean(name, files)}" if files else ""
                raise UsageError(f"{where} is not the key of an episode{own}; {EXPECTED_KEY}")
            if len(found) > 1:
                raise UsageError(f"{where} is the name of {len(found):,} files: write more of its path")
            if found[0] in texts:
                raise UsageError(f"{where} is listed twice, also as {found[0]}")
            texts[found[0]] = given[name]
        filled = copy.copy(self)
        object.__setattr__(filled, "_texts", texts)
        return filled

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        texts: Mapping[str, str] = vars(self)["_texts"]
        record = str(dataclasses.replace(episode.key, part=0))
        text = texts.get(f"{record}.{episode.key.part}", texts.get(record, self.text))
        path = _task_field(episode)
        values = [b""] if path is None else read_values(episode, path, "FillLanguage").tolist()
        missing = np.array([not decode_text(value).strip() for value in values])
        given = text or ""
        others = {other for other in map(decode_text, values) if other.strip() and other != given}
        if text is None and missing.any() and not episode.key.of_probe:
            raise UsageError(
                f"--task_file: {episode.key} has no task, and {self.table} has no text for it: add its key, or give "
                "--task also"
            )
        if text is not None and others:
            raise UsageError(
                f"--task: {episode.key} has the task {printable(min(others), 80)!r} already, so "
                f"{printable(given, 80)!r} would replace it: give tasks to single episodes with --task_file, or change "
                "texts with RelabelLanguage"
            )
        if not missing.any():
            return episode
        if path in episode.metadata:
            return episode.replace(metadata={**episode.metadata, path: given.encode()})
        filled = np.full(len(episode), given.encode(), object)
        if path is not None:
            filled[~missing] = read_values(episode, path, "FillLanguage")[~missing]
        return episode.with_columns({path or TASK_FIELDS[0]: filled})


def _is_key(text: str) -> bool:
    return text.isprintable() and "@" in text and ":" in text


def _task_field(episode: Episode) -> str | None:
    """The text field that holds the instruction; None if there is none."""
    for path in TASK_FIELDS:
        column = episode.steps.get(path)
        if isinstance(column, np.ndarray) and is_text(column) and column.ndim == 1:
            return path
        if isinstance(episode.metadata.get(path), (bytes, str)):
            return path
    return None


def _read_table(path: str) -> dict[str, str]:
    """The instructions in a file, by key. Raises UsageError if it is no table of texts."""
    where = f"--task_file={path}"
    content = storage.read_text(path)
    entries: list[tuple[str, Any, Any]] = []  # the place, the key, and the text
    if path.endswith((".jsonl", ".ndjson")):
        for number, line in enumerate(content.splitlines(), 1):
            if line.strip():
                entry = parse_json(line, f"{where}, line {number:,}")
                known = entry if isinstance(entry, dict) else {}
                entries.append((f", line {number:,}", known.get("key"), known.get("task")))
    elif path.endswith(".csv"):
        for number, row in enumerate(csv.reader(io.StringIO(content)), 1):
            if row and not (number == 1 and row[0].strip().lower() in _HEADERS):
                entries.append((f", line {number:,}", row[0].strip(), row[1] if len(row) == 2 else None))
    else:
        mapping = parse_given(content, path, where) if path.endswith((".json", ".yaml", ".yml")) else None
        if not isinstance(mapping, dict):
            raise UsageError(f"{where}: expected keys of episodes and texts, in a file .csv, .json, .jsonl, or .yaml")
        entries = [("", key, text) for key, text in mapping.items()]
    texts: dict[str, str] = {}
    for line, key, text in entries:
        if not isinstance(key, str) or not isinstance(text, str) or not text.strip():
            raise UsageError(f"{where}{line}: expected the key of an episode and its text")
        if key in texts:
            raise UsageError(f"{where}{line}: {shorten(key, 80)} is listed twice")
        texts[key] = text
    return texts


@dataclasses.dataclass(frozen=True)
class RelabelLanguage(EpisodeConnector):
    """Rewrites instructions, with a table or with a function.

        table={"pick up cup": "pick up the cup"}

        language_instruction     "pick up cup"   "pick up cup"         ->   "pick up the cup"   "pick up the cup"
        language_instruction     ""              ""                    ->   not in the table: see `missing`

        function=my_project.language:relabel       relabel("pick up cup", {"episode_metadata/task": b"…"}) -> text

    The function is called once per distinct text of an episode.

    Attributes:
      table: a mapping of old text to new text, or the path of a JSON file with one.
      function: a function of the text and the episode's fields that returns the new text, or its `module:function`.
      field: the text field, of the steps or of the episode.
      to: the field to write; by default `field`.
      missing: what to do with a text that is not in the table: `keep` it, `drop` the episode, or `fail`.
    """

    table: str | Mapping[str, str] | None = None
    function: str | Relabel | None = None
    field: str = "language_instruction"
    to: str | None = None
    missing: str = "keep"
    functions: ClassVar = {"function": None}

    def __post_init__(self) -> None:
        if (self.table is None) == (self.function is None):
            raise UsageError("RelabelLanguage: give a table or a function")
        check_choices(self, missing=("keep", "drop", "fail"))
        if isinstance(self.function, str):
            object.__setattr__(self, "function", resolve(self.function, "RelabelLanguage: function"))
        if isinstance(self.table, str):
            where = f"RelabelLanguage: table={self.table}"
            content = parse_json(storage.read_text(self.table), where)
            if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
                raise UsageError(f"{where}: expected a JSON object of text -> text")
            object.__setattr__(self, "table", content)

    def edit(self, episode: Episode, fields: StepFields) -> Episode | list[Episode]:
        values = read_values(episode, self.field, "RelabelLanguage")
        new_texts: dict[Any, bytes] = {}
        for value in dict.fromkeys(values.ravel().tolist()):
            old, new = decode_text(value), None
            if self.function is not None:
                new = self.function(old, episode.metadata)  # type: ignore[operator]
                if not isinstance(new, str):
                    raise UsageError(f"RelabelLanguage: function returned {new!r:.80} for {old!r}, expected a text")
            elif isinstance(self.table, Mapping):
                new = self.table.get(old, None if self.missing == "drop" else old)
                if self.missing == "fail" and old not in self.table and not episode.key.of_probe:
                    raise UsageError(f"RelabelLanguage: {episode.key}: {old!r} is not in the table")
            if new is None:
                return []
            new_texts[value] = new.encode()
        texts = np.fromiter((new_texts[value] for value in values.ravel().tolist()), object, values.size)
        to = self.field if self.to is None else self.to
        if self.field in episode.steps:
            return episode.with_columns({to: texts.reshape(values.shape)})
        return episode.replace(metadata={**episode.metadata, to: texts.reshape(values.shape)[0]})
