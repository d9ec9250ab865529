"""The wheel, the sdist, the package that Beam stages, and the modules that each import loads."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from checkout import ROOT
from processes import DEADLINE

from rlds_beam.testing import make_episode, write_dataset

FOLDERS = {
    "rlds_beam": ROOT / "src" / "rlds_beam",
    **{f"rlds_beam.{top}": ROOT / top for top in ("transforms", "pipelines", "runners")},
}


def test_the_image_of_workers_has_the_beam_version_of_the_locks() -> None:
    dockerfile = (ROOT / "examples" / "dataflow" / "Dockerfile").read_text()
    (image,) = re.findall(r"^ARG BEAM=(\S+)$", dockerfile, re.MULTILINE)
    for lock in ("requirements.lock", "examples/dataflow/requirements.lock"):
        assert re.search(rf"^apache-beam(\[\w+\])?=={re.escape(image)} ", (ROOT / lock).read_text(), re.MULTILINE)


def our_modules() -> set[str]:
    """Every module of the checkout, as a path inside the installed package."""
    return {
        str(Path(*name.split("."), file.relative_to(folder)))
        for name, folder in FOLDERS.items()
        for file in folder.rglob("*.py")
    }


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, so that building leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("README.md", "LICENSE", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "transforms", "pipelines", "runners", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return copy


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel built from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel_names(built: Path) -> set[str]:
    (wheel,) = built.glob("rlds_beam-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_every_module_and_nothing_else(wheel_names: set[str]) -> None:
    modules = {name for name in wheel_names if name.endswith(".py")}
    assert modules == our_modules()
    assert {name.split("/")[0] for name in wheel_names if ".dist-info/" not in name} == {"rlds_beam"}
    assert "rlds_beam/py.typed" in wheel_names
    assert any(name.endswith("/licenses/LICENSE") for name in wheel_names)


def test_pypi_shows_the_readme_with_links_to_the_release(built: Path) -> None:
    (wheel,) = built.glob("rlds_beam-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    urls = dict(text.split(", ") for text in metadata.get_all("Project-URL", []))
    assert urls.keys() == {"Changelog", "Documentation", "Issues", "Repository"}
    page = metadata.get_payload(decode=True).decode()
    assert "pip install rlds-beam\n" in page and "checkout" not in page.partition("## Install")[2].partition("\n## ")[0]
    links = re.findall(r'(?:\]\(|(?:href|src|srcset)=")([^)"#]+)', page)
    assert len(links) > 50 and all(link.startswith("https://") for link in links)
    ours = [link.removeprefix(urls["Repository"] + "/") for link in links if link.startswith(urls["Repository"])]
    for link in ours:
        kind, tag, path = link.split("/", 2)
        assert tag == f"v{metadata['Version']}" and (ROOT / path).exists(), link
        assert (kind == "raw") == path.endswith((".png", ".svg", ".webp")), link
    assert {link.split("/")[0] for link in ours} == {"blob", "raw"}


def test_beam_stages_the_package_from_setup_py(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apache_beam.runners.portability.stager import Stager

    monkeypatch.chdir(checkout)
    staged = Stager._build_setup_package("./setup.py", str(tmp_path))
    with tarfile.open(staged) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {
        "setup.py",
        "src/rlds_beam/episodes/episode.py",
        "transforms/__init__.py",
        "src/rlds_beam/cli/main.py",
    } <= names


def imported(code: str, cwd: Path) -> set[str]:
    """The top-level names and our own modules in sys.modules after `code` ran in a new interpreter."""
    report = "import json, sys; print('\\n@' + json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.rpartition("@")[2]))


def core_modules() -> Iterable[str]:
    for file in sorted(FOLDERS["rlds_beam"].rglob("*.py")):
        name = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith("__main__"):
            yield name


def test_the_core_imports_neither_beam_nor_tensorflow(tmp_path: Path) -> None:
    """Except the replacements for TF-Agents modules, which have TensorFlow in their signatures."""
    with_tensorflow = {"rlds_beam.drop_in.rlds_to_reverb"}
    with_ray = {f"rlds_beam.connectors.learner.{name}" for name in ("rllib_episodes",)}
    core = [name for name in core_modules() if name not in with_tensorflow | with_ray]
    modules = imported("import " + ", ".join(core), tmp_path)
    assert (
        modules & {"apache_beam", "ray", "torch", "tensorflow", "tensorflow_datasets", "tf_agents", "reverb"} == set()
    )


def test_a_users_modules_of_the_same_names_are_left_alone(tmp_path: Path) -> None:
    for name in ("transforms", "pipelines", "runners"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('this is the module of the user')\n")
    imported("import rlds_beam.transforms, rlds_beam.pipelines, rlds_beam.runners", tmp_path)


ROOMS = ("drop_in", "recording", "viewing")
FORMATS = (
    "envlogger",
    "lerobot",
    "numpy",
    "profiles",
    "ros2",
    "scope_rl",
    "zarr",
)

WORKS = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
import contextlib, io, pathlib
import rlds_beam
from rlds_beam.cli.main import main
tree, data, out = sys.argv[1:]
assert pathlib.Path(rlds_beam.__file__).is_relative_to(tree)

def run(*words):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        code = main([*words])
    return code, said.getvalue()

for words in (["convert", data, f"{out}/items"], ["check", "--rules", data], ["stats", data],
              ["push", data, "--reverb=embedded", "--table=t"]):
    code, said = run(*words)
    assert code == 0, (words, said)
opened = rlds_beam.open_dataset(data, unit="steps")
assert opened._repr_html_() is None and next(iter(opened.batches(2)))
outcome = rlds_beam.convert(data, f"{out}/rlds", to="rlds")
assert outcome.report.episodes == 1
code, said = run("convert", data, f"{out}/lerobot", "--to=lerobot")
assert code == 2 and "rlds_beam.formats.lerobot" in said, said
"""


def test_the_core_works_without_optional_packages(built: Path, tmp_path: Path) -> None:
    pytest.importorskip("reverb")
    (wheel,) = built.glob("rlds_beam-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "tree")
    for name in (*ROOMS, *(f"formats/{name}" for name in FORMATS)):
        shutil.rmtree(tmp_path / "tree" / "rlds_beam" / name)
    data = write_dataset(tmp_path / "data", [make_episode(4)])
    command = [sys.executable, "-c", WORKS, str(tmp_path / "tree"), str(data), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "tree"), "RLDS_BEAM_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr
