"""A worker process of the local runner: Beam's own, without its chatter on the terminal."""

from __future__ import annotations

import logging
import os
import sys


def main() -> None:
    """Serves the runner that started this process."""
    if not os.environ.get("RLDS_BEAM_VERBOSE"):
        # A handler on the root logger keeps Beam's imports from installing one that prints.
        logging.getLogger().addHandler(logging.NullHandler())
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    main()
