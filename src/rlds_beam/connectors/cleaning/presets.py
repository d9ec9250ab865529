"""Known faults of public datasets and how to fix them: `--preset=NAME`.

This file is data. An entry needs a public source for the fault. `inspect` suggests a preset if `dataset_info.json`
has one of the names in `datasets`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean

_MOD = "https://github.com/kpertsch/rlds_dataset_mod/blob/main/prepare_open_x.sh"
_LEROBOT = "https://github.com/huggingface/lerobot/issues/435"
_OPENVLA = "https://github.com/openvla/openvla/blob/main/experiments/robot/libero/regenerate_libero_dataset.py"
_LIBERO = "https://github.com/Lifelong-Robot-Learning/LIBERO/blob/master/scripts/create_dataset.py"
_BUILDER = "https://github.com/moojink/rlds_dataset_builder/blob/main/LIBERO_Spatial/LIBERO_Spatial_dataset_builder.py"
_NO_END = ("missing_is_last",)

Configured = TypeVar("Configured")


@dataclasses.dataclass(frozen=True)
class Preset:
    """A known fault of a dataset, and its fix.

    Attributes:
      fault: the fault, in one sentence.
      source: the URLs that describe it.
      datasets: the names of the affected datasets.
      connectors: the connectors that fix it, as in a connectors file.
      repair: the rules to repair (`--repair`).
    """

    fault: str
    source: tuple[str, ...]
    datasets: tuple[str, ...]
    connectors: tuple[Mapping[str, Mapping[str, Any]], ...] = ()
    repair: tuple[str, ...] = ()


def _bgr(*fields: str) -> tuple[Mapping[str, Mapping[str, Any]], ...]:
    return ({"FlipChannels": {"fields": [f"observation/{field}" for field in fields]}},)


PRESETS = {
    "berkeley_autolab_ur5": Preset(
        "the images of the hand camera are BGR",
        (_MOD, _LEROBOT),
        ("berkeley_autolab_ur5",),
        _bgr("hand_image"),
    ),
    "berkeley_fanuc_manipulation": Preset(
        "the images of both cameras are BGR",
        (_MOD, _LEROBOT),
        ("berkeley_fanuc_manipulation",),
        _bgr("image", "wrist_image"),
    ),
    "stanford_hydra": Preset(
        "the images of both cameras are BGR",
        (_MOD, _LEROBOT),
        ("stanford_hydra_dataset_converted_externally_to_rlds",),
        _bgr("image", "wrist_image"),
    ),
    "utaustin_mutex": Preset(
        "the images of both cameras are BGR",
        (_MOD, _LEROBOT),
        ("utaustin_mutex",),
        _bgr("image", "wrist_image"),
    ),
    "kuka": Preset(
        "most grasps fail; an episode field says which succeeded",
        (_MOD,),
        ("kuka",),
        ({"KeepSuccessful": {"field": "success"}},),
    ),
    "roboturk": Preset(
        "no step is is_last or is_terminal",
        ("https://github.com/google-deepmind/open_x_embodiment/issues/11",),
        ("roboturk",),
        repair=_NO_END,
    ),
    "bridge_dataset": Preset(
        "no step is is_last or is_terminal in the copy that Octo's tests use",
        ("https://github.com/octo-models/octo/tree/main/tests/debug_dataset",),
        ("bridge_dataset",),
        repair=_NO_END,
    ),
    "droid": Preset(
        "it contains failed and unlabeled episodes; openpi and OpenVLA train only on those in …/success/…",
        ("https://github.com/Physical-Intelligence/openpi/blob/main/src/openpi/training/droid_rlds_dataset.py",),
        ("droid",),
        ({"KeepSuccessful": {"field": "episode_metadata/file_path", "pattern": ".*success.*"}},),
    ),
    "libero": Preset(
        "images are upside down, each observation is the one after its action, and many actions do nothing",
        (_LIBERO, _OPENVLA, _BUILDER),
        ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"),
        ({"DropNoOpSteps": {}}, {"ShiftAlignment": {"recorded": "ars"}}, {"RotateImages": {"degrees": 180}}),
    ),
    "libero_no_noops": Preset(
        "the images of OpenVLA's regenerated HDF5 files are upside down",
        (_OPENVLA, _BUILDER),
        (),
        ({"RotateImages": {"degrees": 180}},),
    ),
}
"""Preset name -> preset."""


def find_preset(name: str) -> Preset:
    """The preset with this name; raises UsageError if there is none."""
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS, otherwise=f"there are {', '.join(PRESETS)}")
        raise UsageError(f"--preset={name}: unknown preset{hint}")
    return PRESETS[name]


def with_preset(options: Configured) -> Configured:
    """The options of a job, with its preset's repairs added."""
    name = getattr(options, "preset", None)
    if name is None:
        return options
    given: tuple[str, ...] = cast(Any, options).repair
    repair = (*given, *(rule for rule in find_preset(name).repair if rule not in given))
    return cast(Configured, dataclasses.replace(cast(Any, options), repair=repair))


def suggest_presets(dataset: str, schema: Schema) -> list[str]:
    """The presets for a dataset, `name/version`, that has the fields which they name: its original has others."""
    paths = {*schema.steps, *schema.metadata}
    return [
        name
        for name, preset in PRESETS.items()
        if dataset.split("/")[0] in preset.datasets and paths.issuperset(_fields(preset))
    ]


def _fields(preset: Preset) -> Iterator[str]:
    """The fields that the connectors of a preset name."""
    for connector in preset.connectors:
        for options in connector.values():
            yield from [options["field"]] if "field" in options else options.get("fields", ())
