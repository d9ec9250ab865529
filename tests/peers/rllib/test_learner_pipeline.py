"""Our learner connectors give the same columns as RLlib's connectors of the same names, on generated episodes."""

from __future__ import annotations

import numpy as np
import rllib_peer as peer
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.rllib.connectors import common, learner

from rlds_beam import connectors as ours

FEW = settings(peer.QUICK, max_examples=40)
LENGTHS = st.integers(1, 6)


def their_pieces(*names: str, one_ts: bool = False, tensors: bool = False) -> list:
    """RLlib's default learner pipeline, with extra pieces for the columns in `names`."""
    return [
        *([learner.AddOneTsToEpisodesAndTruncate()] if one_ts else []),
        common.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        *([learner.AddNextObservationsFromEpisodesToTrainBatch()] if "new_obs" in names else []),
        learner.AddColumnsFromEpisodesToTrainBatch(),
        *([learner.ComputeReturnsToGo(gamma=0.9)] if "returns_to_go" in names else []),
        common.AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        common.AddStatesFromEpisodesToBatch(as_learner_connector=True),
        common.BatchIndividualItems(multi_agent=False),
        *([common.NumpyToTensor(as_learner_connector=True)] if tensors else []),
    ]


def our_pieces(*names: str, max_seq_len: int = 0, one_ts: bool = False, tensors: bool = False) -> list:
    """Our pipeline; needs `max_seq_len` if the module has state."""
    states = ours.AddStatesFromEpisodesToBatch(initial_state=peer.INITIAL_STATE)
    return [
        *([ours.AddOneTsToEpisodesAndTruncate()] if one_ts else []),
        ours.AddObservationsFromEpisodesToBatch(),
        *([ours.AddNextObservationsFromEpisodesToTrainBatch()] if "new_obs" in names else []),
        ours.AddColumnsFromEpisodesToTrainBatch(),
        *([ours.ComputeReturnsToGo(gamma=0.9)] if "returns_to_go" in names else []),
        *([ours.AddTimeDimToBatchAndZeroPad(max_seq_len), states] if max_seq_len else []),
        ours.BatchIndividualItems(),
        *([ours.NumpyToTensor()] if tensors else []),
    ]


@given(peer.recordings(), st.booleans())
@FEW
def test_stateless(episodes, tensors):
    theirs = peer.their_batch(
        their_pieces("new_obs", tensors=tensors), [e.theirs() for e in episodes], peer.module(peer.Stateless)
    )
    made = peer.our_batch(our_pieces("new_obs", tensors=tensors), [e.ours() for e in episodes])
    peer.assert_equal(made["default_policy"], theirs["default_policy"])


@given(peer.recordings(), LENGTHS, st.booleans())
@FEW
def test_stateful(episodes, max_seq_len, tensors):
    module = peer.module(peer.Recurrent, max_seq_len)
    theirs = peer.their_batch(their_pieces("new_obs", tensors=tensors), [e.theirs() for e in episodes], module)
    pieces = our_pieces("new_obs", max_seq_len=max_seq_len, tensors=tensors)
    made = peer.our_batch(pieces, [e.ours() for e in episodes])
    peer.assert_equal(made["default_policy"], theirs["default_policy"])


@given(peer.recordings(nested=False))
@FEW
def test_returns_to_go(episodes):
    theirs = peer.their_batch(
        their_pieces("returns_to_go"), [e.theirs() for e in episodes], peer.module(peer.Stateless)
    )
    made = peer.our_batch(our_pieces("returns_to_go"), [e.ours() for e in episodes])
    wanted = theirs["default_policy"]["returns_to_go"]
    np.testing.assert_allclose(made["default_policy"]["returns_to_go"], wanted, rtol=1e-5, atol=1e-5)


@given(peer.recordings(), LENGTHS | st.none())
@FEW
def test_one_timestep_more(episodes, max_seq_len):
    module = peer.module(peer.Recurrent if max_seq_len else peer.Stateless, max_seq_len or 20)
    theirs = peer.their_batch(their_pieces(one_ts=True), [e.theirs() for e in episodes], module)["default_policy"]
    pieces = our_pieces(max_seq_len=max_seq_len or 0, one_ts=True)
    made = peer.our_batch(pieces, [e.ours() for e in episodes])["default_policy"]
    # At the added step, RLlib repeats the model output of the step before; ours is that of the last RLDS step.
    for batch in (theirs, made):
        batch["action_logp"] = np.where(batch["loss_mask"], batch["action_logp"], 0)
    if max_seq_len:
        seq_lens = theirs.pop("seq_lens")
        added = np.concatenate([_last_row(len(e) + 1, max_seq_len) for e in episodes])
        np.testing.assert_array_equal(made.pop("seq_lens"), seq_lens - added)  # ours does not count the added one
    peer.assert_equal(made, theirs)


def _last_row(rows: int, length: int) -> np.ndarray:
    """1 for the sequence that holds the last of these rows, 0 for those before it."""
    count = -(-rows // length)
    return (np.arange(count) == count - 1).astype(int)


@given(peer.recordings(), LENGTHS | st.none(), st.sampled_from((0.0, 0.5, 0.9, 1.0)), st.sampled_from((0.0, 0.6, 1.0)))
@FEW
def test_advantages(episodes, max_seq_len, gamma, lambda_):
    kind = peer.Recurrent if max_seq_len else peer.Stateless
    pieces = [
        *their_pieces(one_ts=True, tensors=True),
        learner.GeneralAdvantageEstimation(gamma=gamma, lambda_=lambda_),
    ]
    theirs = peer.their_batch(pieces, [e.theirs() for e in episodes], peer.module(kind, max_seq_len or 20))
    estimation = ours.GeneralAdvantageEstimation(gamma=gamma, lambda_=lambda_)
    recorded = [e.ours().with_columns({"vf_preds": e.values()}) for e in episodes]
    made = peer.our_batch([estimation, *our_pieces(max_seq_len=max_seq_len or 0, one_ts=False)], recorded)
    made, theirs = made["default_policy"], theirs["default_policy"]
    # Ours has no row for the step that RLlib adds, where its loss_mask is false.
    valid = made.get("loss_mask", np.ones(len(made["advantages"]), bool)), theirs["loss_mask"]
    np.testing.assert_allclose(made["value_targets"][valid[0]], theirs["value_targets"][valid[1]], rtol=1e-4, atol=1e-4)
    mean, std = _with_added_steps(theirs, [e.values() for e in episodes], theirs["loss_mask"])
    standardised = (made["advantages"][valid[0]] - mean) / max(1e-4, std)
    np.testing.assert_allclose(standardised, theirs["advantages"][valid[1]], rtol=1e-3, atol=1e-3)


def _with_added_steps(theirs: dict, values: list, mask: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of RLlib's advantages, which include the added steps."""
    targets = theirs["value_targets"]
    if mask.ndim > 1:
        targets = np.concatenate([row[:n] for row, n in zip(targets, theirs["seq_lens"], strict=True)])
    advantages = targets - np.concatenate(values)
    return float(advantages.mean()), float(advantages.std())
