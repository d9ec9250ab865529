"""Checks the requirements of jobs on this machine; each check returns a finding and a remedy."""

from __future__ import annotations

import dataclasses
import glob
import importlib
import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Literal

from rlds_beam import platforms, plugins
from rlds_beam.errors import EXTRAS, UsageError, install, pip_install
from rlds_beam.text import format_size

Status = Literal["ok", "absent", "problem"]

_PACKAGE = "rlds-beam"
_PYTHONS = ((3, 11), (3, 14))
_IMPORTED = ("apache_beam", "google_crc32c", "grpc", "imagecodecs", "numpy", "pyarrow", "simplejpeg", "xxhash")
_IMPORT_SECONDS = 120.0

_MIN_DISK = 1 << 30
_MIN_SHARED_MEMORY = 16 << 20
_MIN_FILES = 1024
_MIN_PROCESSES = 256


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The result of one check.

    Attributes:
      check: the name of the check.
      status: `ok`, `absent` (for something optional), or `problem`.
      detail: what was found.
      remedy: what to do; empty if nothing.
    """

    check: str
    status: Status
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.status:<9} {self.check}: {self.detail}" + (f"\n          {self.remedy}" if self.remedy else "")


def diagnose() -> Iterator[Diagnosis]:
    """Runs all checks. Installs, downloads, and writes nothing, except temporary files."""
    yield python()
    yield packages()
    yield imports()
    yield from extras()
    yield from entry_points()
    yield reverb()
    yield java()
    yield flink_jar()
    yield from map(disk, dict.fromkeys((os.getcwd(), tempfile.gettempdir())))
    if platforms.SHARED_MEMORY is not None:
        yield shared_memory(platforms.SHARED_MEMORY)
    yield open_files()
    yield processes()
    yield loopback()


def python() -> Diagnosis:
    version = ".".join(map(str, sys.version_info[:3]))
    detail = f"{version} ({sys.executable})"
    if _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        return Diagnosis("python", "ok", detail)
    return Diagnosis("python", "problem", detail, "create an environment with Python 3.11 to 3.14")


def packages() -> Diagnosis:
    """Compares the installed versions of the base packages with the required ones."""
    wrong = _unmet(_PACKAGE)
    names = (_PACKAGE, "apache-beam", "numpy", "protobuf")
    detail = ", ".join(f"{name} {_version(name) or 'not installed'}" for name in names)
    if wrong:
        return Diagnosis("packages", "problem", f"{detail}; {'; '.join(wrong)}", pip_install(None, "--upgrade"))
    return Diagnosis("packages", "ok", detail)


def imports() -> Diagnosis:
    """Imports the base packages, which may fail even if installed, for example without a shared library."""
    failed = []
    for name in _IMPORTED:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken installation may raise anything
            failed.append(f"{name} ({type(error).__name__}: {' '.join(str(error).split())})")
    if failed:
        remedy = f"{pip_install(None, '--force-reinstall')}, in a fresh environment"
        return Diagnosis("imports", "problem", "; ".join(failed), remedy)
    crc32c = importlib.import_module("google_crc32c").implementation
    if crc32c != "c":
        remedy = "pip install --force-reinstall google-crc32c, from a wheel"
        return Diagnosis(
            "imports", "problem", f"google-crc32c runs in {crc32c}: checksums take 100 times as long", remedy
        )
    return Diagnosis("imports", "ok", f"{len(_IMPORTED)} packages import")


def extras() -> Iterator[Diagnosis]:
    for extra, purpose in EXTRAS.items():
        wrong = _unmet(_PACKAGE, extra)
        if not wrong:
            yield Diagnosis(f"[{extra}]", "ok", purpose)
            continue
        yield Diagnosis(f"[{extra}]", "absent", f"{purpose}; {_list(wrong)}", install(extra))


def entry_points() -> Iterator[Diagnosis]:
    """The entry points of other packages, and whether they can be imported."""
    for kind in plugins.KINDS:
        for name in plugins.names(kind):
            where, check = ", ".join(plugins.packages(kind, name)), f"{kind.removesuffix('s')} {name}"
            try:
                plugins.find(kind, name)
            except UsageError as error:
                yield Diagnosis(check, "problem", str(error), f"update or uninstall {where}")
            else:
                yield Diagnosis(check, "ok", where)


def _list(unmet: Sequence[str]) -> str:
    """Unmet requirements as one text: `numpy 2.1.0 is installed, <2 is needed; not installed: h5py, scipy`."""
    ending = " is not installed"
    absent = [requirement.removesuffix(ending) for requirement in unmet if requirement.endswith(ending)]
    others = [requirement for requirement in unmet if not requirement.endswith(ending)]
    if len(absent) == 1:
        return "; ".join([*others, absent[0] + ending])
    return "; ".join([*others, f"not installed: {', '.join(absent)}"] if absent else others)


def reverb() -> Diagnosis:
    """Imports Reverb's server library in a separate process, because it may crash with another TensorFlow."""
    name = "reverb"
    version = _version("dm-reverb")
    if version is None:
        detail = "dm-reverb is not installed; serve and --reverb=embedded need it, push does not"
        return Diagnosis(name, "absent", detail, pip_install("agents"))
    failure = _import_failure("reverb")
    if failure is None:
        return Diagnosis(name, "ok", f"dm-reverb {version} with TensorFlow {_version('tensorflow')}")
    remedy = f"{pip_install('agents', '--force-reinstall')}, in a fresh environment"
    return Diagnosis(name, "problem", f"dm-reverb {version} does not import: {failure}", remedy)


