"""Links the package as it is installed: build/checkout/rlds_beam has src/rlds_beam, transforms, pipelines, and runners.

Editors and mypy find all modules there (`[tool.pyright]`), and the links lead to the files of the checkout.
"""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOP = ("pipelines", "runners", "transforms")


def main() -> None:
    links = ROOT / "build" / "checkout" / "rlds_beam"
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir(parents=True)
    inside = [path for path in (ROOT / "src" / "rlds_beam").iterdir() if path.name != "__pycache__"]
    for path in [*inside, *(ROOT / name for name in TOP)]:
        (links / path.name).symlink_to(path)


if __name__ == "__main__":
    main()
