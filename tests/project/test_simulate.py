"""The simulation of many workers: it drives the real planner, and its schedules are plausible."""

import itertools
import sys

import numpy as np
import pytest
from checkout import ROOT
from hypothesis import given
from hypothesis import strategies as st

RATES = ROOT / "benchmarks" / "rates"


@pytest.fixture(scope="module", autouse=True)
def benchmarks():
    """Makes the scripts importable by name, as when one runs."""
    sys.path.insert(0, str(RATES))
    yield
    sys.path.remove(str(RATES))


@pytest.fixture(scope="module")
def simulate(benchmarks):
    import simulate

    return simulate


@pytest.fixture(scope="module")
def scheduling(benchmarks):
    import scheduling

    return scheduling


COSTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=60).map(np.array)
SPEEDS = st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=12).map(np.array)
ASSIGNMENTS = ["taken", "dealt", "drawn"]
EPSILON = 1 + 1e-9


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@given(costs=COSTS, speeds=SPEEDS, seed=st.integers(0, 9))
def test_each_range_is_done_once_and_takes_its_time(scheduling, assignment, costs, speeds, seed):
    schedule = scheduling.ASSIGNMENTS[assignment](costs, speeds, seed)
    assert len(schedule.owners) == len(costs)
    done = [costs[schedule.owners == worker].sum() / speed for worker, speed in enumerate(speeds)]
    np.testing.assert_allclose(schedule.finishes, done)
    assert schedule.makespan * EPSILON >= scheduling.ideal(costs, speeds)
    assert schedule.makespan * EPSILON >= costs.max() / speeds.max()
    assert 0 < schedule.utilization <= EPSILON and 0 <= schedule.tail <= 1


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@given(costs=COSTS)
def test_one_worker_takes_the_sum(scheduling, assignment, costs):
    schedule = scheduling.ASSIGNMENTS[assignment](costs, np.ones(1), 0)
    assert schedule.makespan == pytest.approx(costs.sum())
    assert schedule.utilization == pytest.approx(1)


@given(costs=COSTS, speeds=SPEEDS)
def test_no_worker_is_idle_while_work_remains(scheduling, costs, speeds):
    """The last range began when all workers were busy: Graham's bound."""
    schedule = scheduling.taken(costs, speeds)
    assert schedule.makespan <= (scheduling.ideal(costs, speeds) + costs.max() / speeds.min()) * EPSILON


@given(costs=COSTS, workers=st.integers(1, 12))
def test_another_worker_never_costs_time(scheduling, costs, workers):
    fewer, more = (scheduling.taken(costs, np.ones(n)).makespan for n in (workers, workers + 1))
    assert more <= fewer * EPSILON


@given(costs=COSTS, speeds=SPEEDS)
def test_costlier_ranges_take_longer(scheduling, costs, speeds):
    for assign in (scheduling.taken, scheduling.dealt):
        assert assign(2 * costs, speeds).makespan == pytest.approx(2 * assign(costs, speeds).makespan)


@given(costs=COSTS, workers=st.integers(1, 12), share=st.floats(0, 2))
def test_a_shared_limit_slows_all_workers_and_loses_nothing(scheduling, costs, workers, share):
    free = scheduling.taken(costs, np.ones(workers))
    limited = scheduling.shared(free, share)
    assert (limited.finishes * EPSILON >= free.finishes).all()
    assert (limited.owners == free.owners).all()
    assert limited.makespan * EPSILON >= scheduling.ideal(costs, np.ones(workers), share)
    if share * workers <= 1:
        np.testing.assert_allclose(limited.finishes, free.finishes)
    if share >= 1:  # then one worker uses all of it
        assert limited.makespan == pytest.approx(costs.sum() * share)


def test_by_hand(scheduling):
    costs = np.array([4.0, 1, 1, 1, 1])
    assert scheduling.taken(costs, np.ones(2)).finishes.tolist() == [4, 4]
    assert scheduling.dealt(costs, np.ones(2)).finishes.tolist() == [6, 2]
    slow = scheduling.taken(np.array([1.0, 1, 1]), np.array([1, 0.5]))
    assert slow.owners.tolist() == [0, 1, 0] and slow.finishes.tolist() == [2, 2]
    # Two share the capacity of one and a half; when the first is done, the other runs at full speed.
    schedule = scheduling.shared(scheduling.dealt(np.array([2.0, 4.0]), np.ones(2)), 0.75)
    assert schedule.finishes.tolist() == [3, 5]


@given(
    sizes=st.lists(st.integers(1, 1 << 30), min_size=1, max_size=20),
    shards=st.one_of(st.none(), st.integers(1, 40)),
    whole=st.booleans(),
)
def test_the_plan_is_the_real_one_and_holds_every_byte_once(simulate, sizes, shards, whole):
    from rlds_beam.reading.plan import plan_ranges

    if shards is not None and shards > sum(sizes):
        shards = None
    with simulate.dataset(sizes) as source:
        ranges = plan_ranges(source, None if whole else shards, whole_shards=whole, starts=simulate.unchanged)
    seen = {i: [] for i in range(len(sizes))}
    for work in ranges:
        for segment in work.segments:
            seen[segment.shard.index].append((segment.start, segment.stop or segment.shard.size))
    for index, size in enumerate(sizes):
        edges = sorted(seen[index])
        assert edges[0][0] == 0 and edges[-1][1] == size
        assert all(left[1] == right[0] for left, right in itertools.pairwise(edges))
    assert simulate.sizes_of(ranges).sum() == sum(sizes)


