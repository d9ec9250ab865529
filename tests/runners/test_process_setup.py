"""How a process is set up: the kernels of numpy, and the memory of freed records."""

import importlib.metadata
import os
import platform
import subprocess
import sys

import pytest
from processes import DEADLINE

from rlds_beam import platforms
from rlds_beam.runners.process_setup import choose_kernels

VARIABLE = "OPENBLAS_CORETYPE"
AVX2 = "fpu sse2 avx avx2 fma"
AVX512 = f"{AVX2} avx512f avx512cd avx512bw avx512dq avx512vl"


@pytest.mark.parametrize(
    ("vendor", "flags", "numpy", "before", "chosen"),
    [
        ("GenuineIntel", AVX512, "1.26.4", None, "SkylakeX"),
        ("GenuineIntel", AVX2, "1.26.4", None, "Haswell"),
        ("GenuineIntel", AVX512.replace(" avx512vl", ""), "1.26.4", None, "Haswell"),
        ("GenuineIntel", "fpu sse2", "1.26.4", None, None),
        ("AuthenticAMD", AVX512, "1.26.4", None, None),
        ("GenuineIntel", AVX512, "2.0.0", None, None),
        ("GenuineIntel", AVX512, "1.26.4", "Zen", "Zen"),
    ],
)
def test_an_old_openblas_is_told_what_the_processor_can_do(
    vendor, flags, numpy, before, chosen, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv(VARIABLE, before or "")
    if before is None:
        monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(importlib.metadata, "version", {"numpy": numpy}.__getitem__)
    one = f"processor\t: {{}}\nvendor_id\t: {vendor}\nflags\t\t: {flags}\nbugs\t\t: a:b\n\n"
    (tmp_path / "cpuinfo").write_text(one.format(0) + one.format(1))
    monkeypatch.setattr(platforms, "_CPU_INFO", tmp_path / "cpuinfo")
    choose_kernels()
    assert os.environ.get(VARIABLE) == chosen


def test_without_the_file_nothing_is_set(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(platforms, "_CPU_INFO", tmp_path / "cpuinfo")
    choose_kernels()
    assert VARIABLE not in os.environ


def test_numpy_is_not_imported_before() -> None:
    code = "import sys, rlds_beam.cli.main, rlds_beam.runners.worker; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


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
