"""The package list, and the README as PyPI shows it; all other metadata is in pyproject.toml.

`transforms/`, `pipelines/` and `runners/` are at the top of the repository and are installed inside
`rlds_beam`, so that a user's own `transforms.py` never shadows them. Beam stages this file
(`--setup_file ./setup.py`), and the list is computed, so that no new subpackage is left out of a wheel.
"""

import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

NAME = "rlds_beam"
ROOT = Path(__file__).parent
FOLDERS = {NAME: f"src/{NAME}", **{f"{NAME}.{top}": top for top in ("transforms", "pipelines", "runners")}}

INSTALL = """\
## Install

With Python 3.11 to 3.14:

```sh
pip install rlds-beam
uvx rlds-beam example data  # or try it without installing
```

"""


def describe():
    """The README with absolute links to the release's tag, and with the installation from PyPI."""
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    (version,) = re.findall(r'^__version__ = "(.+)"', (ROOT / "src" / NAME / "_version.py").read_text(), re.MULTILINE)

    def link(match):
        kind = "raw" if re.search(r"\.(jpg|png|svg|webp)$", match[2]) else "blob"
        return f"{match[1]}{repository}/{kind}/v{version}/{match[2]}"

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^## Install\n.*?(?=^## )", lambda _: INSTALL, text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r'(\]\(|(?:href|src|srcset)=")(?!https?:|#)([^)"]+)', link, text)


setup(
    long_description=describe(),
    long_description_content_type="text/markdown",
    package_dir=FOLDERS,
    packages=[
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{inner}" for inner in find_packages(folder)))
    ],
)
