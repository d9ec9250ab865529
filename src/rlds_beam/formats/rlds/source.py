"""RLDS datasets as a source: finds splits and shards, and compares them with the metadata.

Open X-Embodiment datasets state neither their rate nor their robot. The rates and robots here follow the Open
X-Embodiment sheet, as any4lerobot's configs give them, and LIBERO's and TDROID's authors. The names are those of the
layouts that the authors of BridgeData V2 and of OpenVLA's LIBERO data document.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rlds_beam import naming, storage
from rlds_beam.encoding.arrayrecord import ArrayRecordFormat
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.encoding.metadata import parse_json
from rlds_beam.encoding.tfds.dataset_info import (
    DATASET_INFO,
    FEATURES,
    DatasetInfo,
    SplitInfo,
    TfdsMetadata,
    read_dataset_info,
)
from rlds_beam.encoding.tfds.features import parse_features
from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.episodes.representations import DELTA
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError, Violation
from rlds_beam.formats.splits import selected_splits, slice_split
from rlds_beam.output.append import interrupted_plan
from rlds_beam.reading.base import Details, Shard, Source, Split
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.reading.meaning import MEANING, UNKNOWN, Meaning
from rlds_beam.reading.shard_list import ShardList
from rlds_beam.text import count

FORMATS: dict[str, RecordFormat] = {"tfrecord": TFRecordFormat(), "array_record": ArrayRecordFormat()}
"""File formats by their names in dataset_info.json."""

_TEXTS = re.compile(r"[\w.-]+\.labels\.txt|(LICEN[CS]E|COPYING|NOTICE)[\w.-]*|provenance\.json")
"""Files that belong to the data. TFDS writes `*.labels.txt` for a ClassLabel, with a class name per line."""


@dataclasses.dataclass(frozen=True)
class RldsSource(Source):
    """An RLDS dataset in TFDS's layout.

    Attributes:
      unread: the step fields of features.json that are not in the schema because nothing needs them, by path.
      The others: see `Source`.
    """

    dataset: str
    schema: Schema
    files: RecordFormat
    splits: tuple[Split, ...]
    details: Details
    meaning: Meaning = UNKNOWN
    unread: tuple[str, ...] = ()

    @classmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> RldsSource:
        """See `formats.inputs.open_source`."""
        if isinstance(input, str) and storage.isdir(input):
            return _open_directory(_dataset_directory(input), split, features)
        return _open_files(_expand(input), split, features)

    @property
    def features(self) -> str:
        """The text of features.json (for TFDS's decoder, if ours cannot decode a field)."""
        assert self.details.tfds is not None
        return self.details.tfds.features

    @functools.cached_property
    def decoder(self) -> EpisodeDecoder:  # type: ignore[override]
        return EpisodeDecoder(self.schema, self.features, self.unread)

    def without(self, paths: Collection[str], why: str) -> RldsSource:
        unread = [path for path in sorted(paths) if self.schema.steps[path].fast]
        return dataclasses.replace(
            self,
            schema=self.schema.without(unread),
            unread=(*self.unread, *unread),
            details=self.details.without(unread, why),
        )

    def plan(self) -> dict[str, Any]:
        return {"features_sha256": hashlib.sha256(self.features.encode()).hexdigest()}


def _dataset_directory(path: str) -> str:
    """`path` itself, or its only version directory, since TFDS users write `~/data/name`."""
    if storage.exists(storage.join(path, FEATURES)):
        return path
    inner = [d for d in storage.listdir(path) if storage.exists(storage.join(path, d, FEATURES))]
    if len(inner) == 1:
        return storage.join(path, inner[0])
    if inner:
        raise UsageError(f"{path} holds {len(inner)} datasets: choose one of {', '.join(sorted(inner))}")
    if below := list(storage.glob(f"*/*/{FEATURES}", path)):
        raise UsageError(f"{path} is not a dataset, but holds some; did you mean {storage.split(below[0])[0]}?")
    raise UsageError(
        f"{path} has no features.json, so it is not a TFDS dataset. Pass the directory with features.json and "
        "dataset_info.json (…/name/version), the shard files with --features=features.json, or a format with --from"
    )


def _open_directory(directory: str, split: str | None, features: str | None) -> RldsSource:
    info_path = storage.join(directory, DATASET_INFO)
    if not storage.exists(info_path):
        raise UsageError(
            f"{info_path} is missing, so the dataset's shards are unknown. Restore it, or pass the "
            f"shard files: '{storage.join(directory, '*.tfrecord*')}'"
        )
    info_text = storage.read_text(info_path)
    info = read_dataset_info(info_text, info_path)
    # Before the files are listed: for a moment, it takes 100 bytes for each shard.
    facts = {name: value for name, value in parse_json(info_text, info_path).items() if name != "splits"}
    del info_text
    text, schema = _features(features or storage.join(directory, FEATURES))
    there = storage.sizes(directory)
    meaning, notes = Meaning(), tuple[str, ...]()
    if MEANING in there:
        meaning = Meaning.read(directory)
    elif (known := known_meaning(info.name, schema)) is not None:
        meaning, notes = known, (f"the rate and the robot are those known for {info.name}",)
    known_splits, splits, violations = {each.name: each for each in info.splits}, [], []
    for name, start, stop in selected_splits(split, known_splits, info.name):
        shards, wrong = _shards(directory, there, info, known_splits[name])
        splits.append(slice_split(Split(name, shards), start, stop))
        violations += wrong
    texts = [name for name in sorted(there) if _TEXTS.fullmatch(name)]
    copied = (*([] if features else [FEATURES]), DATASET_INFO, *texts)
    tfds = TfdsMetadata(
        text,
        facts,
        {name: storage.read_small(storage.join(directory, name)) for name in texts},
        tuple(name for name in copied if _is_outside(directory, name)),
    )
    return RldsSource(
        "/".join(p for p in (info.name, info.config_name, info.version) if p),
        meaning.name(schema),
        FORMATS[info.file_format],
        tuple(splits),
        Details(tuple(violations), notes, tfds=tfds),
        meaning.of_fields(),
    )


def _features(path: str) -> tuple[str, Schema]:
    if not storage.exists(path):
        raise UsageError(f"--features={path}: no such file")
    text = storage.read_text(path)
    return text, parse_features(text, path)


def _shards(
    directory: str, there: Mapping[str, int], info: DatasetInfo, split: SplitInfo
) -> tuple[ShardList, list[Violation]]:
    """The shards of `split` that exist, and a violation for each missing or unexpected one."""
    violations = []

    def list_existing() -> Iterator[tuple[int, str, int, int | None]]:
        names = split.filenames(info.name, info.file_format)
        for index, (name, records) in enumerate(zip(names, split.shard_lengths, strict=True)):
            if name in there:
                yield index, name, there[name], records
            elif records:
                path = storage.join(directory, name)
                violations.append(
                    Violation("missing_shard", f"{path} is missing; it should have {count(records, 'episode')}")
                )

    shards = ShardList(directory, list_existing())
    prefix = f"{info.name}-{split.name}.{info.file_format}"
    there_too = sum(name.startswith(prefix) and not name.endswith(".spec") for name in there)
    extra = []
    if there_too != sum(shard.path.startswith(storage.join(directory, prefix)) for shard in shards):
        named = {storage.split(shard.path)[1] for shard in shards}
        extra = sorted(n for n in there if n.startswith(prefix) and not n.endswith(".spec") and n not in named)
    if extra and interrupted_plan(directory) is not None:
        extra = []  # they belong to an append that was interrupted while it renamed its files
    for name in extra:
        detail = f"{storage.join(directory, name)} is not a shard listed in dataset_info.json"
        violations.append(Violation("extra_shard", detail))
    return shards, violations


def _expand(input: str | Sequence[str]) -> list[str]:
    patterns = storage.paths_in(input)
    paths: list[str] = []
    for pattern in patterns:
        files = storage.glob(pattern)
        if not files:
            if storage.isdir(pattern):
                raise UsageError(f"{pattern} is a directory: pass one directory, or several files")
            raise UsageError(f"{pattern}: no such file or directory")
        paths += [path for path in files if not path.endswith((".json", ".spec"))]
    return paths


def _open_files(paths: list[str], split: str | None, features: str | None) -> RldsSource:
    """Opens shard files in the given order. Their record counts are unknown."""
    if not paths:
        raise UsageError("no shard files given")
    directory, first = storage.split(paths[0])
    if not features and not storage.exists(storage.join(directory, FEATURES)):
        raise UsageError(
            f"{paths[0]}: there is no features.json next to it, so the fields of its records are unknown. "
            "Pass it with --features=PATH"
        )
    text, schema = _features(features or storage.join(directory, FEATURES))
    if split is not None and not re.fullmatch(r"[\w-]+", split):
        raise UsageError(f"--split={split}: shard files given by name cannot be sliced; pass the dataset's directory")
    sizes = storage.at_once(storage.size, paths, paths[0])
    shards = tuple(Shard(i, path, size, None) for i, (path, size) in enumerate(zip(paths, sizes, strict=True)))
    name = naming.to_name(first.split("-")[0].split(".")[0])
    files = FORMATS["array_record" if ".array_record" in first else "tfrecord"]
    details = Details(tfds=TfdsMetadata(text))
    return RldsSource(name, schema, files, (Split(split or "train", shards),), details)


_ENDING = "_converted_externally_to_rlds"
_TABLE = """
fractal20220817_data 3 Google Robot; kuka 10 Kuka iiwa; bridge_oxe 5 WidowX; bridge_orig 5 WidowX;
bridge_dataset 5 WidowX; taco_play 15 Franka; jaco_play 10 Jaco 2; berkeley_cable_routing 10 Franka;
roboturk 10 Sawyer; nyu_door_opening_surprising_effectiveness 3 Hello Stretch; viola 20 Franka;
berkeley_autolab_ur5 5 UR5; toto 30 Franka; language_table 10 xArm; columbia_cairlab_pusht_real 10 UR5;
stanford_kuka_multimodal_dataset 20 Kuka iiwa; nyu_rot_dataset 3 xArm; stanford_hydra_dataset 10 Franka;
austin_buds_dataset 20 Franka; nyu_franka_play_dataset 3 Franka; maniskill_dataset 20 Franka;
furniture_bench_dataset 10 Franka; cmu_franka_exploration_dataset 10 Franka; ucsd_kitchen_dataset 2 xArm;
ucsd_pick_and_place_dataset 3 xArm; austin_sailor_dataset 20 Franka; austin_sirius_dataset 20 Franka;
bc_z 10 Google Robot; utokyo_pr2_opening_fridge 10 PR2; utokyo_pr2_tabletop_manipulation 10 PR2;
utokyo_xarm_pick_and_place 10 xArm; utokyo_xarm_bimanual 10 xArm Bimanual; robo_net 1 Multi-Robot;
berkeley_mvp 5 xArm; berkeley_rpt 30 Franka; kaist_nonprehensile 10 Franka; tokyo_u_lsmo 10 Cobotta;
dlr_sara_pour 10 DLR SARA; dlr_sara_grid_clamp 10 DLR SARA; dlr_edan_shared_control 5 DLR EDAN;
asu_table_top 12.5 UR5; stanford_robocook 5 Franka; imperialcollege_sawyer_wrist_cam 10 Sawyer;
iamlab_cmu_pickup_insert 20 Franka; uiuc_d3field 1 Kinova Gen3; utaustin_mutex 20 Franka;
berkeley_fanuc_manipulation 10 Fanuc Mate; cmu_playing_with_food 10 Franka; cmu_play_fusion 5 Franka;
cmu_stretch 10 Hello Stretch; berkeley_gnm_recon 3 Jackal; berkeley_gnm_cory_hall 5 RC Car;
berkeley_gnm_sac_son 10 TurtleBot 2; droid 15 Franka; fmb_dataset 10 Franka; dobbe 3.75 Hello Stretch;
roboset 5 Franka; rh20t 10 Flexiv; tdroid_carrot_in_bowl 5 Franka; tdroid_pour_corn_in_pot 5 Franka;
tdroid_flip_pot_upright 5 Franka; tdroid_move_object_onto_plate 5 Franka; tdroid_knock_object_over 5 Franka;
tdroid_cover_object_with_towel 5 Franka; droid_wipe 15 Franka; libero_spatial_no_noops 20 Franka;
libero_object_no_noops 20 Franka; libero_goal_no_noops 20 Franka; libero_10_no_noops 20 Franka
"""
_EULER = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
_AXIS_ANGLE = ("x", "y", "z", "axis_angle1", "axis_angle2", "axis_angle3", "gripper")


def _deltas(names: Sequence[str]) -> tuple[str, ...]:
    """The names of differences of these values; a gripper's action is absolute."""
    return tuple(name if name == "gripper" else f"{DELTA}{name}" for name in names)


_OSC = {"action": _deltas(_AXIS_ANGLE)}  # robosuite's, Deoxys's, and ManiSkill's controllers
_RT_1 = {"action/world_vector": _deltas(_EULER[:3]), "action/rotation_delta": _deltas(_EULER[3:6])}
_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "bridge": {"action": _deltas(_EULER), "observation/state": _EULER},
    "libero": {**_OSC, "observation/state": (*_AXIS_ANGLE, "gripper")},
    "stanford_hydra": {"action": _deltas(_EULER)},
    "nyu_rot": {"action": (*_deltas(_EULER[:3]), *_EULER[3:]), "observation/state": _EULER},
    "taco_play": {"action/rel_actions_world": _deltas(_EULER)},
    **dict.fromkeys(("austin", "utaustin", "maniskill"), _OSC),
}
"""The names of the values of step fields, for datasets whose names begin so: catalogs and papers say them."""


