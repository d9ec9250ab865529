"""Tests specific to v2.1, read by LeRobot 0.3.3: episode locations, and GR00T's modality.json."""

from __future__ import annotations

import lerobot_data as data
import numpy as np
from lerobot_peer import WINDOWS, assert_windows, opened


def test_windows_and_chosen_episodes(source, output):
    chosen = [1, 5]
    dataset, at = opened(output, episodes=chosen, delta_timestamps=WINDOWS), 0
    assert len(dataset) == sum(len(source[1][k]) for k in chosen)
    for place, k in enumerate(chosen):
        e = source[1][k]
        assert dataset.episode_data_index["to"][place] - dataset.episode_data_index["from"][place] == len(e)
        for t in range(len(e)):  # LeRobot looks up windows of selected episodes in the wrong episode
            row = dataset.hf_dataset[at]
            assert (row["episode_index"], row["frame_index"]) == (k, t)
            at += 1
    dataset, first = opened(output, delta_timestamps=WINDOWS), 0
    for k, e in enumerate(source[1]):
        for t in (0, 1, len(e) - 2, len(e) - 1):
            item = dataset[first + t]
            assert item["episode_index"] == k
            assert_windows(item, e, t)
        first += len(e)


def test_tasks_are_in_the_order_of_their_first_step(source, output):
    texts = dict.fromkeys(t.decode() for e in source[1] for t in e.steps["language_instruction"])
    assert list(opened(output).meta.tasks.values()) == list(texts)


def test_its_parts_are_found_as_gr00t_looks_them_up(moving, videos):
    """Uses only modality.json and stats.json: a slice of a vector, a video path, a row of tasks.jsonl."""
    import pandas as pd

    info, modality, stats = (data.meta(videos, name) for name in ("info", "modality", "stats"))
    tasks = {line["task_index"]: line["task"] for line in data.lines(videos, "tasks")}
    for k, (line, e) in enumerate(zip(data.lines(videos, "episodes"), moving[1], strict=True)):
        place = {"episode_chunk": k // info["chunks_size"], "episode_index": k}
        rows = pd.read_parquet(videos / info["data_path"].format(**place))
        assert len(rows) == line["length"] == len(e)
        for part, key, path in (("state", "observation.state", "observation/state"), ("action", "action", "action")):
            for entry in modality[part].values():
                found = np.stack([row[entry["start"] : entry["end"]] for row in rows[entry.get("original_key", key)]])
                np.testing.assert_array_equal(found, e.steps[path])
                assert all(
                    len(np.array(v)[entry["start"] : entry["end"]]) == found.shape[1] for v in stats[key].values()
                )
        for entry in modality["video"].values():
            assert (videos / info["video_path"].format(video_key=entry["original_key"], **place)).exists()
        texts = rows[modality["annotation"]["human.task_description"]["original_key"]].map(tasks.get)
        assert [text.encode() for text in texts] == list(e.steps["language_instruction"])
    for name in (name for name, feature in info["features"].items() if "float" in feature["dtype"]):
        assert {"mean", "std", "min", "max", "q01", "q99"} <= stats[name].keys()
