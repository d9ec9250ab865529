"""Writers compared: `python benchmarks/reverb_writers.py DATASET --items KIND [--episodes N] [--repeats N]`.

All insert the same items into a table of one server, in turn, from episodes in memory in the layout they prefer; the
table is emptied after each. Ours gets `Frames` and one thread. Reverb's own writers get numpy steps (or pieces of
columns) and wait between episodes only if they must. Prints JSON: items/s.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tables import TABLE, items_of, make_thumbnails, options_of, servers, target_of

from rlds_beam.jobs.push import open_input
from rlds_beam.reverb.target import ReverbTarget
from rlds_beam.reverb.writer import StreamWriter
from rlds_beam.trajectories.frames import Frames
from rlds_beam.trajectories.items import Items, item_count
from rlds_beam.trajectories.options import ItemOptions

KINDS = {
    "episodes": ItemOptions(items="episodes"),
    "sequences": ItemOptions(items="sequences", sequence_length=64, stride_length=1),
    "disjoint": ItemOptions(items="sequences", sequence_length=64, stride_length=64),
}
"""Disjoint: the stride is as long as the sequence."""
PENDING = 100
"""Items that a Reverb writer may have in flight."""
PER_STEP_EPISODES = 5
"""Episodes for writers that go step by step, which are slow."""

Write = Callable[[Any, Sequence[Any], ItemOptions], None]


def ours(target: ReverbTarget, episodes: Sequence[Items]) -> None:
    writer = StreamWriter(target)
    for items in episodes:
        writer.write(writer.encode(items))
    writer.flush()
    writer.close()


def trajectory_writer(client: Any, episodes: Sequence[Any], items: ItemOptions) -> None:
    """Reverb's TrajectoryWriter step by step, tuning its chunks itself."""
    import tree

    with client.trajectory_writer(num_keep_alive_refs=items.length or _longest(episodes)) as writer:
        for steps in episodes:
            for i, step in enumerate(steps):
                writer.append(step)
                length = _due(i, len(steps), items)
                if length:
                    item = tree.map_structure(lambda column, length=length: column[-length:], writer.history)
                    writer.create_item(TABLE, 1.0, item)
            writer.end_episode()


def rows(client: Any, episodes: Sequence[Any], items: ItemOptions) -> None:
    """Reverb's TrajectoryWriter with an item of many frames as one step."""
    import tree

    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        for pieces in episodes:
            for piece in pieces:
                writer.append(piece)
                writer.create_item(TABLE, 1.0, tree.map_structure(lambda column: column[-1], writer.history))
                writer.flush(block_until_num_items=PENDING)


def append_sequence(client: Any, episodes: Sequence[Any], items: ItemOptions) -> None:
    """Reverb's old Writer, an item of many frames at a time."""
    length = len(episodes[0][0].step_type)
    with client.writer(max_sequence_length=length, chunk_length=length) as writer:
        for pieces in episodes:
            for piece in pieces:
                writer.append_sequence(piece)
                writer.create_item(TABLE, length, 1.0)
        writer.flush()


def old_writer(client: Any, episodes: Sequence[Any], items: ItemOptions) -> None:
    """Reverb's old Writer step by step."""
    longest = items.length or _longest(episodes)
    for steps in episodes:
        with client.writer(max_sequence_length=longest, chunk_length=longest) as writer:
            for i, step in enumerate(steps):
                writer.append(step)
                length = _due(i, len(steps), items)
                if length:
                    writer.create_item(TABLE, length, 1.0)
            writer.flush()


def structured_writer(client: Any, episodes: Sequence[Any], items: ItemOptions) -> None:
    """Reverb's StructuredWriter, which makes the items in C++."""
    import tree
    from reverb import structured_writer as structured

    length = items.length or _longest(episodes)
    pattern = structured.pattern_from_transform(
        episodes[0][0], lambda steps: tree.map_structure(lambda column: column[-length:], steps)
    )
    condition = structured.Condition
    conditions = [condition.step_index() >= length - 1, condition.steps_since_applied() >= items.stride]
    if items.length is None:
        conditions = [condition.is_end_episode()]
    writer = client.structured_writer([structured.create_config(pattern, TABLE, conditions)])
    for steps in episodes:
        for step in steps:
            writer.append(step)
        writer.end_episode()


def observer(client: Any, episodes: Sequence[Any], items: ItemOptions) -> None:
    """TF-Agents' observer."""
    from tf_agents.replay_buffers import reverb_utils

    if items.length is None:
        write = reverb_utils.ReverbAddEpisodeObserver(client, TABLE, _longest(episodes))
    else:
        write = reverb_utils.ReverbAddTrajectoryObserver(client, TABLE, items.length, items.stride)
    for steps in episodes:
        for step in steps:
            write(step)
    write.close()


def writers_of(items: ItemOptions) -> dict[str, tuple[Write, bool]]:
    """The writers that support such items, and whether each goes step by step."""
    per_step: dict[str, tuple[Write, bool]] = {
        "TF-Agents' observer": (observer, True),
        "TrajectoryWriter": (trajectory_writer, True),
        "StructuredWriter": (structured_writer, True),
        "Writer": (old_writer, True),
    }
    if items.length is not None and items.stride < items.length:
        return per_step
    return {
        **per_step,
        "Writer.append_sequence": (append_sequence, False),
        "TrajectoryWriter, an item a row": (rows, False),
    }


def _due(i: int, n: int, items: ItemOptions) -> int:
    """Number of frames of the item that step i of n completes; 0 if none."""
    if items.length is None:
        return n if i == n - 1 else 0
    return items.length if i + 1 >= items.length and (i + 1 - items.length) % items.stride == 0 else 0


def _longest(episodes: Sequence[Any]) -> int:
    return max(len(steps) for steps in episodes)


def nest_of(target: ReverbTarget, frames: Frames) -> Any:
    """The columns as a Trajectory."""
    import tensorflow as tf

    columns = [np.asarray(frames[leaf.path]) for leaf in target.spec.leaves]
    return tf.nest.pack_sequence_as(target.spec.to_tf(per_frame=True), columns)


def pieces_of(trajectory: Any, length: int) -> list[Any]:
    """The trajectory cut into pieces of `length` frames; a remainder is dropped."""
    import tree

    n = len(trajectory.step_type)
    cut = range(0, n - length + 1, length)
    return [tree.map_structure(lambda column, at=at: column[at : at + length], trajectory) for at in cut]


def steps_of(trajectory: Any) -> list[Any]:
    import tree

    n = len(trajectory.step_type)
    return [tree.map_structure(lambda column, i=i: column[i], trajectory) for i in range(n)]


def measure(dataset: str, kind: str, episodes: int, repeats: int) -> Mapping[str, Any]:
    import reverb

    items = KINDS[kind]
    options = options_of(dataset, items)
    source = open_input(options)
    frames = make_thumbnails(source, episodes)
    with servers(source, 1) as (address,):
        target = target_of(options_of(dataset, items, address))
        client = reverb.Client(address)
        trajectories = [nest_of(target, episode) for episode in frames]
        steps = [steps_of(trajectory) for trajectory in trajectories[:PER_STEP_EPISODES]]
        pieces = [pieces_of(trajectory, items.length or len(trajectory.step_type)) for trajectory in trajectories]
        runs: dict[str, tuple[Callable[[], None], Sequence[Any]]] = {
            "ours": (functools.partial(ours, target, items_of(frames, items)), frames)
        }
        for name, (write, per_step) in writers_of(items).items():
            ready = steps if per_step else pieces
            runs[name] = functools.partial(write, client, ready, items), frames[: len(ready)]
        rates = dict.fromkeys(runs, 0.0)
        for _ in range(repeats):
            for name, (run, written) in runs.items():
                count = sum(item_count(len(episode), items) for episode in written)
                began = time.perf_counter()
                run()
                rates[name] = max(rates[name], count / (time.perf_counter() - began))
                there = client.server_info()[TABLE].current_size
                assert there == count, f"{name}: {there} items in the table, {count} written"
                client.reset(TABLE)
    count = sum(item_count(len(episode), items) for episode in frames)
    return {"frames_per_item": sum(map(len, frames)) / count, "items_per_second": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--items", choices=KINDS, required=True)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    print(json.dumps(measure(args.dataset, args.items, args.episodes, args.repeats)))


if __name__ == "__main__":
    main()
