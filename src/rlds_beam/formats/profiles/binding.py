"""Binds a profile to the arrays of the first episode: each array becomes a field."""

from __future__ import annotations

import dataclasses
import fnmatch
import glob
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.metadata import parsing
from rlds_beam.episodes.representations import DELTA
from rlds_beam.episodes.schema import FLAGS, Field, Schema, by_path, is_name, text_field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import (
    FLAG_FIELDS,
    NO_REWARD,
    as_images,
    field_from_json,
    image_field,
    number_field,
    window_fields,
)
from rlds_beam.formats.profiles.containers import Container, Leaf, matches
from rlds_beam.formats.profiles.model import (
    RECORDED,
    TO_OBSERVATION,
    Fact,
    FieldRule,
    Profile,
    TextRule,
)
from rlds_beam.formats.profiles.zarr_store import OWN
from rlds_beam.reading.meaning import KEY, LastAction, Meaning
from rlds_beam.typing import Array

TEXT = "language_instruction"
_MIN_IMAGE_PIXELS = 8  # pixels of a side
_ROLES = ("reward", "discount", *FLAGS, TEXT)  # fields of one value, which no wildcard gives
_OTHER_TIME = re.compile(  # of an environment that is not gymnasium's, or a step that takes another time than usual
    r'"entry_point":(?! *"(gymnasium\.envs|gymnasium\.wrappers|gymnasium_robotics)\.)|"frame_skip"|"xml_file"'
    r'|"model_path"|MaxAndSkipObservation|AtariPreprocessing'
)


class Bound(NamedTuple):
    """A step field and its array.

    Attributes:
      field: the field.
      name: the array's name, or that of joined arrays (`obs/a+b`).
      rule: the rule of the profile.
      parts: the arrays that are joined; usually one.
      is_pixels: whether rows are frames of pixels.
      final: the arrays whose last rows are the value of the last step; None if there are none.
    """

    field: Field
    name: str
    rule: FieldRule
    parts: tuple[str, ...]
    is_pixels: bool = False
    final: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """A profile bound to the arrays of the first episode.

    Attributes:
      profile: the profile.
      bound: the step fields.
      schema: the schema.
      meaning: see `Source`: what the first episode says, or the profile.
      notes: what a user should know about the conversion.
      dataset: the dataset's name, if the data says it.
    """

    profile: Profile
    bound: tuple[Bound, ...]
    schema: Schema
    meaning: Meaning
    notes: tuple[str, ...] = ()
    dataset: str = ""


def bind_layout(profile: Profile, first: Container, raw_images: str) -> Layout:
    """Binds a profile to an episode.

    Args:
      profile: the profile.
      first: the episode.
      raw_images: how to keep frames of pixels.

    Raises:
      UsageError: a dataset is missing, or its values cannot be a field.
    """
    if first.has(f"/@{OWN}"):
        return _bind_own(profile, first, raw_images)
    notes: list[str] = []
    bound = _bind_fields(profile, first, raw_images, notes)
    steps = _with_defaults(bound, str(first), notes)
    if find_text(profile, first) is not None:
        steps[TEXT] = text_field(TEXT)
    elif profile.text:
        notes.append("the first episode has no text of the task: there are no texts")
    metadata = [text_field(name) for name in (("file", "group") if first.group else ("file",))]
    metadata = [] if profile.episode_ends else metadata
    for name, value in find_metadata(profile, first).items():
        if isinstance(value, bytes) or value.dtype == object:
            metadata.append(text_field(name, () if isinstance(value, bytes) else value.shape))
        else:
            metadata.append(number_field(name, value.dtype.name, value.shape))
    if profile.note:
        notes.append(profile.note.strip())
    fps = _find_fps(profile, first, notes)
    schema = Schema(steps, by_path(metadata, str(first)))
    dataset = _find_fact(profile, first, "name")
    dataset = dataset if isinstance(dataset, str) else ""
    # of D4RL's truncated episodes, the last recorded action leads to no known observation
    is_void = profile.last_step != "kept" or profile.actions == TO_OBSERVATION or any(one.final for one in bound)
    last_action: LastAction = "void" if is_void else "real"
    robots = _find_fact(profile, first, "robot")
    if isinstance(robots, list) and all(isinstance(name, str) for name in robots):
        robots = ", ".join(robots)
    robot = robots if robots and is_name(robots) else profile.robot
    meaning = Meaning(fps, robot, last_action=last_action, assumes_robot=robot == profile.robot)
    return Layout(profile, bound, schema, meaning, tuple(notes), dataset)


