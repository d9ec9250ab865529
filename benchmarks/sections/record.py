"""Recording: SCOPE-RL's `obtain_episodes` and ours on one core; the command with one worker and with two."""

from __future__ import annotations

import json
import shutil

from measuring import COMMAND, DATA, HERE, Figure, Measurement, Sizes, at_least, best, command, ratios, table

PYTHON = HERE.parent / ".venv-peers-scope_rl" / "bin" / "python"
POLICY = "EpsilonGreedyHead(record_policy:q_function, epsilon=0.3)"


def record(sizes: Sizes) -> list[Figure]:
    """CartPole with an epsilon-greedy head over a small Q network."""
    return [*_beside_scope_rl(sizes), *_workers(sizes)]


def _beside_scope_rl(sizes: Sizes) -> list[Figure]:
    if not PYTHON.exists():
        print(f"\nrecord: SCOPE-RL is skipped, there is no {PYTHON} (make test-peers makes it)")
        return []
    flags = ("--episodes", sizes.of(200, 20), "--repeats", sizes.of(3, 1))
    found = json.loads(command([PYTHON, HERE / "peers/record_peer.py", *flags])[0].splitlines()[-1])
    times = {name: one["ours"] / one["scope_rl"] for name, one in found.items()}
    table(
        "obtain_episodes: CartPole, epsilon-greedy over a Q network of 64 units, steps a second of one core",
        ["", "SCOPE-RL", "ours, written as RLDS and read back", "ratio"],
        *([n, f"{one['scope_rl']:,.0f}", f"{one['ours']:,.0f}", f"{times[n]:.1f}"] for n, one in found.items()),
    )
    return [
        at_least(
            "record, a trained agent: times SCOPE-RL",
            times["trained"],
            5,
            what="record CartPole, a trained agent",
            against="SCOPE-RL's `obtain_episodes`",
            peer="SCOPE-RL",
            front="Record with propensities",
        ),
        Figure(
            "record, episodes of a dozen steps: times SCOPE-RL",
            times["untrained"],
            what="record CartPole, episodes of a dozen steps",
            against="SCOPE-RL's `obtain_episodes`",
            peer="SCOPE-RL",
        ),
    ]


def _workers(sizes: Sizes) -> list[Figure]:
    runs: dict[int, list[Measurement]] = {1: [], 2: []}
    for _ in range(sizes.repeats):
        for count, found in runs.items():
            found.append(_command(sizes.of(4000, 1000), count))
    one, two = best(runs[1]), best(runs[2])
    table(
        f"rlds-beam record: {one.content['steps']:,} steps of CartPole, a Q network in numpy",
        ["workers", "steps/s", "at work s", "start-up s", "ratio"],
        ["1", f"{one.rate:,.0f}", f"{one.working:.2f}", f"{one.start_up:.1f}", ""],
        ["2", f"{two.rate:,.0f}", f"{two.working:.2f}", f"{two.start_up:.1f}", f"{two.rate / one.rate:.2f}"],
    )
    each = ratios(runs[2], runs[1])
    what = "`record` with two workers"
    return [at_least("record, two workers: times one", two.rate / one.rate, 1.7, what=what, against="one", runs=each)]


def _command(episodes: int, workers: int) -> Measurement:
    output = DATA / "recorded"
    shutil.rmtree(output, ignore_errors=True)
    shutil.copy(HERE / "peers/record_policy.py", DATA)  # the current directory of a command
    flags = ["--env=gymnasium:CartPole-v1", f"--policy={POLICY}", f"--episodes={episodes}", f"--workers={workers}"]
    content = json.loads(command([COMMAND, "record", output, *flags, "--json"])[0])
    working = content["working_seconds"]
    return Measurement(content, content["steps_per_second"], working, content["seconds"] - working)
