from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.formats.ros2.windows import align, grid

TIMES = st.lists(st.integers(0, 40), max_size=20)
AGES = st.one_of(st.none(), st.integers(0, 10))


@given(TIMES, st.dictionaries(st.sampled_from("abc"), TIMES, min_size=1), AGES)
def test_never_from_the_future_and_never_too_old(
    steps: list[int], topics: dict[str, list[int]], age: int | None
) -> None:
    streams = {name: np.sort(np.array(times, np.int64)) for name, times in topics.items()}
    frames = align(np.array(steps, np.int64), streams, dict.fromkeys(streams, age))
    kept, lacking = [], dict.fromkeys(streams, 0)
    for step in sorted(set(steps)):
        best = {name: [i for i, at in enumerate(times) if at <= step] for name, times in streams.items()}
        ok = {
            name: bool(all_) and (age is None or step - streams[name][all_[-1]] <= age) for name, all_ in best.items()
        }
        for name, fits in ok.items():
            lacking[name] += not fits
        if all(ok.values()):
            kept.append((step, {name: all_[-1] for name, all_ in best.items()}))
    assert frames.times.tolist() == [step for step, _ in kept]
    for name, chosen in frames.chosen.items():
        assert chosen.tolist() == [best[name] for _, best in kept]
        assert (streams[name][chosen] <= frames.times).all()
    assert frames.lacking == lacking
    assert frames.dropped == len(set(steps)) - len(kept)


@given(st.integers(0, 2**61), st.integers(0, 10**12), st.floats(0.01, 1000))
def test_grid(first: int, length: int, rate: float) -> None:
    if length * rate / 1e9 > 10_000:
        return
    times = grid(first, first + length, rate)
    assert times[0] == first and times[-1] <= first + length + 1
    rounded = round(rate * 1e6) / 1e6
    np.testing.assert_allclose(times - first, np.arange(len(times)) * 1e9 / rounded, atol=1.0)
    assert len(times) - 1 <= length * rounded / 1e9 < len(times) + 1e-6
