"""`python -m rlds_beam` is the command `rlds-beam`."""

import os
import sys

# `python -m` puts the current directory first: nothing there is to take the place of an installed module, now or when
# some dependency imports it later. (The command `rlds-beam` does not have it; `python -P` does the same from 3.11 on.)
if sys.path and sys.path[0] in ("", os.getcwd()) and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

from rlds_beam.pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main())
