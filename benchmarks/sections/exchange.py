"""`convert` to other programs' formats against `convert --items=frames`, which reads and checks the same data."""

from __future__ import annotations

from measuring import Figure, Measurement, Sizes, at_least, below, convert, make, table

FORMATS = ("numpy", "scope_rl")


def exchange(sizes: Sizes) -> list[Figure]:
    """Half-cheetah episodes in each format, by one worker.

    Parts are merged after the ranges are done, which working time does not include. So the time a run takes outside
    of its work, beyond that of `frames`, counts as work.
    """
    steps = sizes.of(1_000_000, 200_000)
    data, small = make("state", steps), make("state", steps // 5)
    runs: dict[str, list[Measurement]] = {}
    for _ in range(sizes.repeats):
        runs.setdefault("frames", []).append(convert(data, "--items=frames", "--workers=1"))
        for name in FORMATS:
            runs.setdefault(name, []).append(convert(data, f"--to={name}", "--workers=1"))
        runs.setdefault("small", []).append(convert(small, "--to=numpy", "--workers=1"))
    found = {name: min(measured, key=lambda run: run.working + run.start_up) for name, measured in runs.items()}
    frames = found["frames"]
    rates = {
        name: steps / (found[name].working + max(0.0, found[name].start_up - frames.start_up))
        for name in ("frames", *FORMATS)
    }
    table(
        f"exchange, half-cheetah, {steps:,} steps, one worker, merging included",
        ["", "steps/s", "of frames", "peak MB"],
        *(
            [name, f"{rate:,.0f}", f"{rate / rates['frames']:.2f}", f"{found[name].peak_mb:.0f}"]
            for name, rate in rates.items()
        ),
    )
    return [
        *(
            at_least(
                f"exchange, {name}: of frames",
                rates[name] / rates["frames"],
                0.5,
                what=f"`convert --to={name}`, half-cheetah, merging included",
                against="`convert --items=frames`",
            )
            for name in FORMATS
        ),
        below(
            "exchange, numpy, memory: times that of a fifth",
            found["numpy"].peak_mb / found["small"].peak_mb,
            1.1,
            what=f"memory of `convert --to=numpy`, {steps:,} steps",
            against=f"{steps // 5:,} steps",
        ),
    ]
