"""Connectors fitted to the whole dataset, compared with RLlib's, which use running statistics."""

from __future__ import annotations

import numpy as np
import rllib_peer as peer
from hypothesis import given, settings
from ray.rllib.connectors import common, env_to_module, learner

from rlds_beam import connectors as ours
from rlds_beam.connectors import Batch

FEW = settings(peer.QUICK, max_examples=25)


@given(peer.recordings(nested=False))
@FEW
def test_the_filter_equals_rllibs_after_it_has_seen_all_data(episodes):
    theirs = env_to_module.MeanStdFilter()
    theirs.input_action_space, theirs.input_observation_space = peer.ACTION, peer.OBSERVATION
    _filtered(theirs, episodes)
    theirs._update_stats = False
    wanted = _filtered(theirs, episodes)
    batches = [Batch((e.ours(),)) for e in episodes]
    accumulator = ours.MeanStdFilter().accumulator()
    for batch in batches:
        accumulator.add(batch)
    fitted = ours.MeanStdFilter().fit(accumulator.finish())
    for batch, observations in zip(batches, wanted, strict=True):
        (made,) = fitted(batch).episodes
        np.testing.assert_allclose(made.steps["observation"], observations, rtol=1e-4, atol=1e-4)


def _filtered(piece: env_to_module.MeanStdFilter, episodes: list[peer.Recorded]) -> list[np.ndarray]:
    """Filters each observation of each episode."""
    made = []
    for recorded in episodes:
        rows = []
        for t in range(len(recorded) + 1):
            episode = recorded.theirs(as_numpy=False, stop=t)
            piece(rl_module=None, batch={}, episodes=[episode], shared_data={}, explore=False)
            rows.append(episode.get_observations(-1))
        made.append(np.stack(rows))
    return made


@given(peer.recordings(nested=False))
@FEW
def test_advantages_are_standardized_as_in_rllib_but_without_its_added_timesteps(episodes):
    pieces = [
        learner.AddOneTsToEpisodesAndTruncate(),
        common.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        learner.AddColumnsFromEpisodesToTrainBatch(),
        common.BatchIndividualItems(multi_agent=False),
        common.NumpyToTensor(as_learner_connector=True),
        learner.GeneralAdvantageEstimation(gamma=0.9, lambda_=0.5),
    ]
    theirs = peer.their_batch(pieces, [e.theirs() for e in episodes], peer.module(peer.Stateless))["default_policy"]
    valid = theirs["advantages"][theirs["loss_mask"]].astype(np.float64)
    estimation = ours.GeneralAdvantageEstimation(gamma=0.9, lambda_=0.5)
    batches = [estimation(Batch((e.ours().with_columns({"vf_preds": e.values()}),))) for e in episodes]
    accumulator = ours.StandardizeAdvantages().accumulator()
    for batch in batches:
        accumulator.add(batch)
    fitted = ours.StandardizeAdvantages().fit(accumulator.finish())
    made = np.concatenate([fitted(batch).columns[0]["advantages"] for batch in batches])
    if valid.std() > 1e-3:  # otherwise RLlib loses digits
        np.testing.assert_allclose(made, (valid - valid.mean()) / valid.std(), rtol=1e-2, atol=1e-3)
