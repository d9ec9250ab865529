"""Checks whether a dataset's items match a table's signature, and suggests flags if not."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rlds_beam.encoding.structured_values import SignatureLeaf
from rlds_beam.errors import UsageError
from rlds_beam.reverb.protocol.info import TableInfo
from rlds_beam.trajectories.options import CASTS
from rlds_beam.trajectories.spec import Shape, SpecLeaf, TrajectorySpec

Misfit = tuple[SignatureLeaf, SpecLeaf]
"""The table's leaf and the dataset's leaf."""

_AT_MOST = 4  # leaves named individually in an error


def fitting_axes(table: TableInfo, spec: TrajectorySpec, where: str) -> tuple[Shape, ...]:
    """The possible leading axes of the leaves in an item for this table.

    Leaves are compared in the order of `tf.nest`, which is the order of an item's columns: by dtype and shape (None in
    the table's shape matches any size), and by name if the signature is a `Trajectory`.

    Args:
      table: the table; one without a signature accepts any item.
      spec: the spec of the items.
      where: the table's name, for messages.

    Returns:
      `(spec.item_shape,)`; for single frames one or both of () and (1,), which is what
      ReverbAddTrajectoryObserver(sequence_length=1) writes.

    Raises:
      UsageError: the items do not match; the message names each mismatch.
    """
    axes: tuple[Shape, ...] = (spec.item_shape,) if spec.item_shape else ((), (1,))
    if table.signature is None:
        return axes
    _compare_names(table.signature, spec, where, table.name)
    misfits = {outer: _misfits(table.signature, spec.leaves, outer) for outer in axes}
    fitting = tuple(outer for outer in axes if not misfits[outer])
    if fitting:
        return fitting
    outer = min(axes, key=lambda outer: len(misfits[outer]))
    pairs = misfits[outer]
    told = [
        f"{given.path}: the table has {_text(wanted.dtype, wanted.shape)}, "
        f"the dataset {_text(given.dtype, (*outer, *given.shape))}"
        for wanted, given in pairs[:_AT_MOST]
    ]
    if len(pairs) > _AT_MOST:
        told.append(f"and {len(pairs) - _AT_MOST} more leaves")
    remedy = _cast(pairs, outer) or _other_items(pairs)
    raise UsageError(f"{where} does not match these items: {'; '.join(told)}. {_remedies(remedy, table.name)}")


def _compare_names(wanted: Sequence[SignatureLeaf], spec: TrajectorySpec, where: str, name: str) -> None:
    table, dataset = [leaf.path for leaf in wanted], [leaf.path for leaf in spec.leaves]
    if "step_type" not in table:  # not a Trajectory, so its names cannot be compared
        if len(table) != len(dataset):
            raise UsageError(
                f"{where} does not match these items: it has {len(table)} leaves ({', '.join(table)}), "
                f"the dataset {len(dataset)} ({', '.join(dataset)}). {_remedies('', name)}"
            )
        return
    if table == dataset:
        return
    lacking = [path for path in table if path not in dataset]
    extra = [path for path in dataset if path not in table]
    told = [f"it needs {', '.join(lacking)}"] if lacking else []
    told += [f"it has no {', '.join(extra)}"] if extra else []
    told = told or [f"its leaves are in another order ({', '.join(table)})"]
    remedy = ""
    if extra and not lacking and all(path.startswith("observation/") for path in extra):
        kept = [path.removeprefix("observation/") for path in table if path.startswith("observation/")]
        remedy = f"--observation_fields={shlex.quote(','.join(kept))}"
    if lacking and not extra and all(path.startswith("policy_info/") for path in lacking):
        names = ",".join(path.removeprefix("policy_info/") for path in lacking)
        remedy = f"--policy_info_fields={shlex.quote(names)}"
    raise UsageError(f"{where} does not match these items: {'; '.join(told)}. {_remedies(remedy, name)}")


def _misfits(wanted: Sequence[SignatureLeaf], given: Sequence[SpecLeaf], outer: Shape) -> list[Misfit]:
    return [
        (want, leaf)
        for want, leaf in zip(wanted, given, strict=True)
        if want.dtype != leaf.dtype or not _fits(want.shape, (*outer, *leaf.shape))
    ]


def _fits(wanted: Shape | None, given: Shape) -> bool:
    if wanted is None:
        return True
    return len(wanted) == len(given) and all(w in (None, g) for w, g in zip(wanted, given, strict=True))


def _cast(misfits: Sequence[Misfit], outer: Shape) -> str:
    """The flag that fixes all mismatches, if only dtypes differ."""
    for wanted, given in misfits:
        castable = given.encoding == "none" and given.path not in ("step_type", "next_step_type", "discount")
        if not castable or wanted.dtype not in CASTS or not _fits(wanted.shape, (*outer, *given.shape)):
            return ""
    return "--cast=" + ",".join(f"{given.path}={wanted.dtype}" for wanted, given in misfits)


def _other_items(misfits: Sequence[Misfit]) -> str:
    """The flags that fix all mismatches, if only the number of frames in an item differs."""
    if any(wanted.dtype != given.dtype for wanted, given in misfits):
        return ""
    if all(_fits(wanted.shape, given.shape) for wanted, given in misfits):
        return "--items=frames"
    lengths = {wanted.shape[0] for wanted, _ in misfits if wanted.shape}
    if len(lengths) != 1 or not all(_fits(wanted.shape, (*lengths, *given.shape)) for wanted, given in misfits):
        return ""
    (length,) = lengths
    if length is None:
        return "--items=sequences or --items=episodes"
    return {1: "--items=frames", 2: "--items=pairs"}.get(length, f"--items=sequences --sequence_length={length}")


def _remedies(remedy: str, name: str) -> str:
    serve = f"`rlds-beam serve --like=INPUT --tables={shlex.quote(name)}` starts a server with a matching table"
    return f"Add {remedy}; or {serve}" if remedy else serve


def _text(dtype: str, shape: Shape | None) -> str:
    return f"{dtype} of any shape" if shape is None else f"{dtype}{list(shape)}"
