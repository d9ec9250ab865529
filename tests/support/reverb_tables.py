"""Tables of each kind on a Reverb server, and checks of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds_beam.reverb.inserts import Request, Slices, chunks, items
from rlds_beam.reverb.stream import InsertStream
from rlds_beam.reverb.tables import Baseline, check_tables
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

TIMEOUT = 20.0


LEAVES = (
    SpecLeaf("step_type", "int32", ()),
    SpecLeaf("observation/image", "uint8", (4, 4, 3), "png"),
    SpecLeaf("observation/state", "float64", (3,)),
    SpecLeaf("action", "float32", (2,)),
    SpecLeaf("next_step_type", "int32", ()),
    SpecLeaf("reward", "float32", ()),
    SpecLeaf("discount", "float32", ()),
)


SPEC = TrajectorySpec(LEAVES, (2,))


def spec_with(*leaves: SpecLeaf, length: int = 2) -> TrajectorySpec:
    """SPEC with these leaves added; leaves with the same path are replaced."""
    replaced = {leaf.path: leaf for leaf in (*LEAVES, *leaves)}
    order = ("step_type", "observation", "action", "policy_info", "next_step_type", "reward", "discount")
    return TrajectorySpec(
        tuple(sorted(replaced.values(), key=lambda leaf: (order.index(leaf.path.split("/")[0]), leaf.path))), (length,)
    )


def signature(outer: tuple[int | None, ...] | None = None, spec: TrajectorySpec = SPEC) -> Any:
    outer = spec.item_shape if outer is None else outer
    return TrajectorySpec(spec.leaves, outer).to_tf()


def table(name: str, max_size: int = 100, **options: Any) -> Any:
    import reverb

    options = {"rate_limiter": reverb.rate_limiters.MinSize(1), **options}
    return reverb.Table(name, reverb.selectors.Uniform(), reverb.selectors.Fifo(), max_size, **options)


def make_tables() -> list[Any]:
    import reverb
    import tensorflow as tf

    ratio = reverb.rate_limiters.SampleToInsertRatio
    nest, leaves = tf.nest.map_structure, tuple(tf.nest.flatten(signature()))
    signatures = {
        "pairs": signature(),
        "any_length": signature((None,)),
        "five": signature((5,)),
        "one": signature((1,)),
        "frames": signature(()),
        "flat": leaves,
        "short": leaves[:3],
        "open": nest(lambda leaf: tf.TensorSpec(None, leaf.dtype), signature()),
        "open_sizes": nest(lambda leaf: tf.TensorSpec([None] * leaf.shape.rank, leaf.dtype), signature()),
    }
    return [
        table("unsigned"),
        *(table(name, signature=spec) for name, spec in signatures.items()),
        table("small", 10),
        table("full", 10),
        table("used", 100),
        table("once", 100, max_times_sampled=1),
        reverb.Table.queue("queue", 10),
        reverb.Table.stack("stack", 10),
        table("ratio", rate_limiter=ratio(2.0, 3, (0, 20.0))),
        table("deep", 5, rate_limiter=ratio(1.0, 50, (0, 60.0))),
        table("brim", 5, rate_limiter=ratio(1.0, 5, (0, 20.0))),
        *(table(f"free{i}") for i in range(8)),
        *(table(f"tight{i}", 10) for i in range(3)),
    ]


def push(address: str, name: str, keys: range) -> int:
    """Inserts one-number items with these keys into a table; returns how many were acknowledged."""
    if not keys:
        return 0
    ids = np.array(keys, np.uint64)
    at = np.arange(len(ids))[:, None]
    slices = Slices(np.full_like(at, keys[0] + 1, np.uint64), at, np.ones_like(at))
    rows = items(name, ids, np.ones(len(ids)), slices, 1)
    (chunk,) = chunks(np.array([keys[0] + 1], np.uint64), [np.array(keys, np.int64)], len(keys), 7, 0)
    stream = InsertStream(address, timeout=TIMEOUT)
    try:
        stream.send(Request([*chunk.parts, rows.tobytes()], ids))
        stream.flush()
        return stream.acknowledged
    finally:
        stream.close()


def look(
    address: str, name: str, spec: TrajectorySpec = SPEC, predicted: int | None = None, **options: Any
) -> Baseline:
    counts = None if predicted is None else {address: predicted}
    return check_tables([address], [name], spec, counts, TIMEOUT, **options)