def java() -> Diagnosis:
    from rlds_beam.errors import UsageError
    from rlds_beam.runners.flink_preflight import find_java

    if shutil.which("java") is None:
        detail = "no java on the PATH; --runner=flink needs it"
        return Diagnosis(
            "java", "absent", detail, "install Java 11 or later (Debian: apt install openjdk-17-jre-headless)"
        )
    try:
        return Diagnosis("java", "ok", find_java("java"))
    except UsageError as error:
        return Diagnosis("java", "problem", str(error))


def flink_jar() -> Diagnosis:
    """Looks for Beam's Flink job server in the cache of `--runner=flink`."""
    import apache_beam
    from apache_beam.utils.subprocess_server import JavaJarServer

    pattern = f"beam-runners-flink-*-job-server-{apache_beam.__version__}.jar"
    jars = sorted(glob.glob(os.path.join(JavaJarServer.JAR_CACHE, pattern)))
    if jars:
        return Diagnosis("flink jar", "ok", ", ".join(jars))
    detail = f"no job server of Beam {apache_beam.__version__} in {JavaJarServer.JAR_CACHE}"
    remedy = "--runner=flink downloads it (200 MB); without access to Maven Central use --flink_job_server_jar=PATH"
    return Diagnosis("flink jar", "absent", detail, remedy)


def disk(path: str) -> Diagnosis:
    """Checks the free space of a directory, and that files can be created in it."""
    space = "free some space: pairs take twice the bytes of the frames (`rlds-beam inspect` counts the items)"
    return _free_space(f"disk {path}", path, _MIN_DISK, space, "use another directory, or set TMPDIR")


def shared_memory(path: str) -> Diagnosis:
    """Checks the directory where Python's multiprocessing keeps its locks."""
    remedy = f"mount a tmpfs at {path} (docker run --shm-size=256m)"
    return _free_space(f"shared memory {path}", path, _MIN_SHARED_MEMORY, remedy, remedy)


def _free_space(name: str, path: str, least: int, too_small: str, not_writable: str) -> Diagnosis:
    """The free space of a directory, with what to do if there is too little, or no file can be created."""
    try:
        with tempfile.TemporaryFile(dir=path):
            free = shutil.disk_usage(path).free
    except OSError as error:
        return Diagnosis(name, "problem", f"cannot be written to: {error}", not_writable)
    detail = f"{format_size(free)} free"
    return Diagnosis(name, "problem", detail, too_small) if free < least else Diagnosis(name, "ok", detail)


def open_files() -> Diagnosis:
    soft, hard = platforms.find_limits("NOFILE")
    detail = f"{_limit(soft)} at a time"
    if soft is not None and soft < _MIN_FILES:
        return Diagnosis("open files", "problem", detail, f"ulimit -n {_MIN_FILES} (the hard limit is {_limit(hard)})")
    return Diagnosis("open files", "ok", detail)


def processes() -> Diagnosis:
    """Checks the limit of processes and threads: worker processes and gRPC need dozens."""
    limit, _ = platforms.find_limits("NPROC")
    detail = f"{_limit(limit)} at a time, on {platforms.count_cores()} cores"
    if limit is not None and limit < _MIN_PROCESSES:
        return Diagnosis("processes", "problem", detail, "raise ulimit -u, or the container's --pids-limit")
    return Diagnosis("processes", "ok", detail)


def loopback() -> Diagnosis:
    """Checks 127.0.0.1, which Beam and our servers use."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return Diagnosis("loopback", "problem", f"127.0.0.1 cannot be used: {error}", "bring up the interface lo")
    return Diagnosis("loopback", "ok", "127.0.0.1 answers")


def _limit(number: int | None) -> str:
    return "any number" if number is None else f"{number:,}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _unmet(package: str, extra: str = "", seen: frozenset[str] = frozenset()) -> list[str]:
    """Unmet requirements of an extra (`""` for the package itself): `numpy 2.1.0 is installed, <2 is needed`."""
    from packaging.requirements import Requirement

    wrong = []
    for need in map(Requirement, importlib.metadata.requires(package) or ()):
        marker = need.marker
        if extra and (marker is None or marker.evaluate({"extra": ""})):
            continue  # also needed without the extra
        if marker is not None and not marker.evaluate({"extra": extra}):
            continue
        version = _version(need.name)
        if version is None:
            wrong.append(f"{need.name} is not installed")
        elif not need.specifier.contains(version, prereleases=True):
            wrong.append(f"{need.name} {version} is installed, {need.specifier} is needed")
        else:
            for other in sorted(need.extras - seen):
                wrong += _unmet(need.name, other, seen | need.extras)
    return list(dict.fromkeys(wrong))


def _import_failure(module: str) -> str | None:
    """Why a module fails to import in a new process; None if it imports."""
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"it took more than {_IMPORT_SECONDS:g} s"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"the process ended with {done.returncode}"
