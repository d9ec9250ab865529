"""Batches without the last steps that have no action; windows, next steps, and positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_beam import mix_batches, open_dataset
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode, write_dataset

LENGTHS = (4, 1, 3)
STEPS = [(episode, step) for episode, length in enumerate(LENGTHS) for step in range(length)]
TAKEN = [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
"""The steps whose action was taken."""

pytestmark = pytest.mark.usefixtures("cache")


def dataset(directory: Path) -> Any:
    """Steps that know their episode and place; last actions are zeros."""
    episodes = []
    for number, length in enumerate(LENGTHS):
        place = np.stack([np.full(length, number), np.arange(length)], axis=1).astype(np.float32)
        action = place + 1
        action[-1] = 0
        made = make_episode(length, seed=number, columns={"observation/place": place, "action": action})
        steps = {path: column for path, column in made.steps.items() if path != "observation"}
        episodes.append(made.replace(steps=steps))
    path = write_dataset(directory / "data", episodes)
    return open_dataset(path, unit="steps")


def places(batch: Any) -> list[tuple[int, int]]:
    return [tuple(map(int, place)) for place in batch["observation/place"]]


def test_last_steps_without_an_action_are_no_rows(tmp_path: Path) -> None:
    steps = dataset(tmp_path)
    assert len(steps) == 8  # the dataset itself has all of them
    assert "8 rows, of which batches leave out 3 last steps without an action" in repr(steps)
    for last_step, expected in ((None, TAKEN), ("drop", TAKEN), ("keep", STEPS)):
        found = [place for batch in steps.batches(2, last_step=last_step) for place in places(batch)]
        assert found == expected
    shuffled = [place for batch in steps.batches(2, shuffle=True, seed=3) for place in places(batch)]
    assert sorted(shuffled) == TAKEN


def test_windows_of_actions_end_before_a_void_step(tmp_path: Path) -> None:
    steps = dataset(tmp_path)
    batch = next(steps.batches(5, chunk={"action": 3, "reward": 2, "observation/place": 3}))
    assert batch["action"][:, :, 1].tolist() == [[1, 2, 3], [2, 3, 3], [3, 3, 3], [1, 2, 2], [2, 2, 2]]
    pads = [[False] * 3, [False, False, True], [False, True, True], [False, False, True], [False, True, True]]
    assert batch["action_is_pad"].tolist() == pads
    assert batch["reward_is_pad"].tolist() == [[False, pad[1]] for pad in pads]
    # The final observation stays: it is what the last action led to.
    assert batch["observation/place"][:, :, 1].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 3], [0, 1, 2], [1, 2, 2]]
    kept = next(steps.batches(8, chunk=3, last_step="keep"))
    assert kept["action"][2, :, 1].tolist() == [3, 0, 0]
    assert kept["action_is_pad"][2].tolist() == [False, False, True]


def test_the_next_step_has_the_final_observation(tmp_path: Path) -> None:
    steps = dataset(tmp_path)
    batch = next(steps.batches(5, next_step=True))
    assert batch["next_observation/place"][:, 1].tolist() == [1, 2, 3, 1, 2]
    assert batch["next_is_last"].tolist() == batch["next_is_terminal"].tolist() == [False, False, True, False, True]
    assert not batch["next_observation/place_is_pad"].any()
    with_history = next(steps.batches(5, next_step=True, history=2))
    assert with_history["observation/place"][:, :, 1].tolist() == [[0, 0], [0, 1], [1, 2], [0, 0], [0, 1]]
    assert with_history["next_observation/place"][:, :, 1].tolist() == [[0, 1], [1, 2], [2, 3], [0, 1], [1, 2]]
    kept = next(steps.batches(8, next_step=True, last_step="keep", columns=["observation/place"]))
    assert kept["next_observation/place_is_pad"].tolist() == [False] * 3 + [True, True, False, False, True]


def test_images_of_the_next_step(tmp_path: Path) -> None:
    from exchanging import rich_dataset

    path, _ = rich_dataset(tmp_path / "data")
    steps = open_dataset(path, unit="steps")
    image = next(name for name, field in steps.fields.items() if field.encoding == "jpeg")
    length = int(np.argmax(steps.columns["is_last"])) + 1
    batch = next(steps.batches(length, next_step=True, columns=[image], last_step="keep"))
    np.testing.assert_array_equal(batch[f"next_{image}"], batch[image][[*range(1, length), length - 1]])


def test_mixtures_and_ranks_leave_them_out(tmp_path: Path) -> None:
    steps = dataset(tmp_path)
    mixed = mix_batches([(steps, 1), (steps, 2)], 20, chunk=2)
    assert all(batch["action"][:, 0].all() for batch, _ in zip(mixed, range(3), strict=False))
    mixed.close()
    kept = mix_batches([(steps, 1)], 40, last_step="keep")
    assert set(places(next(kept))) == set(STEPS)
    kept.close()
    ranks = [steps.batches(2, rank=rank, ranks=2, drop_last=False) for rank in range(2)]
    assert sorted(place for batches in ranks for batch in batches for place in places(batch)) == TAKEN


def test_what_is_refused(tmp_path: Path) -> None:
    steps = dataset(tmp_path)
    with pytest.raises(UsageError, match="last_step=kept: expected drop or keep; did you mean keep"):
        steps.batches(2, last_step="kept")
    episodes = open_dataset(tmp_path / "data" / "testing" / "1.0.0")
    for options in ({"last_step": "drop"}, {"next_step": True}):
        with pytest.raises(UsageError, match=f"{next(iter(options))} needs steps"):
            episodes.batches(2, **options)


def test_meaning_json_decides_instead_of_the_values(tmp_path: Path) -> None:
    dataset(tmp_path)
    root = tmp_path / "data" / "testing" / "1.0.0"
    (root / "meaning.json").write_text('{"last_action": "real"}')
    assert places(next(open_dataset(root, unit="steps").batches(8))) == STEPS
