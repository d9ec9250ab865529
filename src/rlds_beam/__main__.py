"""`python -m rlds_beam` is the command `rlds-beam`."""

import sys

from rlds_beam.pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main())
