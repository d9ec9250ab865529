"""`python -m rlds_beam` is the command `rlds-beam`."""

import os
import sys

# `python -m` puts the current directory first. Nothing there may shadow an installed module, now or when a dependency
# imports it later. (The command `rlds-beam` does not add it; from 3.11 on, neither does `python -P`.)
if sys.path and sys.path[0] in ("", os.getcwd()) and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

from rlds_beam.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
