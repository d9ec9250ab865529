"""Opening a dataset with the source that `--from` names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rlds_beam import naming, storage
from rlds_beam.encoding.tfds.features import DTYPES, ENCODINGS
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.options import InputOptions
from rlds_beam.formats.own_sources import checked_source
from rlds_beam.formats.registry import RLDS, SOURCES, source_class
from rlds_beam.options import Options
from rlds_beam.output.directory import holding
from rlds_beam.reading.base import Source
from rlds_beam.text import shortened
from rlds_beam.user_functions import raised

_ENCODINGS = (*ENCODINGS, "text", "png", "jpeg")


def open_source(
    input: str | Sequence[str],
    split: str | None = None,
    features: str | None = None,
    from_: str = RLDS,
    options: Options | None = None,
) -> Source:
    """Finds what there is to read under `input`; reads metadata only, never a record.

    Args:
      input: a TFDS directory (`…/name/version`), a directory of EnvLogger's TFDS backend, or shard
        files: a list of paths, or one text of comma-separated paths and globs.
      split: TFDS's notation, `train`, `train[:10%]`, `train[5:20]`, `train+test`; slices count
        episodes, and one that is empty or out of range is refused. None and `all` take every split there is.
      features: path of a features.json. Needed for shard files, whose own directory is looked at
        otherwise.
      from_: the dataset's format: a name from `registry.SOURCES`, or the `module:Class` of a `reading.base.Source`.
      options: the options of that source (its defaults, if None).

    Raises:
      UsageError: there is nothing at the path, the metadata is unreadable or unsafe, or the split is unknown.
    """
    kind = source_class(from_)
    own = {} if kind.options_class is Options else {"options": options or kind.options_class()}
    with _naming(input, from_):
        source = kind.open(input, split=split, features=features, **own)
    if from_ not in SOURCES:
        source = checked_source(source, from_)
    _check_fields(source.schema, f"--from={from_}: {named(input)}")
    source.schema.check_size(named(input))
    source.schema.check_flags(named(input))
    for name in str(source.dataset).split("/"):
        naming.check_name(name, f"--from={from_}: {input}: the name of the dataset ({source.dataset})")
    for one in source.splits:
        naming.check_name(one.name, f"--from={from_}: {input}: a split")
    return source


def _check_fields(schema: Schema, where: str) -> None:
    """Raises UsageError for a field whose dtype, shape or encoding is not one that fields have."""
    for field in (*schema.steps.values(), *schema.metadata.values()):
        if field.dtype not in DTYPES or field.encoding not in _ENCODINGS:
            raise UsageError(
                f"{where}: {field.path} has the dtype {field.dtype!r} and the encoding {field.encoding!r}; dtypes are "
                f"{', '.join(sorted(DTYPES))}, encodings {', '.join(_ENCODINGS)}"
            )
        if not all(size is None or (isinstance(size, int) and size >= 0) for size in field.shape):
            raise UsageError(f"{where}: {field.path} has the shape {field.shape!r}, expected sizes (None: unknown)")


@contextlib.contextmanager
def _naming(input: str | Sequence[str], from_: str) -> Iterator[None]:
    """Around the opening of a dataset: whatever its metadata make a library raise is a UsageError that names it."""
    try:
        yield
    except UsageError as error:
        if (written := written_by_convert(input, from_)) is not None:
            raise UsageError(written) from error
        raise
    except RldsBeamError:
        raise
    except Exception as error:
        if from_ not in SOURCES:
            raise UsageError(f"--from={from_}: its open {raised(error)}, given {named(input)}") from error
        remote = storage.scheme(named(input)) is not None
        if remote and not isinstance(error, (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)):
            raise  # the bucket cannot be reached, or is not there
        detail = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        where = getattr(error, "filename", None) or named(input)
        raise UsageError(f"{where} cannot be read with --from={from_}: {shortened(detail or error)}") from error


def written_by_convert(input: str | Sequence[str], from_: str) -> str | None:
    """What a directory holds that a command of ours wrote, and how to read it; None if it is not one, or is RLDS."""
    held = holding(input) if isinstance(input, str) and storage.isdir(input) else None
    if held is None or held.to in ("rlds", from_):
        return None
    written = f"rlds-beam convert from {held.dataset}" if held.command == "convert" else "rlds-beam record"
    if held.items is None:
        return f"{input} holds the unfinished output of {written}; run that command again"
    ways = [f'rlds_beam.open_dataset("{input}")'] if held.to in ("trajectories", "columns") else []
    ways += [f"--from={held.to}"] if held.to in SOURCES else []
    how = f"Read it with {' or '.join(ways)}." if ways else f"It is in the format of --to={held.to}."
    return f"{input} holds {held.items:,} {held.kind} written by {written}. {how}"


def named(input: str | Sequence[str]) -> str:
    """What was asked for, for messages."""
    return input if isinstance(input, str) else ",".join(input)


def open_input(options: InputOptions) -> Source:
    """`open_source` with the options of a job."""
    return open_source(options.input, options.split, options.features, options.from_, options.from_options)


def open_for_job(options: InputOptions) -> Source:
    """`open_input` of a dataset that has splits.

    Raises:
      UsageError: as `open_source`; or there are no splits.
    """
    source = open_input(options)
    if not source.splits:
        raise UsageError(f"{options.input}: the input has no episodes (it names no splits)")
    return source