def _bind_own(profile: Profile, first: Container, raw_images: str) -> Layout:
    """The fields that `--to=zarr` wrote."""
    where, about = f"{first.path}: {OWN}", first.attribute(f"/@{OWN}")
    bound, metadata, places = [], [], {}
    with parsing(where):
        for info in about["fields"]:
            field, key = field_from_json(info, where), info["key"]
            if info["of_episode"]:
                metadata.append(field)
                places[field.path] = key
                continue
            is_pixels = field.holds_image_files
            if is_pixels:
                field = as_images(dataclasses.replace(field, encoding="bytes", feature="Tensor"), raw_images)
            bound.append(Bound(field, key, FieldRule(key), (key,), is_pixels))
    profile = msgspec.structs.replace(profile, metadata=places, splits="files")
    meaning = Meaning.from_json(about.get(KEY, {}), where)
    notes: list[str] = []
    steps = _with_defaults(bound, where, notes)
    meaning = meaning.of_fields()
    if meaning.last_action != "void":
        meaning = dataclasses.replace(meaning, last_action="real")
    schema = Schema(steps, by_path(metadata, where))
    dataset = about.get("dataset")
    return Layout(profile, tuple(bound), schema, meaning, tuple(notes), dataset if isinstance(dataset, str) else "")


def _with_defaults(bound: Iterable[Bound], where: str, notes: list[str]) -> dict[str, Field]:
    """The fields by path, and those of RLDS that the files lack; adds a note if there is no reward."""
    steps = by_path((field for known in bound for field in window_fields(known.field, known.rule.window)), where)
    if "reward" not in steps:
        notes.append(NO_REWARD)
    defaults = {"reward": Field("reward", "float32"), "discount": Field("discount", "float32"), **FLAG_FIELDS}
    return {**steps, **{path: field for path, field in defaults.items() if path not in steps}}


def _bind_fields(profile: Profile, first: Container, raw_images: str, notes: list[str]) -> tuple[Bound, ...]:
    """The step fields of an episode; adds notes about arrays that are left out."""
    bound: list[Bound] = []
    roles = (*profile.ends, profile.episode_ends, *profile.final.values())
    places = [*roles, profile.terminal, *(rule.dataset for rule in profile.fields.values() if not rule.wild)]
    places += [profile.times, *(rule.times for rule in profile.fields.values())]
    taken = {name for place in places if isinstance(place, str) for name in place.split("|")}
    fitting = _rows_that_fit(profile, first.leaves)
    for pattern, rule in profile.fields.items():
        found = _find_arrays(rule.dataset, first.leaves)
        if not found and not rule.may_lack:
            raise UsageError(f"{first}: there is no {rule.dataset}, which profile {profile.name} reads as {pattern}")
        for name, wildcards, parts, leaf in found:
            if rule.wild and name in taken:
                continue
            taken.add(name)
            path = _fill(pattern, wildcards)
            path = path.replace(profile.strip, "") if profile.strip else path
            why = _unusable(leaf)
            is_free = rule.window or path in _ROLES
            if rule.wild and path in _ROLES:
                why = "has the name of another field"
            elif not (why or is_free) and len(range(leaf.shape[0])[rule.rows]) not in fitting:
                why = f"has {leaf.shape[0]} rows, not {fitting[0]}" if rule.may_lack else ""
            if why and rule.may_lack:
                notes.append(f"{name} {why}: left out")
                continue
            if why:
                raise UsageError(f"{first}: {name} {why}")
            field = _field(path, leaf, rule, first, parts)
            names = _true_names(rule, field, first)
            field = field.with_names(names)
            if names and not field.names:
                notes.append(f"{name} does not have the {len(names)} values that the profile names: not named")
            is_pixels = field.encoding == "bytes" and len(field.shape) == 3
            if rule.window and (is_pixels or field.encoding not in ("none", "bytes")):
                raise UsageError(f"{first}: {name}: window is for numbers, not for images or text")
            group = next((group for group in profile.final if f"{name}/".startswith(f"{group}/")), None)
            final: tuple[str, ...] | None = None
            if group is not None and not rule.window:
                final = tuple(profile.final[group] + part[len(group) :] for part in parts)
                final = final if all(part in first.leaves for part in final) else None
            bound.append(Bound(as_images(field, raw_images), name, rule, parts, is_pixels, final))
    roots = {binding.field.path.split("/")[0] for binding in bound}
    if "observation" not in roots or ("action" not in roots and not profile.episode_ends):
        lacking = "action" if "observation" in roots else "observation"
        raise UsageError(f"{first}: no array becomes {lacking} in profile {profile.name}")
    if "action" not in roots:
        notes.append("no action (see NextStateAsAction)")
    observed = [one for one in bound if one.field.path.startswith("observation") and not one.rule.window]
    has_final = all(one.final for one in observed)
    return tuple(bound if has_final else (one._replace(final=None) for one in bound))


