"""Opens datasets for random access: episodes in any format, or the output of `convert`; and mixes their batches."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack, get_args

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.datasets.base import Rows
from rlds_beam.datasets.batch_plan import EpisodeRows, ExampleRows, find_stacks, plan_batches
from rlds_beam.datasets.batches import Batches, BatchOptions
from rlds_beam.datasets.dataset import Dataset, Images
from rlds_beam.datasets.index_builder import Recipe, open_index
from rlds_beam.datasets.record_files import ParquetRowReader, RecordFile, RecordFiles
from rlds_beam.datasets.steps import IndexedEpisodes, IndexedSteps, edited_images
from rlds_beam.encoding.arrayrecord import ArrayRecordFormat
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.encoding.example.rows import row_field
from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.columns.row_files import ColumnsManifest
from rlds_beam.formats.inputs import open_input, prepare_input
from rlds_beam.formats.merged.source import MergeMapping
from rlds_beam.formats.options import InputOptions
from rlds_beam.formats.recognition import as_input
from rlds_beam.formats.registry import COLUMNS, TRAJECTORIES
from rlds_beam.formats.trajectories.output import read_fields, read_kept_fields
from rlds_beam.images.codecs import Jpeg
from rlds_beam.output.commits import load_manifest, read_manifest
from rlds_beam.output.directory import holding, is_output
from rlds_beam.output.files import MANIFEST
from rlds_beam.reading.base import Source
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.reading.meaning import KEY, Meaning
from rlds_beam.text import count, did_you_mean, shorten

Unit = Literal["episodes", "steps"]


@dataclasses.dataclass(frozen=True)
class LoadOptions(ConnectorOptions, CheckOptions, InputOptions):
    """What to read, which rules to check, and which connectors to run, as in `convert`."""


_OF_INPUT = {"from_", "features"}
"""Options that neither check nor change episodes."""


def open_dataset(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    split: str | None = None,
    module: str | None = None,
    *,
    unit: Unit | None = None,
    images: Images = "pixels",
    jpeg: Jpeg = "fast",
    **options: Any,
) -> Dataset:
    """Opens a dataset for random access; needs neither TensorFlow nor torch.

        dataset = open_dataset("columns")
        dataset[7]["obs"]

        steps = open_dataset("data/toy/1.0.0", unit="steps", connectors=[Normalize(["action"])])
        for batch in steps.batches(32, shuffle=True, history=2, chunk=16):
            ...

    With `unit="steps"` or options, and for all formats but RLDS, each episode is read and checked once (the rules of
    `check`) to build an index of the numbers and of the places of the images. It is kept in `~/.cache/rlds-beam`, or
    where the environment variable `RLDS_BEAM_CACHE` says. Episodes that break a rule are left out, with a warning.

    Args:
      path: the output of `rlds-beam convert`, or a dataset in any format that it reads; of several, all as one.
      split: `train`, `train+test`; for episodes also a slice, `train[:10%]`. None selects all splits.
      module: the module, if the columns have several.
      unit: the unit of a row of a dataset of episodes: an episode (the default), whose steps are columns
        `steps/...` [T, ...], or one step.
      images: `pixels`, or `encoded` for the stored JPEG or PNG `bytes`.
      jpeg: the pixels of JPEGs: `fast` gives those of TensorFlow and TFDS, `accurate` those of Pillow, OpenCV, and
        LeRobotDataset. They differ by up to 12 of 255.
      options: the options of `convert` for the input, the rules, and the connectors: `from_="hdf5"`,
        `connectors=[Normalize(["action"])]`, `accept="duplicate_episode"`, `preset="bridge"`, `exclude="flagged.json"`.

    Raises:
      UsageError: the dataset, split, module, or option does not exist; the dataset is not finished; or a file has
        changed.
      MissingExtraError: ArrayRecord files need the extra `arrayrecord`.
    """
    where = as_input(path)
    for name, value, known in (
        ("unit", unit, (None, "episodes", "steps")),
        ("images", images, ("pixels", "encoded")),
        ("jpeg", jpeg, get_args(Jpeg)),
    ):
        if value not in known:
            names = [fact for fact in known if fact is not None]
            raise UsageError(f"{name}={value}: expected {' or '.join(names)}{did_you_mean(str(value), names)}")
    if not is_output(where) and module is None and _is_module(where):
        where, module = storage.split(where.rstrip("/"))
    held = holding(where) if is_output(where) else None
    if held is not None and held.to in (TRAJECTORIES, COLUMNS):
        for name in [*(["unit"] if unit else []), *options]:
            raise UsageError(f"{name} is for datasets of episodes; the rows of {where}, which is converted, are items")
        rows, named, fps = _open_converted(where, split, module)
        return Dataset(rows, named, images, jpeg, fps)
    if module is not None:
        raise UsageError(f"module={module} is for the output of `rlds-beam convert --to=columns`, not for {where}")
    given = LoadOptions.create(where, split=split, **options)
    source = open_input(given)
    of_records = source.has_files and isinstance(source.decoder, EpisodeDecoder)  # found without an index
    if unit != "steps" and of_records and not options.keys() - _OF_INPUT:
        return Dataset(_episode_rows(source), where, images, jpeg, source.fps)
    rows, fps = _index(source, given, unit)
    return Dataset(rows, where, images, jpeg, fps)


def _is_module(path: str) -> bool:
    """Whether a directory holds one module of a columns output."""
    directory, name = storage.split(path.rstrip("/"))
    try:
        manifest = load_manifest(directory) if directory and is_output(directory) else None
    except RldsBeamError:  # there is nothing above a repository on the Hub
        return False
    return manifest is not None and name in manifest.get("modules", ())


def _open_converted(path: str, split: str | None, module: str | None) -> tuple[Rows, str, float | None]:
    """The rows of an output of items, its name, and its steps per second."""
    manifest = read_manifest(path)
    meaning = Meaning.from_json(manifest.get(KEY, {}), storage.join(path, MANIFEST))
    if "modules" not in manifest:
        if module is not None:
            raise UsageError(f"module={module}: {path} has no columns; it was converted with another --to")
        stored = (*map(meaning.name_field, read_fields(manifest, path)), *read_kept_fields(manifest, path))
        files = _files(path, manifest["shards"], split)
        return ExampleRows(RecordFiles(files, TFRecordFormat()), stored, find_stacks(stored)), path, meaning.fps
    columns = ColumnsManifest.from_manifest(manifest, path)
    chosen = columns.choose(module, path)
    fields = columns.modules[chosen]
    own = [shard for shard in manifest["shards"] if shard["file"].startswith(f"{chosen}/")]
    files = _files(path, own, split)
    name = storage.join(path, chosen)
    if columns.format == "parquet":
        return ParquetRowReader(files, fields), name, meaning.fps
    kinds: dict[str, RecordFormat] = {"tfrecord": TFRecordFormat(), "array_record": ArrayRecordFormat()}
    return ExampleRows(RecordFiles(files, kinds[columns.format]), tuple(map(row_field, fields))), name, meaning.fps


def _files(path: str, shards: Sequence[Mapping[str, Any]], split: str | None) -> tuple[RecordFile, ...]:
    """The files with rows of some splits, after checking their sizes against the manifest."""
    splits = sorted({shard["split"] for shard in shards})
    wanted = splits if split is None else split.split("+")
    for name in wanted:
        if name not in splits:
            slices = "; rows are sliced when they are read: dataset[:100]" if "[" in name else ""
            raise UsageError(f"{path} has no split {name}; it has {', '.join(splits) or 'none'}{slices}")
    own = [shard for name in wanted for shard in shards if shard["split"] == name and shard["records"]]
    for shard in own:
        file, again = storage.join(path, shard["file"]), "fetch it again, or convert the dataset again"
        if not storage.exists(file):
            raise UsageError(f"{file} is missing, but the manifest names it: {again}")
        if storage.size(file) != shard["bytes"]:
            raise UsageError(f"{file} has {storage.size(file)} bytes, but {shard['bytes']} were written: {again}")
    return tuple((storage.join(path, shard["file"]), shard["records"]) for shard in own)


def _episode_rows(source: Source) -> EpisodeRows:
    """The episodes, read from their records."""
    first, count = 0, None
    for split in source.splits:
        if split.sliced:
            if len(source.splits) > 1:
                raise UsageError("open slices of several splits one by one")
            first, count = split.start, None if split.stop is None else split.stop - split.start
    files = [(shard.path, shard.records) for split in source.splits for shard in split.shards]
    return EpisodeRows(RecordFiles(files, source.files), source.schema, source.decoder, first, count)


def make_recipe(source: Source, options: Any) -> Recipe:
    """The recipe of a dataset's index.

    Args:
      source: the dataset.
      options: the options of the input, the rules, and the connectors, as in `LoadOptions`.

    Raises:
      UsageError: a connector cannot be used.
    """
    opened = prepare_input(options, source)
    recipe = Recipe(source, CheckOptions.from_options(opened.check), opened.connecting)
    recipe.connecting.refuse_columns("convert --to=columns, and open its output")
    if recipe.connecting.splits:
        raise UsageError(
            "connectors that assign splits are for `rlds-beam convert --to=rlds`: open a split of its output"
        )
    return recipe


def _index(source: Source, options: LoadOptions, unit: Unit | None) -> tuple[Rows, float | None]:
    """The steps or episodes of an indexed dataset, and its steps per second."""
    recipe = make_recipe(source, options)
    index = open_index(recipe)
    if left_out := index.rejected:
        rules = ", ".join(f"{rule} ({number:,})" for rule, number in left_out.items())
        warnings.warn(
            f"{source.dataset}: {count(sum(left_out.values()), 'episode')} left out, which break rules: {rules}. "
            "`rlds-beam check` lists them",
            stacklevel=3,
        )
    for note in index.content["notes"]:
        warnings.warn(f"{source.dataset}: {note}", stacklevel=3)
    steps = IndexedSteps(index, edited_images(recipe, index))
    fps = recipe.connecting.source_after(source).fps
    if unit == "steps":
        return steps, fps
    return IndexedEpisodes(steps), fps


def mix_batches(
    datasets: Mapping[Dataset, float] | Sequence[tuple[Dataset, float]] | str,
    batch_size: int,
    **options: Unpack[BatchOptions],
) -> Batches:
    """Batches of a weighted mixture of datasets, without an end: each row is from a dataset chosen at random by weight.

        bridge, droid = (open_dataset(path, unit="steps") for path in ("bridge", "droid"))
        for batch in mix_batches([(bridge, 0.7), (droid, 0.3)], 32, chunk=16, image_size=224):
            ...

    A file of `--merge_fields` names the datasets, their connectors, and their weights: `mix_batches("it.yaml", 32)`.

    Each dataset is shuffled on its own, in another order each time it is read. The options are those of
    `BatchOptions`. All datasets must have the columns, with the same dtypes and shapes; None for those that all
    have. Datasets whose rates are known and differ are mixed with a warning if there are windows.

    Raises:
      UsageError: the datasets do not fit together, or a weight is not above 0; otherwise as `Dataset.batches`.
    """
    if isinstance(datasets, str):
        pairs = _open_all(datasets)
    else:
        pairs = list(datasets.items()) if isinstance(datasets, Mapping) else list(datasets)
    if not pairs:
        raise UsageError("mix_batches needs at least one dataset")
    for dataset, weight in pairs:
        if not (isinstance(weight, (int, float)) and 0 < weight < float("inf")):
            raise UsageError(f"the weight of {dataset.name} is {weight!r}: expected a number above 0")
    if options.get("history") or options.get("chunk"):
        _warn_of_rates([dataset for dataset, _ in pairs])
    if options.get("epochs") is not None:
        raise UsageError(f"epochs={options['epochs']}: a mixture has no end, so leave epochs out")
    options = {"shuffle": True, **options, "epochs": None}
    weights = tuple(float(weight) for _, weight in pairs)
    return plan_batches([dataset for dataset, _ in pairs], weights, batch_size, **options)


def _warn_of_rates(datasets: Sequence[Dataset]) -> None:
    """Warns if windows of as many steps last longer in some datasets than in others."""
    rates = {dataset.fps: f"{dataset.fps:g} in {dataset.name}" for dataset in datasets if dataset.fps is not None}
    if len(rates) > 1:
        said = (
            f"steps per second differ ({shorten(', '.join(rates.values()))}), so windows of as many steps last longer "
            "in some datasets: connectors=[Resample(fps=...)] of open_dataset makes them equal"
        )
        warnings.warn(said, stacklevel=3)


def _open_all(file: str) -> list[tuple[Dataset, float]]:
    """The steps of the datasets of a file of `--merge_fields`, after their connectors, and their weights."""
    pairs = []
    for i, entry in enumerate(MergeMapping.load(file).inputs):
        if entry.input is None:
            raise UsageError(f"--merge_fields={file}: inputs[{i}] has no input, the path of its dataset")
        given: dict[str, Any] = {"from_": entry.from_, "split": entry.split, **entry.options}
        given |= {"connectors": entry.connectors} if entry.connectors != Configuration() else {}
        given = {name: value for name, value in given.items() if value is not None}
        pairs.append((open_dataset(entry.input, unit="steps", **given), float(entry.weight)))
    return pairs
