"""The package list, and nothing else: all other metadata is in pyproject.toml.

`transforms/`, `pipelines/` and `runners/` are at the top of the repository and are installed inside
`rlds_beam`, so that a user's own `transforms.py` never shadows them. Beam stages this file
(`--setup_file ./setup.py`), and the list is computed, so that no new subpackage is left out of a wheel.
"""

from setuptools import find_packages, setup

NAME = "rlds_beam"
FOLDERS = {NAME: f"src/{NAME}", **{f"{NAME}.{top}": top for top in ("transforms", "pipelines", "runners")}}

setup(
    package_dir=FOLDERS,
    packages=[
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{inner}" for inner in find_packages(folder)))
    ],
)
