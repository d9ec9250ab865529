"""Writes src/rlds_beam/keywords.pyi, the types of the jobs' keyword arguments, from the classes of the options.

    python docs/keyword_types.py

Type checkers and editors read it; nothing imports it when a program runs. A test checks that it is current.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds_beam.datasets.opening import LoadOptions
from rlds_beam.formats.options import InputOptions
from rlds_beam.options import Options, sections, type_hints
from rlds_beam.pipelines import functions

STUB = Path(__file__).resolve().parents[1] / "src" / "rlds_beam" / "keywords.pyi"
HEAD = '''\
"""The keyword arguments of the jobs; written by docs/keyword_types.py from the classes of the options."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

Text: TypeAlias = str | os.PathLike[str]
Names: TypeAlias = Text | Sequence[Text]
'''
JOBS = {
    **{
        job.title(): getattr(functions, f"{job.title()}Config")
        for job in (
            "check",
            "compare",
            "convert",
            "example",
            "inspect",
            "push",
            "record",
            "report",
            "stats",
            "upload",
            "validate",
        )
    },
    "Load": LoadOptions,
    "Show": InputOptions,
}
"""Typed dict -> the options of a function: those of a job, of `open_dataset`, and of `show`."""


PARAMETERS = {"Load": ("split",)}
"""Options that the function has as a parameter."""


def type_of(hint: Any, field: dataclasses.Field[Any]) -> str:
    """The type that an argument accepts, as text."""
    if field.metadata.get("mapping"):
        return "Mapping[str, Names] | Names"
    if field.metadata.get("by_value"):
        return "Any"
    if field.metadata.get("code") or field.metadata.get("chooses") not in (None, True):
        return "str | Callable[..., Any]"
    if typing.get_origin(hint) is typing.Literal:
        return f"Literal[{', '.join(map(repr, typing.get_args(hint)))}]"
    if typing.get_origin(hint) is tuple:
        return "Names"
    return {str: "Text", bool: "bool", int: "int"}.get(hint, "float")


def lines_of(options_class: type[Options], fields: Sequence[dataclasses.Field[Any]]) -> dict[str, set[str]]:
    """The types of options, by name."""
    hints, skipped = type_hints(options_class), {*functions._OF_THE_COMMAND, *functions._INTERNAL}
    types: dict[str, set[str]] = {}
    for field in fields:
        if field.name not in skipped and not field.metadata.get("positional"):
            types[field.name] = {type_of(hints[field.name], field)} | ({"None"} if field.default is None else set())
    return types


def stub() -> str:
    """The text of the file."""
    classes: dict[str, dict[str, set[str]]] = {}
    texts: list[str] = []
    for job, config in JOBS.items():
        bases: list[str] = []
        inner: dict[str, set[str]] = {}
        for kind in {group.field: None for group in config.known_groups()}:
            bases.append({"from_options": "FromFormats", "to_options": "ToFormats"}[kind])
            merged = classes.setdefault(bases[-1], {})
            of_kind = (group.options_class for group in config.known_groups() if group.field == kind)
            for options_class in dict.fromkeys(of_kind):
                for option, types in lines_of(options_class, dataclasses.fields(options_class)).items():
                    merged.setdefault(option, set()).update(types)
        of_formats = {option for base in bases for option in classes[base]}
        for _, owner, fields in reversed([*sections(config)]):
            name, own = owner.__name__, lines_of(config, [field for field in fields if field.name not in of_formats])
            if own.keys() & set(PARAMETERS.get(job, ())):
                inner = {option: types for option, types in own.items() if option not in PARAMETERS[job]}
            elif own and classes.setdefault(name, own) != own:
                raise ValueError(f"{name} has other options in {config.__name__}")
            elif own:
                bases.insert(0, name)
        texts.append(typed_dict(job, bases, inner))
    return "\n".join([HEAD, *(typed_dict(name, ["TypedDict"], own) for name, own in classes.items()), *texts])


def typed_dict(name: str, bases: Sequence[str], options: Mapping[str, set[str]]) -> str:
    """A class of options with their types."""
    lines = [f"    {option}: {' | '.join(sorted(types, key=_none_last))}" for option, types in options.items()]
    return "\n".join([f"class {name}({', '.join(bases)}, total=False):", *(lines or ["    pass"]), ""])


def _none_last(kind: str) -> tuple[bool, str]:
    return kind == "None", kind


if __name__ == "__main__":
    STUB.write_text(stub())