def known_meaning(name: str, schema: Schema) -> Meaning | None:
    """The known facts about a dataset of this name, if any. Names that do not fit the schema are left out."""
    name = name.removesuffix(_ENDING)
    known = next((row.split(" ", 2) for row in _ROWS if row.split(" ", 1)[0] == name), None)
    if known is None:
        return None
    names = _RT_1 | next((own for start, own in _NAMES.items() if name.startswith(start)), {})
    fitting = {path: given for path, given in names.items() if _fits(schema.steps.get(path), given)}
    return Meaning(float(known[1]), known[2], fitting, assumes_robot=True)


_ROWS = [" ".join(row.split()) for row in _TABLE.split(";")]


def _fits(field: Field | None, names: tuple[str, ...]) -> bool:
    return field is not None and field.shape == (len(names),)


def _is_outside(directory: str, name: str) -> bool:
    """Whether a file of a dataset is a link to a file elsewhere.

    In the Hugging Face cache, each file of `snapshots/REVISION` is a link into `blobs` next to `snapshots`; those
    belong to the same dataset.
    """
    if storage.scheme(directory) is not None:
        return False
    root, target = os.path.realpath(directory), os.path.realpath(os.path.join(directory, name))
    cache, of_snapshot, _ = root.rpartition("/snapshots/")
    homes = [root, *([f"{cache}/blobs"] if of_snapshot else [])]
    return not any(os.path.commonpath([home, target]) == home for home in homes)
