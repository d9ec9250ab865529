"""What the learner sees of an episode, and its counterpart in an output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import Browser, browsing

import rlds_beam
from rlds_beam.cli.commands.browse import BrowseConfig
from rlds_beam.testing import make_episode, read_items, write_dataset
from rlds_beam.viewing.browser.server import open_datasets


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [make_episode(4 + i, seed=i, breaks=["missing_is_last"] if i == 2 else []) for i in range(5)]
    return write_dataset(tmp_path_factory.mktemp("rlds"), episodes, shards=2)


def made(browser: Browser, number: int, **query: Any) -> Any:
    return browser.json("/api/made", key=browser.list_keys()[number], **query)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"items": "sequences", "sequence_length": 6, "pad_end_of_episodes": True},
        {"items": "sequences", "sequence_length": 3, "stride_length": 2},
        {"items": "episodes"},
        {"items": "frames"},
    ],
    ids=str,
)
def test_items_are_those_that_convert_writes(dataset: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    rlds_beam.convert(dataset, tmp_path / "out", repair="missing_is_last", workers=1, progress="none", **options)
    written = read_items(tmp_path / "out")
    with browsing(dataset, repair="missing_is_last", **options) as browser:
        items = [one for i in range(5) for one in made(browser, i)["items"]]
        assert len(items) == len(written)
        for item, expected in zip(items, written, strict=True):
            frames = options.get("items") == "frames"
            for path in ("action", "reward", "step_type"):
                values = np.asarray(item["values"][path], np.float64)
                np.testing.assert_allclose(values[0] if frames else values, expected[path], rtol=1e-6)
            assert item["length"] == len(np.atleast_1d(expected["step_type"]))


def test_padding_is_visible(dataset: Path) -> None:
    options = {"items": "sequences", "sequence_length": 6, "pad_end_of_episodes": True}
    with browsing(dataset, **options) as browser:
        answer = made(browser, 0)  # four steps
        assert (answer["kind"], answer["about"]) == ("items", "--to=trajectories --items=sequences --sequence_length=6")
        first = answer["items"][0]
        assert first["steps"] == [0, 1, 2, 3, None, None][: len(first["steps"])]
        assert first["padding"] == [step is None for step in first["steps"]]


def test_pages_of_items(dataset: Path) -> None:
    with browsing(dataset) as browser:
        whole = made(browser, 4)
        assert whole["total"] == 7 == len(whole["items"])
        page = made(browser, 4, offset=2, limit=3)
        assert page["items"] == whole["items"][2:5] and page["total"] == 7
        assert made(browser, 4, offset=100)["items"] == []
        assert browser.get("/api/made", key=browser.list_keys()[0], limit=21).status_code == 400


def test_columns_of_connectors(dataset: Path) -> None:
    with browsing(dataset, to="columns") as browser:
        answer = made(browser, 0)
        assert (answer["kind"], answer["total"]) == ("rows", 3)
        assert {"obs", "actions", "rewards"} <= {field["path"] for field in answer["fields"]}
        action = browser.json("/api/step", key=browser.list_keys()[0], step=1)["values"]
        expected = next(one["value"] for one in action if one["path"] == "action")
        assert answer["items"][1]["values"]["actions"] == [expected]


def test_connectors_that_drop_and_edit(dataset: Path, tmp_path: Path) -> None:
    connectors = tmp_path / "connectors.yaml"
    connectors.write_text("- MinimumLength: {transitions: 6}\n")
    with browsing(dataset, connectors=str(connectors), to="rlds") as browser:
        first, last = made(browser, 0), made(browser, 4)
        assert "drops the episode" in first["error"]
        assert (last["kind"], last["total"]) == ("frames", 8)


def test_why_nothing_is_made(dataset: Path) -> None:
    with browsing(dataset) as browser:
        assert "missing_is_last" in made(browser, 2)["error"]
    with browsing(dataset, cast="action=uint8") as browser:
        assert made(browser, 0)["error"]
    with browsing(dataset, observation_fields="nothing") as browser:
        assert "nothing" in made(browser, 0)["error"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"items": "sequences", "sequence_length": 16},
            "This episode has 4 steps; a sequence needs 16. --pad_end_of_episodes pads it.",
        ),
        (
            {"items": "episodes", "max_sequence_length": 3, "bypass_partial_episodes": True},
            "This episode has 4 steps; --max_sequence_length=3 allows no more.",
        ),
        ({"items": "sequences", "sequence_length": 16, "pad_end_of_episodes": True}, None),
    ],
)
def test_why_there_are_no_items(dataset: Path, options: dict[str, Any], why: str | None) -> None:
    with browsing(dataset, **options) as browser:
        answer = made(browser, 0)  # four steps
        assert (answer["empty"], bool(answer["items"])) == (why, why is None)


def counterparts(browser: Browser, dataset: str) -> list[tuple[str | None, str]]:
    answers = [browser.json("/api/counterpart", dataset=dataset, key=key) for key in browser.list_keys(dataset=dataset)]
    return [(answer["key"], answer["how"]) for answer in answers]


@pytest.mark.parametrize(
    "options",
    [{"to": "rlds"}, {"to": "lerobot", "fps": 10}],
    ids=str,
)
def test_an_episode_and_its_counterpart(dataset: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    rlds_beam.convert(dataset, tmp_path / "out", workers=1, progress="none", **options)
    with browsing(dataset, tmp_path / "out", no_scan=False) as browser:
        first, second = browser.scanned()
        assert (first["compare_to"], second["compare_to"]) == ("1", "0")
        sources, outputs = browser.list_keys(), browser.list_keys(dataset="1")
        there, back = counterparts(browser, "0"), counterparts(browser, "1")
        assert [key for key, _ in there] == [*outputs[:2], None, *outputs[2:]]
        assert [key for key, _ in back] == [*sources[:2], *sources[3:]]
        assert there[2][1] in ("the conversion rejected or dropped this episode", "the output has no such episode")
        how = "by the episode_key" if options.get("to") == "lerobot" else "by the order"
        assert all(text.startswith(how) for _, text in back)


def test_a_preset_repairs_as_in_a_conversion(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [make_episode(4)], name="roboturk")
    (opened,) = open_datasets(BrowseConfig.create([str(data)], preset="roboturk", no_scan=True))
    assert opened.check is not None and opened.check.policy("missing_is_last") == "repair"
