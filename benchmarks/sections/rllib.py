"""RLlib, in the environment of `make test-peers`: its connectors and ours, its offline path and our columns."""

from __future__ import annotations

import json

from measuring import HERE, Figure, Sizes, at_least, command, table

PYTHON = HERE.parent / ".venv-peers-rllib" / "bin" / "python"


def rllib(sizes: Sizes) -> list[Figure]:
    """The default learner pipeline with sequences and states; and iterations of MARWIL and BC."""
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
    figures, rows = (
        [
            at_least(
                "connectors: times RLlib",
                ratio,
                20,
                what="the learner pipeline, sequences of 20",
                peer="RLlib's connectors",
                against="RLlib's default connectors, recorded states, episodes of 200 steps in memory",
                front="Build training columns",
            )
        ],
        [],
    )
    # Not MARWIL with a recurrent model: with RLlib's own offline path, the loss does not stay finite.
    for algorithm, recurrent, target in (("marwil", False, 3), ("bc", False, None), ("bc", True, None)):
        name = f"{algorithm.upper()}{', recurrent' * recurrent}"
        flags = ("--algorithm", algorithm, "--episodes", sizes.of(32, 16), "--epochs", sizes.of(2, 1))
        found = _run("peers/rllib_training.py", *flags, *(["--recurrent"] * recurrent))
        own, fed = (found[side]["seconds_per_iteration"] for side in ("rllib", "ours"))
        start = [found[side]["start_up"] for side in ("rllib", "ours")]
        rows.append([name, f"{own * 1e3:.1f}", f"{fed * 1e3:.1f}", f"{own / fed:.1f}", *(f"{s:.1f}" for s in start)])
        figures.append(
            Figure(
                f"training, {name}: times RLlib's own path",
                own / fed,
                target,
                peer="RLlib",
                what=f"an iteration of {name} from columns",
                against="RLlib's own path, from recorded episodes",
            )
        )
    head = ["", "own path, ms", "our columns, ms", "ratio", "start-up s, own", "ours"]
    table("an iteration of training (a batch of 500 steps, or 25 sequences of 20)", head, *rows)
    return figures


def _run(name: str, *flags: object) -> dict[str, dict[str, float]]:
    return json.loads(command([PYTHON, HERE / name, *flags])[0].splitlines()[-1])
