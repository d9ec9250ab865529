"""`rlds-beam push` into fresh servers: `python benchmarks/reverb_push.py DATASET --servers N [FLAGS of push]`.

Prints JSON: `items_per_second` at work, and `start_up`, the remaining seconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from measuring import COMMAND, command
from tables import TABLE, options_of, servers

from rlds_beam.jobs.push import open_input


def measure(dataset: str, count: int, flags: Sequence[str]) -> dict[str, float]:
    with servers(open_input(options_of(dataset)), count) as addresses:
        where = f"--reverb={','.join(addresses)}", f"--table={TABLE}"
        done = json.loads(command([COMMAND, "push", dataset, *where, "--json", *flags])[0])
    working = done["working_seconds"]
    return {
        "steps": done["steps"],
        "items_per_second": done["items_written"] / working,
        "start_up": done["seconds"] - working,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--servers", type=int, default=1)
    args, flags = parser.parse_known_args()
    print(json.dumps(measure(args.dataset, args.servers, flags)))


if __name__ == "__main__":
    main()