def _fill(pattern: str, wildcards: tuple[str, ...]) -> str:
    """A pattern with what its wildcards stand for."""
    fill = iter(wildcards)
    return re.sub(r"\*\*|\*", lambda _: next(fill), pattern)


def _find_arrays(dataset: str, leaves: Mapping[str, Leaf]) -> list[tuple[str, tuple[str, ...], tuple[str, ...], Leaf]]:
    """The name of each array of a rule, what its wildcards stand for, the arrays that are joined, and their whole."""
    if "+" in dataset:
        group, _, last = dataset.rpartition("/")
        parts = [f"{group}/{part}".lstrip("/") for part in last.split("+")]
        found = tuple(part.rstrip("?") for part in parts if not part.endswith("?") or part.rstrip("?") in leaves)
        own = [leaves[part] for part in found if part in leaves]
        fits = all(not leaf.trouble and len(leaf.shape) in (1, 2) and leaf.dtype.kind in "biuf" for leaf in own)
        if len(own) != len(found) or not fits or len({leaf.shape[0] for leaf in own}) != 1:
            return []
        width = sum(math.prod(leaf.shape[1:]) for leaf in own)
        return [(dataset, (), found, Leaf((own[0].shape[0], width), np.result_type(*(leaf.dtype for leaf in own))))]
    for name in dataset.split("|"):
        if found_names := matches(name, leaves):
            return [(name, wildcards, (name,), leaves[name]) for name, wildcards in found_names]
    return []


def _rows_that_fit(profile: Profile, leaves: Mapping[str, Leaf]) -> range:
    """The numbers of rows that go with those of the action."""
    more = 1 if profile.last_step == RECORDED else 0
    for path, rule in profile.fields.items():
        for _, _, _, leaf in _find_arrays(rule.dataset, leaves) if of_action(path) else ():
            if not _unusable(leaf):
                rows = len(range(leaf.shape[0])[rule.rows])
                return range(rows, rows + more + 1)
    return range(sys.maxsize)


def _true_names(rule: FieldRule, field: Field, container: Container) -> tuple[str, ...]:
    """The names that hold for the data: none, those of values that are not differences, or `robot0_x` for several."""
    names = rule.names
    if rule.names_if and not _holds(rule.names_if, container):
        return ()
    if rule.absolute_if and _holds(rule.absolute_if, container):
        names = tuple(name.removeprefix(DELTA) for name in names)
    if not rule.per_robot:
        return names
    robots, rest = divmod(field.known_size, len(names) or 1)
    if rest or robots < 2:
        return names
    return tuple(f"robot{i}_{name}" for i in range(robots) for name in names)


def of_action(path: str) -> bool:
    """Whether a field is the action, or a part of it."""
    return path.split("/")[0] == "action"


def _unusable(leaf: Leaf) -> str:
    if leaf.trouble:
        return leaf.trouble
    if not leaf.shape:
        return "has no rows"
    if 0 in leaf.shape[1:]:
        return f"has the shape {list(leaf.shape)}"
    return "" if leaf.dtype.kind in "biufOSU" else f"holds {leaf.dtype} values"


def _field(path: str, leaf: Leaf, rule: FieldRule, first: Container, parts: tuple[str, ...]) -> Field:
    shape = leaf.shape[1:]
    if path in FLAGS:
        return FLAG_FIELDS[path]
    if path in _ROLES and math.prod(shape) == 1 and leaf.dtype != object:
        return number_field(path, leaf.dtype.name)
    is_frame = len(shape) == 3 and min(shape[:2]) >= _MIN_IMAGE_PIXELS and shape[2] in (1, 3, 4)  # [H, W, C]
    if leaf.dtype == np.uint8 and is_frame:
        return Field(path, "uint8", shape, "bytes", "Tensor")
    is_bytes = leaf.dtype.kind in "OS" and not shape
    if leaf.shape[0] and (is_bytes or (leaf.dtype == np.uint8 and len(shape) == 1)):
        row = stored_bytes(first.read(parts[0], slice(0, 1))[0])
        image = image_field(path, row.rstrip(b"\0"))
        if image is not None:
            return image
        for raw in rule.raw_shapes:
            if len(row) == math.prod(raw):
                return Field(path, "uint8", raw, "bytes", "Tensor")
    if leaf.dtype.kind in "OSU":
        return text_field(path, shape)
    return number_field(path, leaf.dtype.name, shape)


