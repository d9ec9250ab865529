"""The jars for tests on a Flink cluster: Flink and Beam's job server, fetched once and verified.

`python tests/support/flink_artifacts/__init__.py` (`make test-flink`) puts them into `.flink` in the checkout. Flink
comes from PyPI, as the jars in `apache-flink-libraries`. The job server is built from Beam's jars on Maven Central: the
single jar that Beam publishes, and that `--runner=flink` downloads, is missing from some mirrors.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[2] / ".flink"
LIB = HOME / "lib"
JOB_SERVER = LIB / "beam-job-server.jar"
FLINK_VERSION = "1.19.3"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_FLINK = f"apache-flink-libraries=={FLINK_VERSION}"
_OF_FLINK = ("flink-dist-", "log4j-")
_ATTEMPTS = 3
_MVN = ("mvn", "-q", "-B", "-U")
_SERVICES = "META-INF/services/"


def ready() -> bool:
    """Whether everything is there, built from the current pins."""
    return _stamp().exists()


def class_path() -> str:
    """The class path of a cluster's processes."""
    return f"{LIB}/*"


def _stamp() -> Path:
    made_from = b"".join((HERE / name).read_bytes() for name in ("JobServer.java", "pom.xml", "sha256sums"))
    return HOME / f"ready-{hashlib.sha256(made_from).hexdigest()[:16]}"


def fetch() -> None:
    """Creates `.flink` if it is missing or outdated.

    Raises:
      SystemExit: a program is missing, or a file does not match its pin.
    """
    if ready():
        return
    for program, what in (("mvn", "maven"), ("java", "a JDK, 17"), ("javac", "a JDK, 17")):
        if shutil.which(program) is None:
            sys.exit(
                f"{program} is not on the PATH: install {what} (Debian: apt install maven openjdk-17-jdk-headless)"
            )
    HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as scratch:
        lib, jars = Path(scratch) / "lib", Path(scratch) / "jars"
        lib.mkdir()
        _fetch_flink(Path(scratch), lib)
        _run(*_MVN, "-f", HERE / "pom.xml", _COPY, "-DincludeScope=runtime", f"-DoutputDirectory={jars}")
        _verify(sorted(jars.glob("*.jar")))
        _run("javac", "-d", scratch, "-cp", f"{jars}/*", HERE / "JobServer.java")
        _merge(sorted(jars.glob("*.jar")), Path(scratch) / "JobServer.class", lib / JOB_SERVER.name)
        shutil.rmtree(LIB, ignore_errors=True)
        lib.rename(LIB)
    _stamp().touch()


def _fetch_flink(scratch: Path, lib: Path) -> None:
    """Extracts Flink's jars from its source package on PyPI."""
    _run(
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-binary=:all:",
        f"--dest={scratch}",
        _FLINK,
    )
    (package,) = scratch.glob("*.tar.gz")
    _verify([package])
    with tarfile.open(package) as tar:
        for member in tar:
            name = Path(member.name).name
            if "/deps/lib/" in member.name and name.startswith(_OF_FLINK):
                with (lib / name).open("wb") as file:
                    shutil.copyfileobj(tar.extractfile(member), file)  # type: ignore[arg-type]


def _verify(files: list[Path]) -> None:
    pinned = dict(line.split()[::-1] for line in (HERE / "sha256sums").read_text().splitlines())
    for path in files:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if pinned.get(path.name) != found:
            sys.exit(f"{path.name} has the SHA-256 {found}; expected {pinned.get(path.name, 'no such file')}")


def _merge(jars: list[Path], main: Path, merged: Path) -> None:
    """Merges jars into one with a main class; Flink's own jars stay next to it."""
    beside = " ".join(sorted(path.name for path in merged.parent.glob("*.jar")))
    services: dict[str, bytes] = {}
    seen = set()
    with zipfile.ZipFile(merged, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        # A manifest line has at most 72 bytes; a continuation starts with a space.
        lines = ["Manifest-Version: 1.0", "Main-Class: JobServer", *_folded(f"Class-Path: {beside}"), "", ""]
        target.writestr("META-INF/MANIFEST.MF", "\r\n".join(lines))
        target.write(main, main.name)
        for jar in jars:
            with zipfile.ZipFile(jar) as source:
                for name in source.namelist():
                    if name.startswith(_SERVICES) and not name.endswith("/"):
                        services[name] = services.get(name, b"") + source.read(name) + b"\n"
                    elif name.endswith((".class", ".so")) or not name.startswith("META-INF/"):
                        if name not in seen and not name.endswith(("/", "module-info.class")):
                            target.writestr(name, source.read(name))
                        seen.add(name)
        for name, lines_of in sorted(services.items()):
            target.writestr(name, lines_of)


def _folded(line: str) -> list[str]:
    return [line[:70], *(f" {line[i : i + 69]}" for i in range(70, len(line), 69))]


def _run(*command: object) -> None:
    for _ in range(_ATTEMPTS):  # a download may fail; Maven keeps what it has
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False, timeout=1800
        )
        if not done.returncode:
            return
    sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    fetch()
