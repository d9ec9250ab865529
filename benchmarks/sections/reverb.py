"""The section `reverb`: TF-Agents and Reverb's own writers, all on real servers."""

from __future__ import annotations

from pathlib import Path

from measuring import Figure, Measurement, Sizes, at_least, best, make, ratios, script, table

KINDS = {
    "episodes": "whole episodes of 1,000 frames",
    "sequences": "sequences of 64, stride 1",
    "disjoint": "sequences of 64, stride 64",
}


def reverb(sizes: Sizes) -> list[Figure]:
    """Into Reverb: half-cheetah episodes, and step pairs unless stated otherwise."""
    data = make("state", sizes.of(1_000_000, 200_000))
    agents: list[Measurement] = []
    pushing = _pushing(data, sizes, agents)
    return [*pushing, *_dropin(data, sizes, best(agents)), *_writers(data, sizes)]


def _repeats(sizes: Sizes) -> int:
    """Fewer than elsewhere: most of the time goes into starting TensorFlow in every server and client."""
    return min(2, sizes.repeats)


def _pushing(data: Path, sizes: Sizes, agents: list[Measurement]) -> list[Figure]:
    """Measures the command and its peers; appends TF-Agents' runs to `agents`."""
    peer_steps, observer_data = sizes.of(4_000, 1_000), make("state", sizes.of(10_000, 2_000))
    runs: list[dict[str, float]] = []
    for _ in range(_repeats(sizes)):
        agents.append(script("peers/reverb_dropin.py", "agents", "push", data, "--steps", peer_steps))
        runs.append(script("reverb_push.py", data, "--servers=1", "--workers=1").content)
    observer = script("reverb_push.py", observer_data, "--workers=1", "--writer=observer").content
    peer = best(agents).rate
    ours = max(runs, key=lambda run: run["items_per_second"])
    rows = [
        ["TF-Agents' push_rlds_to_reverb", f"{peer:,.0f}", f"{best(agents).start_up:.1f}", ""],
        _row("push --writer=observer", observer, peer),
        _row("push, 1 worker, 1 server", ours, peer),
    ]
    title = f"step pairs into Reverb, {observer['steps']:,} to {ours['steps']:,} steps"
    table(title, ["", "pairs/s", "start-up s", "ratio"], *rows)
    return [
        at_least(
            "push, 1 worker, 1 server: times push_rlds_to_reverb",
            ours["items_per_second"] / peer,
            60,
            what="`push` pairs, one worker, one server",
            against="TF-Agents' `push_rlds_to_reverb`",
            peer="TF-Agents",
            front="Fill a Reverb table",
            runs=ratios([run["items_per_second"] for run in runs], agents),
        )
    ]


def _row(name: str, run: dict[str, float], peer: float) -> list[str]:
    rate = run["items_per_second"]
    return [name, f"{rate:,.0f}", f"{run['start_up']:.1f}", f"{rate / peer:,.0f}"]


def _dropin(data: Path, sizes: Sizes, agents: Measurement) -> list[Figure]:
    steps = {
        ("convert", "agents"): sizes.of(20_000, 5_000),
        ("convert", "ours"): sizes.of(500_000, 100_000),
        ("push", "ours"): sizes.of(400_000, 100_000),
    }
    rates = dict.fromkeys(steps, 0.0) | {("push", "agents"): agents.rate}
    for _ in range(_repeats(sizes)):
        for (what, who), count in steps.items():
            rate = script("peers/reverb_dropin.py", who, what, data, "--steps", count).rate
            rates[what, who] = max(rates[what, who], rate)
    rows, figures = [], []
    for what, name, target in (
        ("convert", "convert_rlds_to_trajectories(...).batch(256)", 30),
        ("push", "push_rlds_to_reverb", 50),
    ):
        ours, theirs = rates[what, "ours"], rates[what, "agents"]
        rows.append([name, f"{theirs:,.0f}", f"{ours:,.0f}", f"{ours / theirs:,.0f}"])
        figures.append(
            at_least(
                f"drop-in, {name}: times TF-Agents",
                ours / theirs,
                target,
                peer="TF-Agents",
                what=f"drop-in `{name.partition('(')[0]}`",
                against=f"TF-Agents' `{name}`",
            )
        )
    table("rlds_to_reverb, drop-in: steps/s", ["", "TF-Agents", "ours", "ratio"], *rows)
    return figures


def _writers(data: Path, sizes: Sizes) -> list[Figure]:
    figures = []
    for kind, name in KINDS.items():
        episodes = sizes.of(50 if kind == "sequences" else 1_000, 20)
        flags = ("--items", kind, "--episodes", episodes, "--repeats", _repeats(sizes))
        content = script("reverb_writers.py", data, *flags).content
        rates, frames = content["items_per_second"], content["frames_per_item"]
        ours = rates.pop("ours")
        rows = [["ours", f"{ours:,.0f}", f"{ours * frames:,.0f}", ""]]
        rows += [[who, f"{rate:,.1f}", f"{rate * frames:,.0f}", f"{ours / rate:,.1f}"] for who, rate in rates.items()]
        table(name, ["", "items/s", "frames/s", "ours: times this"], *rows)
        fastest, what = max(rates, key=lambda who: rates[who]), f"push {name}"
        title, against = f"{name}: times the next", f"{fastest}: the fastest of Reverb's own writers"
        peer = "Reverb's fastest writer"
        figures.append(at_least(title, ours / rates[fastest], 1, what=what, against=against, peer=peer))
        figures += [
            Figure(
                f"{name}: times {who}",
                ours / rate,
                what=what,
                against=who,
                peer=who.replace(", an item a row", " by rows"),
            )
            for who, rate in rates.items()
            if who != fastest
        ]
    return figures
