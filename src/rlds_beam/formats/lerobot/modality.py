"""`meta/modality.json`, which GR00T reads from LeRobot v2.1 datasets: the parts of each vector.

{"state":      {"arm": {"start": 0, "end": 7}, "gripper": {"start": 7, "end": 8}},
 "action":     {"action": {"start": 0, "end": 7}},
 "video":      {"front": {"original_key": "observation.images.front"}},
 "annotation": {"human.task_description": {"original_key": "task_index"}}}
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.encoding.checked_json import parse_json
from rlds_beam.errors import UsageError
from rlds_beam.formats.lerobot.features import INDEX_FEATURES, FeatureMap, LerobotFeature
from rlds_beam.text import did_you_mean

AUTO = "auto"
_VECTORS = {"state": "observation.state", "action": "action"}
"""The feature of a part, unless `original_key` names another."""
_TASK = "human.task_description"


def modality_text(modality: str, features: FeatureMap, videos: Sequence[LerobotFeature]) -> str:
    """The text of `modality.json`.

    Args:
      modality: `auto`, or the path of a file.
      features: the features of the dataset.
      videos: the features that are videos.

    Raises:
      UsageError: it cannot be derived from the features, or the file does not match them.
    """
    if modality == AUTO:
        return json.dumps(auto_modality(features, videos), indent=4) + "\n"
    try:
        text = storage.read_text(modality)
        content = parse_json(text, modality)
    except (OSError, UsageError) as error:
        raise UsageError(f"--modality={modality}: not valid JSON: {error} ({AUTO} generates one)") from None
    problem = _problem(content, features, videos)
    if problem is not None:
        raise UsageError(f"--modality={modality}: {problem}")
    return text


def auto_modality(features: FeatureMap, videos: Sequence[LerobotFeature]) -> dict[str, Any]:
    """The modalities by field name. The fields of a vector joined by `--map` are its parts."""
    named = {feature.name: feature for feature in features.numbers}
    for part, name in _VECTORS.items():
        if name not in named or len(named[name].shape) > 1:
            raise UsageError(
                f"--modality={AUTO}: GR00T reads its {part} from one vector, {name}, which the dataset lacks: join "
                f"its fields, --map={name}=PATH+PATH"
            )
    pictures = [feature for feature in features.images if feature.is_video and feature not in videos]
    if pictures:
        raise UsageError(
            f"--modality={AUTO}: GR00T reads cameras from videos, but {pictures[0].name} is copied: add "
            f"--images=video, or leave it out (--map={shlex.quote(f'-{pictures[0].path}')})"
        )
    modality: dict[str, Any] = {part: _parts(named[name]) for part, name in _VECTORS.items()}
    cameras = {feature.name.removeprefix("observation.images."): {"original_key": feature.name} for feature in videos}
    modality["video"] = cameras
    if features.task is not None:
        modality["annotation"] = {_TASK: {"original_key": "task_index"}}
    return modality


def _parts(feature: LerobotFeature) -> dict[str, Any]:
    """The range of each field in a vector."""
    leaves = [field.path.rpartition("/")[2] for field in feature.fields]
    names = leaves if len(set(leaves)) == len(leaves) else [field.path.replace("/", ".") for field in feature.fields]
    parts, start = {}, 0
    for name, field in zip(names, feature.fields, strict=True):
        parts[name] = {"start": start, "end": start + field.known_size}
        start += field.known_size
    return parts


def _problem(content: Any, features: FeatureMap, videos: Sequence[LerobotFeature]) -> str | None:
    """How a modality file contradicts the features; None if it does not."""
    sections = (*_VECTORS, "video", "annotation")
    if not isinstance(content, dict) or not all(isinstance(part, dict) for part in content.values()):
        return f"expected an object with {', '.join(sections)}, each an object"
    for name in content:
        if name not in sections:
            hint = did_you_mean(name, sections, otherwise=f"there are {', '.join(sections)}")
            return f"there is no modality {name}{hint}"
    for section in _VECTORS:
        if section not in content:
            return f"it has no {section}"
    for section, entries in content.items():
        for name, entry in entries.items():
            problem = "expected an object" if not isinstance(entry, dict) else None
            problem = problem or _wrong_entry(section, name, entry, features, videos)
            if problem is not None:
                return f"{section}.{name}: {problem}"
    return None


def _wrong_entry(
    section: str, name: str, entry: Mapping[str, Any], features: FeatureMap, videos: Sequence[LerobotFeature]
) -> str | None:
    numbers = {feature.name: feature for feature in features.numbers}
    if section == "video":
        key, known = entry.get("original_key", name), [feature.name for feature in videos]
        hint = did_you_mean(str(key), known, otherwise=f"there are {', '.join(known) or 'none'}")
        return None if key in known else f"there is no video {key}{hint}"
    if section == "annotation":
        key = entry.get("original_key", f"annotation.{name}")
        known = [*INDEX_FEATURES, *(n for n, feature in numbers.items() if "int" in feature.dtype)]
        return None if key in known else f"there is no integer feature {key}; {_TASK} uses task_index"
    key = entry.get("original_key", _VECTORS[section])
    if key not in numbers:
        hint = did_you_mean(str(key), numbers, otherwise=f"there are {', '.join(numbers) or 'none'}")
        return f"there is no feature {key}{hint}"
    size, start, end = numbers[key].size, entry.get("start"), entry.get("end")
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= size:
        return f"start {start} and end {end} are outside {key}, which has {size} numbers"
    return None