def stored_bytes(row: Any) -> bytes:
    """A row of an array as bytes."""
    return row.tobytes() if isinstance(row, np.ndarray) else row.encode() if isinstance(row, str) else bytes(row)


def find_text(profile: Profile, container: Container) -> bytes | None:
    """The task's text: that of the first place which has one; None if there is none."""
    for rule in profile.text:
        content = _find_value(rule, container)
        while isinstance(content, list):
            content = content[0] if content else None
        if content and isinstance(content, (str, bytes)):
            return content if isinstance(content, bytes) else content.encode()
    return None


def _find_fact(profile: Profile, container: Container, name: Fact) -> Any:
    """A fact about the dataset that the profile finds in an episode; None if there is none."""
    rule = profile.facts.get(name)
    try:
        return None if rule is None else _find_value(rule, container)
    except (ValueError, RecursionError):  # not JSON
        return None


def _holds(conditions: Mapping[str, str], container: Container) -> bool:
    """Whether each attribute contains its pattern."""
    texts = {place: _find_value(TextRule(place), container) or b"" for place in conditions}
    return all(re.search(pattern.encode(), texts[place]) for place, pattern in conditions.items())


def _find_fps(profile: Profile, first: Container, notes: list[str]) -> float | None:
    """The rate that an episode says, or the profile; adds a note if it is that of an environment."""
    seconds, steps = _find_fact(profile, first, "step_seconds"), _find_fact(profile, first, "decimation")
    if _is_rate(seconds) and _is_rate(steps):
        return round(1 / float(seconds * steps), 6)
    environment = _find_environment(_find_fact(profile, first, "environment"), profile.rates)
    if environment is not None:
        notes.append(f"the rate is that of {environment[0]}")
        return environment[1]
    fps = _find_fact(profile, first, "fps")
    rate: float | None = fps if _is_rate(fps) else profile.fps
    return rate


def _is_rate(number: Any) -> bool:
    return type(number) in (int, float) and 0 < number <= 1_000_000


def _find_environment(env_spec: Any, rates: Mapping[str, float]) -> tuple[str, float] | None:
    """The name and the rate of an environment by its `env_spec` (gymnasium's EnvSpec as JSON); None if unknown.

    A step is the time that is simulated in it, which the environment may be drawn at another rate than (Pendulum,
    AntMaze). No environment is created, and no code that it names is imported.
    """
    text = env_spec if isinstance(env_spec, str) else ""
    name = re.search(r'"id": *"([^"]+)"', text)
    if name is None or _OTHER_TIME.search(text):
        return None
    found = ((name[1], rate) for pattern, rate in rates.items() if fnmatch.fnmatchcase(name[1], f"{pattern}-v*"))
    return next(found, None)


def text_files(profile: Profile, path: str) -> list[str]:
    """The files next to the data that may hold its text, if they exist."""
    found = (_files(rule, path) for rule in profile.text if rule.file)
    return [*dict.fromkeys(file for files in found for file in files)]


def _files(rule: TextRule, path: str) -> list[str]:
    """The file next to the data at `path`, if it exists."""
    directory, name = storage.split(path)
    pattern = rule.file.replace("{name}", glob.escape(name.rpartition(".")[0]))
    while pattern.startswith("../"):
        directory, pattern = storage.split(directory.rstrip("/"))[0], pattern[3:]
    return list(storage.glob(pattern, directory))[:1]


def _find_value(rule: TextRule, container: Container) -> Any:
    """The text of a place, or what it says in JSON; None if there is none. Raises ValueError if it is not JSON."""
    if rule.file:
        files = _files(rule, container.path)
        value: Any = storage.read_small(files[0]) if files else None
    else:
        value = container.find(rule.source)
    value = value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size else value
    if rule.json is None or not isinstance(value, bytes):
        return value if isinstance(value, bytes) else None
    content = json.loads(value)
    for key in filter(None, rule.json.split("/")):
        content = content.get(key) if isinstance(content, dict) else None
    return content


def find_metadata(profile: Profile, container: Container) -> dict[str, Array | bytes]:
    """The episode's own fields that it has."""
    found: dict[str, Array | bytes] = {}
    for name, place in profile.metadata.items():
        arrays = matches(place, container.per_episode) if "*" in place else [(place, ())]
        for array, wildcards in arrays:
            value = container.read(array) if array in container.per_episode else container.find(array)
            if value is not None:
                found[_fill(name, wildcards)] = value if isinstance(value, bytes) else np.asarray(value)
    return found
