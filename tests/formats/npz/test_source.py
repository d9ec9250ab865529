"""--from=npz: the transitions of ExoRL's and OGBench's own loaders, and of D4RL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npz_data import d4rl_arrays, exorl_transitions, load_ogbench, ogbench_arrays, write_exorl

import rlds_beam
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import ProfileOptions
from rlds_beam.formats.profiles.source import NpzSource
from rlds_beam.reading.base import Segment
from rlds_beam.reading.reader import EpisodeReader


def read(path: Path | str, split: str = "train", **options: Any) -> list[rlds_beam.Episode]:
    source = NpzSource.open(str(path), options=ProfileOptions(**options))
    (found,) = [one for one in source.splits if one.name == split]
    return [one for shard in found.shards for one in EpisodeReader(source).read(split, Segment(shard))]


def test_exorl_gives_the_transitions_of_its_own_loader(tmp_path) -> None:
    written = write_exorl(tmp_path / "buffer")
    episodes = read(tmp_path / "buffer")
    assert [len(one) for one in episodes] == [6, 7, 8]
    for arrays, episode in zip(written, episodes, strict=True):
        steps, expected = episode.steps, exorl_transitions(arrays)
        np.testing.assert_array_equal(steps["observation"][:-1], expected["observation"])
        np.testing.assert_array_equal(steps["observation"][1:], expected["next_observation"])
        np.testing.assert_array_equal(steps["action"][:-1], expected["action"])
        np.testing.assert_array_equal(steps["reward"][:-1], expected["reward"][:, 0])
        np.testing.assert_array_equal(steps["discount"][:-1], expected["discount"][:, 0])
        np.testing.assert_array_equal(steps["physics"], arrays["physics"])
        assert steps["physics"].dtype == np.float64
        assert steps["is_last"].tolist() == [*[False] * (len(episode) - 1), True]
    assert [bool(one.steps["is_terminal"][-1]) for one in episodes] == [False, True, False]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("visual", [False, True])
def test_ogbench_gives_the_transitions_of_its_own_loader(tmp_path, save, visual) -> None:
    path = tmp_path / "maze.npz"
    save(path, **ogbench_arrays((4, 6, 2), visual=visual))
    save(tmp_path / "maze-val.npz", **ogbench_arrays((3,), seed=1, visual=visual))
    expected = load_ogbench(path, np.uint8 if visual else np.float32)
    episodes = read(tmp_path)
    assert [len(one) for one in episodes] == [4, 6, 2]
    assert len(read(tmp_path, "val")) == 1

    def joined(name: str, rows: slice) -> Any:
        columns = [one.steps[name] for one in episodes]
        return np.concatenate([(c if isinstance(c, np.ndarray) else c.decode())[rows] for c in columns])

    for path_, name, rows in (
        ("observation", "observations", slice(None, -1)),
        ("observation", "next_observations", slice(1, None)),
        ("action", "actions", slice(None, -1)),
        ("qpos", "qpos", slice(None, -1)),
        ("qvel", "qvel", slice(None, -1)),
    ):
        np.testing.assert_array_equal(joined(path_, rows), expected[name])
    np.testing.assert_array_equal(joined("is_last", slice(1, None)), expected["terminals"])
    assert not joined("is_terminal", slice(None)).any()


@pytest.mark.parametrize("following", [False, True])
def test_arrays_as_in_d4rl(tmp_path, following) -> None:
    arrays = d4rl_arrays(following=following)
    np.savez(tmp_path / "d.npz", **arrays)
    episodes = read(tmp_path / "d.npz")
    # as D4RL's HDF5 source: a timeout without the next observation ends with a void action
    assert [len(one) for one in episodes] == [5, 4 if following else 3, 6]
    assert [bool(one.steps["is_terminal"][-1]) for one in episodes] == [True, False, True]
    first = episodes[0].steps
    np.testing.assert_array_equal(first["action"][:-1], arrays["actions"][:4])
    np.testing.assert_array_equal(first["reward"], [*arrays["rewards"][:4], 0])
    np.testing.assert_array_equal(first["observation"][-1], np.full(3, 7 if following else 0))
    assert first["discount"].tolist() == [1, 1, 1, 0, 0]
    assert first["info/qpos"].dtype == np.float64


def test_rows_after_the_last_end_are_rejected(tmp_path) -> None:
    arrays = ogbench_arrays((4, 3))
    arrays["terminals"][-1] = False
    np.savez(tmp_path / "d.npz", **arrays)
    report = rlds_beam.check(tmp_path / "d.npz", from_="npz", rules=True).report
    assert (report.valid, report.rejected, [*report.rules]) == (1, 1, ["missing_is_last"])


def test_a_profile_of_a_user(tmp_path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", state=rng.normal(size=(4, 2)), act=np.ones((4, 1), ">f4"), name=np.array(["x"] * 4))
    with pytest.raises(UsageError, match=r"no shipped profile fits.*(?s:.*)observation/state: state "):
        read(tmp_path / "a.npz")
    profile = tmp_path / "mine.yaml"
    profile.write_text(
        "name: mine\nfields: {observation: state, action: act, '**': '**'}\nlast_step: added\nterminal: true\n"
    )
    (episode,) = read(tmp_path / "a.npz", profile=str(profile))
    assert episode.steps["action"].dtype == np.float32
    assert episode.steps["name"].tolist() == [b"x"] * 4 + [b""]
    assert episode.steps["discount"].tolist() == [1, 1, 1, 0, 0]


def test_fortran_order_and_one_row_and_no_rows(tmp_path) -> None:
    arrays = ogbench_arrays((2, 3))
    arrays["observations"] = np.asfortranarray(arrays["observations"])
    np.savez(tmp_path / "f.npz", **arrays)
    np.testing.assert_array_equal(read(tmp_path / "f.npz")[1].steps["observation"], arrays["observations"][2:])
    np.savez(tmp_path / "one.npz", **{name: column[:1] for name, column in write_exorl(tmp_path / "x")[0].items()})
    assert len(read(tmp_path / "one.npz")[0]) == 1
    np.savez(tmp_path / "none.npz", **{name: column[:0] for name, column in arrays.items()})
    assert [len(one) for one in read(tmp_path / "none.npz")] in ([], [0])


@pytest.mark.parametrize(
    ("save", "said"),
    [
        (
            lambda path: np.savez(path, observations=np.array([{}, {}], object)),
            "Python objects, which may run any code",
        ),
        (lambda path: path.write_bytes(b"no archive"), "not an .npz file, or damaged"),
    ],
)
def test_files_that_are_refused(tmp_path, save, said) -> None:
    save(tmp_path / "x.npz")
    with pytest.raises(UsageError, match=f"cannot be read: .*{said}"):
        NpzSource.open(str(tmp_path / "x.npz"))
