"""How fast step pairs are sampled: `python benchmarks/reverb_sampling.py DATASET [--episodes N] [--batches N]`.

Inserts the same episodes into tables of fresh servers: with our writer, in chunks of the default length and of a whole
episode, and with TF-Agents' observer. Then reads each in turn through `reverb.TrajectoryDataset` in batches of 256.
Prints JSON: pairs/s of each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from typing import Any

from reverb_writers import nest_of, observer, ours, steps_of
from tables import TABLE, items_of, make_thumbnails, options_of, servers, target_of

from rlds_beam.jobs.push import open_input
from rlds_beam.trajectories.options import ItemOptions

BATCH = 256
WHOLE_EPISODE = 1000


def sampled(address: str) -> Any:
    """Endless batches of pairs."""
    import reverb

    pairs = reverb.TrajectoryDataset.from_table_signature(address, TABLE, max_in_flight_samples_per_worker=2 * BATCH)
    return iter(pairs.batch(BATCH))


def measure(dataset: str, episodes: int, batches: int, repeats: int) -> dict[str, float]:
    source, items = open_input(options_of(dataset)), ItemOptions()
    frames = make_thumbnails(source, episodes)
    with servers(source, 3) as (default, whole, agents):
        import reverb

        target = target_of(options_of(dataset, server=default))
        ours(target, items_of(frames, items))
        ours(target_of(options_of(dataset, server=whole, chunk_length=WHOLE_EPISODE)), items_of(frames, items))
        observer(reverb.Client(agents), [steps_of(nest_of(target, episode)) for episode in frames], items)
        readers = {
            name: sampled(address)
            for name, address in (
                ("ours", default),
                ("ours, an episode a chunk", whole),
                ("TF-Agents' observer", agents),
            )
        }
        rates = dict.fromkeys(readers, 0.0)
        for name in [*readers] * repeats:
            for _ in itertools.islice(readers[name], batches // 4):  # leave out what was fetched ahead
                pass
            began = time.perf_counter()
            for _ in itertools.islice(readers[name], batches):
                pass
            rates[name] = max(rates[name], batches * BATCH / (time.perf_counter() - began))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    print(json.dumps(measure(args.dataset, args.episodes, args.batches, args.repeats)))


if __name__ == "__main__":
    main()
