"""The connector interface: order, drops, and errors."""

from __future__ import annotations

import dataclasses

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to

from rlds_beam.connectors.base import Batch, ColumnConnector, EpisodeConnector, FittedConnector, connect
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.testing import make_episode
from rlds_beam.transforms import ConnectEpisodes


def clip_reward(batch: Batch) -> Batch:
    clipped = (e.replace(steps={**e.steps, "reward": e.steps["reward"].clip(-0.5, 0.5)}) for e in batch.episodes)
    return batch.replace(episodes=tuple(clipped))


def halve(batch: Batch) -> Batch:
    halves = (half for e in batch.episodes for half in (e.slice(0, len(e) // 2), e.slice(len(e) // 2, len(e))))
    return batch.replace(episodes=tuple(halves))


def add_returns(batch: Batch) -> Batch:
    return batch.replace(columns=tuple({"returns": e.steps["reward"].sum(keepdims=True)} for e in batch.episodes))


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """Drops shorter episodes."""

    steps: int

    def __call__(self, batch: Batch) -> Batch:
        return batch.replace(episodes=tuple(e for e in batch.episodes if len(e) >= self.steps))


def test_connectors_run_in_order_and_see_earlier_results():
    episode = make_episode(8, seed=1)
    before = episode.steps["reward"].copy()
    batch = connect([clip_reward, halve, add_returns], [episode])
    assert not batch.dropped
    assert [len(e) for e in batch.episodes] == [4, 4]
    clipped = before.clip(-0.5, 0.5)
    np.testing.assert_array_equal(np.concatenate([e.steps["reward"] for e in batch.episodes]), clipped)
    returns = [columns["returns"][0] for columns in batch.columns]
    np.testing.assert_allclose(returns, [clipped[:4].sum(), clipped[4:].sum()], rtol=1e-6)
    np.testing.assert_array_equal(episode.steps["reward"], before)


def test_drops_are_counted_by_name_and_later_connectors_do_not_see_them():
    batch = connect([halve, AtLeast(5), add_returns], [make_episode(8)])
    assert batch.dropped == {"AtLeast": 2}
    assert batch.episodes == ()
    assert not batch.columns


def test_connect_episodes():
    episodes = [make_episode(length, seed=length) for length in (4, 8, 12)]
    pipeline = TestPipeline("FnApiRunner")
    connected = pipeline | beam.Create(episodes) | ConnectEpisodes([AtLeast(8), halve], default_schema(episodes[0]))
    assert_that(connected.episodes | beam.Map(len), equal_to([4, 4, 6, 6]))
    result = pipeline.run()
    result.wait_until_finish()
    (counter,) = [c for c in result.metrics().query()["counters"] if c.key.metric.name.startswith("dropped_by_")]
    assert (counter.key.metric.name, counter.committed) == ("dropped_by_AtLeast", 1)


class Edits(EpisodeConnector):
    """Returns something other than episodes: always, or only for real data."""

    def __init__(self, value, always=True):
        self.value, self.always = value, always

    def edit(self, episode, fields):
        return self.value if self.always or not episode.key.of_probe else episode


class Adds(ColumnConnector):
    def add(self, episode, columns, fields):
        return None


class Fits(FittedConnector):
    fitted = False

    def accumulator(self):
        return self

    def add(self, batch):
        pass

    def finish(self):
        return None

    def fit(self, result):
        return None

    def transform(self, batch):
        return batch


def nothing(batch):
    return None


EDIT = "; return the episode, or [] to drop it"


@pytest.mark.parametrize(
    ("connector", "said"),
    [
        (Edits(None), "Edits.edit returned None in the dry run on zeros" + EDIT),
        (Edits([None]), "Edits.edit returned a value of type list in the dry run on zeros" + EDIT),
        (Adds(), "Adds.add returned None in the dry run on zeros; return a dict of the new columns, or {} for none"),
        (Fits(), "Fits.fit returned None in the dry run on zeros; return the fitted connector"),
        (nothing, "nothing returned None in the dry run on zeros; return the batch, edited by batch.replace(...)"),
    ],
)
def test_a_connector_with_a_wrong_result_is_named_before_any_work(connector, said):
    schema = Schema({"reward": Field("reward", "float32"), "is_first": Field("is_first", "bool")})
    with pytest.raises(UsageError) as caught:
        ConnectorRunner.from_configuration(Configuration((connector,)), schema)
    assert said in str(caught.value)


def test_errors_of_single_episodes_name_the_episode():
    episode = make_episode(3)
    with pytest.raises(RldsBeamError) as caught:
        connect([Edits(None, always=False)], [episode])
    assert f"Edits.edit returned None for {episode.key}{EDIT}" in str(caught.value)
    assert caught.value.exit_code == 1


def test_an_edit_drops_by_returning_an_empty_list():
    assert connect([Edits([])], [make_episode(3)]).dropped == {"Edits": 1}