@given(sizes=st.lists(st.integers(1, 1 << 40), min_size=1, max_size=30), shards=st.integers(1, 200))
def test_ranges_are_equal_to_the_byte(simulate, sizes, shards):
    from rlds_beam.reading.plan import plan_ranges

    shards, total = min(shards, sum(sizes)), sum(sizes)
    with simulate.dataset(sizes) as source:
        bytes_of = simulate.sizes_of(plan_ranges(source, shards, starts=simulate.unchanged))
    assert set(bytes_of) <= {total // shards, -(-total // shards)}


def test_the_simulation_plans_with_the_planner(simulate, monkeypatch):
    calls = []
    real = simulate.plan_ranges
    monkeypatch.setattr(simulate, "plan_ranges", lambda *a, **k: calls.append(k) or real(*a, **k))
    assert real.__module__ == "rlds_beam.reading.plan"
    with simulate.dataset([1 << 30, 1 << 20]) as source:
        made = simulate.plans(source, [64])
    assert len(calls) == 3 and [len(ranges) for ranges in made.values()] == [2, 33, 64]


def test_sizes_are_skewed_and_add_up(simulate):
    sizes = simulate.shard_sizes(10_000, 9e12, 1.5, seed=3)
    assert sizes == simulate.shard_sizes(10_000, 9e12, 1.5, seed=3)
    assert sum(sizes) == pytest.approx(9e12, rel=1e-6) and min(sizes) >= 1
    assert max(sizes) > 20 * sum(sizes) / len(sizes)
    assert len(set(simulate.shard_sizes(7, 700, 0))) == 1


def test_splitting_helps_if_shards_are_skewed(simulate):
    costs = simulate.Costs(0.01, 0.0, 1e-7)
    with simulate.dataset(simulate.shard_sizes(200, 2e12, 1.5)) as source:
        made = {name: costs.of(ranges) for name, ranges in simulate.plans(source, []).items()}
    shards, planned = made.values()
    assert shards.sum() - 0.01 * len(shards) == pytest.approx(planned.sum() - 0.01 * len(planned))
    cluster = simulate.Cluster(100)
    assert cluster.run(planned, "taken").balance < 1.2 < 3 < cluster.run(shards, "taken").balance
    assert cluster.run(planned, "taken").balance <= cluster.run(planned, "dealt").balance
    assert cluster.run(planned, "taken").balance == cluster.run(planned, "taken").balance


def test_the_network_bounds_the_rate(simulate):
    """A hundred workers that could each use a fiftieth of the bandwidth take twice as long."""
    costs = np.full(10_000, 1.0)
    free = simulate.Cluster(100, slow=0, noise=0).run(costs, "taken")
    bound = simulate.Cluster(100, slow=0, noise=0, share=1 / 50).run(costs, "taken")
    assert bound.schedule.makespan == pytest.approx(2 * free.schedule.makespan)
    assert bound.balance == pytest.approx(1)


def test_shared_resources_are_counted_in_their_units(simulate):
    from cost import Push, Stages

    stages = Stages(1000, 3000, 0, {"whole": 10, **dict.fromkeys(("read", "decode", "check", "frames"), 1)})
    assert stages.seconds_per_byte == pytest.approx(1e-8) and stages.growth == 3  # 100 MB/s in, 300 MB/s out
    assert simulate.share_of(stages, None, 4e9, 0) == pytest.approx(0.1)
    push = Push(client_us=6, server_us=5, server_bytes=0, wire_bytes=3000)  # 100,000 pairs/s a worker
    assert simulate.share_of(stages, push, 0, 5) == pytest.approx(0.1)
    assert simulate.share_of(stages, push, 800e6, 5) == pytest.approx(0.5)


def test_all_measured_rates_exist(simulate):
    from cost import MEASURED, STAGES, Rates, core_seconds, range_count

    rates = Rates.read(MEASURED)
    for stages in rates.stages.values():
        assert stages.input_bytes > 0 and all(stages.cpu_us[name] > 0 for name in (*STAGES, "whole", "duplicates"))
        assert core_seconds(stages, rates, 2e12) > core_seconds(stages, rates, 1e12) > 1e12 * stages.seconds_per_byte
    assert range_count(1) == 1 and range_count(33 << 20) == 2 and range_count(9e12) == 16384


def test_a_thousand_workers_over_a_hundred_thousand_ranges(simulate):
    costs = np.random.default_rng(0).lognormal(0, 1, 100_000)
    outcome = simulate.Cluster(1000, slow=0, noise=0).run(costs, "taken")
    assert outcome.ideal <= outcome.schedule.makespan <= outcome.ideal + costs.max()
