"""The order of batches: a permutation for each epoch, split among ranks, resumed anywhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.datasets.order import Plan, Sampler

SEEDS = st.integers(0, 2**64 - 1)


def plan(**changes: Any) -> Plan:
    usual = Plan((10,), 2, shuffle=True, seed=0, epochs=1, rank=0, ranks=1, drop_last=False)
    return dataclasses.replace(usual, **changes)


def drawn(made: Plan, most: int = 1000) -> list[np.ndarray]:
    sampler = Sampler(made)
    batches = []
    while len(batches) < most and (one := sampler.draw()) is not None:
        batches.append(one[0])
    return batches


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 3), st.booleans())
def test_an_epoch_has_each_row_once(count: int, batch_size: int, epochs: int, shuffle: bool) -> None:
    batches = drawn(plan(counts=(count,), batch_size=batch_size, epochs=epochs, shuffle=shuffle))
    rows = np.concatenate(batches).reshape(epochs, count)
    assert (np.sort(rows, axis=1) == np.arange(count)).all()
    assert all(len(batch) == batch_size for i, batch in enumerate(batches) if (i + 1) % -(-count // batch_size))
    if not shuffle:
        assert (rows == np.arange(count)).all()


def test_epochs_and_seeds_have_different_orders() -> None:
    first, second = np.concatenate(drawn(plan(counts=(100,), epochs=2))).reshape(2, 100)
    other = np.concatenate(drawn(plan(counts=(100,), seed=1)))
    assert (first != second).any() and (first != other).any()
    assert np.concatenate(drawn(plan(counts=(100,), seed=-1))).tolist() != first.tolist()


@given(st.integers(12, 300), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2))
def test_ranks_share_each_global_batch(count: int, batch_size: int, ranks: int, epochs: int) -> None:
    common = {"counts": (count,), "epochs": epochs, "drop_last": True}
    parts = [drawn(plan(**common, batch_size=batch_size, rank=rank, ranks=ranks)) for rank in range(ranks)]
    whole = drawn(plan(**common, batch_size=batch_size * ranks))
    assert [np.concatenate(batch).tolist() for batch in zip(*parts, strict=True)] == [rows.tolist() for rows in whole]


@given(st.integers(1, 120), st.integers(1, 9), st.integers(1, 8), st.integers(1, 3), st.booleans(), SEEDS, st.data())
def test_all_ranks_together_have_each_row_once(
    count: int, batch_size: int, ranks: int, epochs: int, shuffle: bool, seed: int, data: Any
) -> None:
    """With drop_last=False, also if the run is stopped after any global batch and resumed with other ranks."""
    count = max(count, ranks)
    common: dict[str, Any] = {"counts": (count,), "epochs": epochs, "shuffle": shuffle, "seed": seed}
    plans = [plan(**common, batch_size=batch_size, rank=rank, ranks=ranks) for rank in range(ranks)]
    parts = [drawn(one) for one in plans]
    rows = np.sort(np.concatenate([batch for part in parts for batch in part]))
    np.testing.assert_array_equal(rows, np.repeat(np.arange(count), epochs))
    last = count % (batch_size * ranks) or batch_size * ranks
    for one, part in zip(plans, parts, strict=True):
        sizes = [len(batch) for batch in part]
        assert max(sizes) <= batch_size and set(sizes) <= {batch_size, last // ranks, last // ranks + 1} - {0}
        assert len(part) == one.count_after(0)
        if last >= ranks:
            assert len(part) == one.batches  # the same for all ranks
    whole = drawn(plan(**common, batch_size=batch_size * ranks))
    stop = data.draw(st.integers(0, len(whole)))
    others = data.draw(st.sampled_from([n for n in range(1, count + 1) if batch_size * ranks % n == 0]))
    after = []
    for rank in range(others):
        resumed = plan(**common, batch_size=batch_size * ranks // others, rank=rank, ranks=others)
        sampler = Sampler(resumed)
        sampler.restore({"batches": stop, "used": [0]})
        after.append([rows for rows, _ in iter(sampler.draw, None)])
        assert len(after[-1]) == resumed.count_after(stop)
    left = [row for part in after for batch in part for row in batch.tolist()]
    assert sorted(left) == sorted(row for batch in whole[stop:] for row in batch.tolist())


@given(st.sampled_from([None, (0.7, 0.3), (1.0, 2.0, 5.0)]), st.integers(0, 60), st.booleans())
def test_a_restored_sampler_continues(weights: Any, before: int, shuffle: bool) -> None:
    counts = (50,) if weights is None else (50, 7, 20)[: len(weights)]
    made = plan(counts=counts, weights=weights, epochs=None, batch_size=7, drop_last=True, shuffle=shuffle)
    sampler = Sampler(made)
    for _ in range(before):
        sampler.draw()
    restored = Sampler(made)
    restored.restore(sampler.state())
    for _ in range(20):
        one, other = sampler.draw(), restored.draw()
        assert one is not None and other is not None
        assert [part.tolist() for part in one] == [part.tolist() for part in other]


def test_a_mixture_has_its_weights_and_reads_each_dataset_completely() -> None:
    made = plan(counts=(100, 10), weights=(3.0, 1.0), epochs=None, batch_size=20, drop_last=True)
    sampler, rows = Sampler(made), {0: [], 1: []}
    for _ in range(200):
        one = sampler.draw()
        assert one is not None
        for dataset, row in zip(one[1].tolist(), one[0].tolist(), strict=True):
            rows[dataset].append(row)
    assert 0.7 < len(rows[0]) / 4000 < 0.8
    for dataset, count in enumerate(made.counts):
        whole = len(rows[dataset]) // count * count
        epochs = np.sort(np.array(rows[dataset][:whole]).reshape(-1, count), axis=1)
        assert (epochs == np.arange(count)).all()
