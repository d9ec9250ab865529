"""RLlib's connectors and ours, in the environment of `make test-peers`."""

from __future__ import annotations

import json

from measuring import HERE, Figure, Sizes, at_least, command, table

PYTHON = HERE.parent / ".venv-peers-rllib" / "bin" / "python"


def rllib(sizes: Sizes) -> list[Figure]:
    """The default learner pipeline with sequences and states."""
    if not PYTHON.exists():
        print(f"\nrllib: skipped, there is no {PYTHON} (make test-peers makes it)")
        return []
    flags = ("--episodes", sizes.of(100, 10), "--repeats", sizes.of(5, 1))
    rates = {name: one["steps_per_second"] for name, one in _run("peers/rllib_connectors.py", *flags).items()}
    ratio = rates["ours"] / rates["rllib"]
    table(
        "the default learner pipeline, max_seq_len=20, recorded states, episodes of 200 steps in memory",
        ["", "steps/s", "ratio"],
        ["RLlib", f"{rates['rllib']:,.0f}", ""],
        ["ours", f"{rates['ours']:,.0f}", f"{ratio:.1f}"],
    )
    return [
        at_least(
            "connectors: times RLlib",
            ratio,
            20,
            what="the learner pipeline, sequences of 20",
            peer="RLlib's connectors",
            against="RLlib's default connectors, recorded states, episodes of 200 steps in memory",
            front="Build training columns",
        )
    ]


def _run(name: str, *flags: object) -> dict[str, dict[str, float]]:
    return json.loads(command([PYTHON, HERE / name, *flags])[0].splitlines()[-1])
