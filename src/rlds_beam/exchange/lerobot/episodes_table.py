"""The rows of meta/episodes: where each episode is, its tasks, its statistics, and what was known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds_beam.exchange.lerobot import layout, statistics
from rlds_beam.exchange.lerobot.features import INDEX_FEATURES
from rlds_beam.exchange.lerobot.range_facts import RangeFacts
from rlds_beam.exchange.lerobot.tables import lists

if TYPE_CHECKING:
    import pyarrow as pa

    from rlds_beam.exchange.lerobot.output import LerobotOutput

Array = np.ndarray[Any, Any]


class EpisodeNumbers(NamedTuple):
    """What a range does not know itself.

    Attributes:
      episode, frame: of the dataset, that its first ones are.
      file: the number of its file.
      tasks: of each of its tasks, the number in the dataset.
    """

    episode: int
    frame: int
    file: int
    tasks: Array


def episodes_table(output: LerobotOutput, facts: RangeFacts, numbers: EpisodeNumbers) -> pa.Table:
    """The episodes of a range, without the place of these rows themselves."""
    import pyarrow as pa

    count = len(facts.lengths)
    stops = numbers.frame + np.cumsum(facts.lengths)
    columns: dict[str, Any] = {
        "episode_index": pa.array(numbers.episode + np.arange(count)),
        "tasks": pa.array([[facts.tasks[i] for i in own] for own in facts.episode_tasks()], pa.list_(pa.string())),
        "length": pa.array(facts.lengths),
    }
    columns |= {f"data/{name}": pa.array(np.full(count, n)) for name, n in layout.place(numbers.file).items()}
    columns |= {"dataset_from_index": pa.array(stops - facts.lengths), "dataset_to_index": pa.array(stops)}
    ends = np.cumsum(facts.lengths)  # of the range, whose videos begin with its first frame
    for feature in output.videos:
        place = layout.place(numbers.file).items()
        columns |= {f"videos/{feature.name}/{name}": pa.array(np.full(count, n)) for name, n in place}
        columns[f"videos/{feature.name}/from_timestamp"] = pa.array((ends - facts.lengths) / output.fps)
        columns[f"videos/{feature.name}/to_timestamp"] = pa.array(ends / output.fps)
    columns["episode_key"] = pa.array(facts.keys, pa.string())
    columns |= {name: facts.columns[name] for name in output.features.columns}
    return pa.table({**columns, **_statistics(output, facts, numbers)})


def _statistics(output: LerobotOutput, facts: RangeFacts, numbers: EpisodeNumbers) -> dict[str, pa.Array]:
    """`stats/<feature>/<statistic>`, as lists in the shape of the feature."""
    import pyarrow as pa

    features = {feature.name: feature for feature in output.features.features}
    every = {**facts.statistics, **_of_indices(facts, numbers)}
    made: dict[str, pa.Array] = {}
    for name in (n for n in (*features, *INDEX_FEATURES) if n in every):
        feature, values = features.get(name), every[name]
        shape: tuple[int, ...] = (1,)
        counts = facts.lengths
        if feature is not None and feature.kind == "image":
            shape, counts = (feature.shape[-1], 1, 1), facts.samples[name]
        elif feature is not None:
            shape = feature.shape or (1,)
        for i, statistic in enumerate(statistics.STATISTICS):
            flat = pa.array(np.ascontiguousarray(values[:, i]).reshape(-1))
            made[f"stats/{name}/{statistic}"] = lists(flat, (len(values), *shape))
        made[f"stats/{name}/count"] = lists(pa.array(counts), (len(counts), 1))
    return made


def _of_indices(facts: RangeFacts, numbers: EpisodeNumbers) -> dict[str, Array]:
    """Of what the dataset numbers: (E, statistics, 1)."""
    ends = np.cumsum(facts.lengths)
    tasks = np.split(numbers.tasks[facts.frame_tasks], ends[:-1])
    of_index, of_episode, of_task = [], [], []
    std = statistics.STATISTICS.index("std")
    for i, length in enumerate(facts.lengths.tolist()):
        index = statistics.range_statistics(length) + numbers.frame + int(ends[i]) - length
        index[std] = statistics.range_statistics(length)[std]
        episode = np.full(len(index), float(numbers.episode + i))
        episode[std] = 0.0
        of_index.append(index)
        of_episode.append(episode)
        of_task.append(statistics.episode_statistics({"": tasks[i]})[""][:, 0])
    return {
        name: np.stack(values)[..., None]
        for name, values in (("index", of_index), ("episode_index", of_episode), ("task_index", of_task))
    }
