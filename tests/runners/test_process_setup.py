"""How a process is set up: the memory of freed records."""

import os
import platform
import subprocess
import sys

import pytest
from processes import DEADLINE

FAULTS = """
import resource
from rlds_beam.runners.process_setup import keep_freed_memory

keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for size in range(6_000_000, 8_000_000, 20_000):
    bytearray(b"x") * size
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc")
def test_memory_of_records_is_used_again() -> None:
    """The system provides the pages once, and not for each of 100 records; a user's own setting stays."""

    def faults(**settings: str) -> int:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
        command, environment = [sys.executable, "-c", FAULTS], {**inherited, **settings}
        done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=DEADLINE)
        return int(done.stdout)

    assert 5 * faults() < faults(MALLOC_MMAP_THRESHOLD_="131072")
