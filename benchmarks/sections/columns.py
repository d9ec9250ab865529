"""`convert --to=columns` against `convert --items=frames`, which reads and checks the same data."""

from __future__ import annotations

from measuring import DATA, Figure, Measurement, Sizes, at_least, below, best, convert, make, ratios, table

FORMATS = ("tfrecord", "array_record", "parquet")
CONNECTORS = """
- AddObservationsFromEpisodesToBatch
- AddColumnsFromEpisodesToTrainBatch
- AddTimeDimToBatchAndZeroPad: {max_seq_len: 20}
- BatchIndividualItems
"""


def columns(sizes: Sizes) -> list[Figure]:
    """Half-cheetah episodes into sequences of 20 transitions, in each file format."""
    steps = sizes.of(1_000_000, 200_000)
    data, more, small = make("state", steps), make("state", 8 * steps, files=8), make("state", steps // 5)
    (DATA / "columns.yaml").write_text(CONNECTORS)
    connectors = f"--connectors={DATA / 'columns.yaml'}"
    runs: dict[str, list[Measurement]] = {}

    def run(name: str, directory: object, *flags: str) -> None:
        runs.setdefault(name, []).append(convert(directory, *flags))  # type: ignore[arg-type]

    for _ in range(sizes.repeats):
        run("frames", data, "--items=frames", "--workers=1")
        for name in FORMATS:
            run(name, data, "--to=columns", f"--format={name}", connectors, "--workers=1")
        run("small", small, "--to=columns", "--format=parquet", connectors, "--workers=1")
        for workers in (1, 2):
            flags = ("--to=columns", "--format=tfrecord", connectors, "--shards=8", f"--workers={workers}")
            run(f"{workers} worker(s)", more, *flags)
    found = {name: best(measured) for name, measured in runs.items()}
    rate = found["frames"].rate
    table(
        f"columns, half-cheetah, {steps:,} steps, one worker",
        ["", "steps/s", "of frames", "peak MB"],
        *(
            [name, f"{found[name].rate:,.0f}", f"{found[name].rate / rate:.2f}", f"{found[name].peak_mb:.0f}"]
            for name in ("frames", *FORMATS)
        ),
    )
    return [
        *(
            at_least(
                f"columns, {name}: of frames",
                found[name].rate / rate,
                0.6,
                against="`convert --items=frames`",
                what=f"`convert --to=columns --format={name}`, sequences of 20",
                runs=ratios(runs[name], runs["frames"]),
            )
            for name in FORMATS
        ),
        at_least(
            "columns, two workers: times one",
            found["2 worker(s)"].rate / found["1 worker(s)"].rate,
            1.7,
            what="`convert --to=columns` with two workers",
            against="one worker",
            runs=ratios(runs["2 worker(s)"], runs["1 worker(s)"]),
        ),
        below(
            "columns, memory: times that of a fifth",
            found["parquet"].peak_mb / found["small"].peak_mb,
            1.05,
            what=f"memory of `convert --to=columns`, {steps:,} steps",
            against=f"{steps // 5:,} steps",
        ),
    ]
