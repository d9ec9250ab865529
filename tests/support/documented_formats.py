"""The source and the output of the how-to pages about formats, as a module that workers can import."""

from __future__ import annotations

import readme
from checkout import ROOT

for _page in ("own_source", "own_output"):
    for _block in readme.blocks(ROOT / "docs" / "how_to" / f"{_page}.md"):
        if _block.code.startswith(("# my_formats.py", "# my_outputs.py")):
            exec(_block.code)  # as printed
