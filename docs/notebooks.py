"""Writes each tutorial as a Jupyter notebook: text becomes markdown cells, `python` and `sh` blocks become code cells.

    python docs/notebooks.py build/docs

writes `build/docs/tutorials/NAME.ipynb`. As a Sphinx extension, it does so after each build, and links each tutorial to
its notebook.
"""

import json
import re
import sys
from pathlib import Path

TUTORIALS = Path(__file__).parent / "tutorials"
LINK = '<p><a href="{name}.ipynb" download>Download this tutorial as a notebook</a></p>'
SCRATCH = 'import os, tempfile\n\nos.environ["OLDPWD"] = os.getcwd()\nos.chdir(tempfile.mkdtemp())'
"""The cell of `cd "$(mktemp -d)"`: a `%%bash` cell cannot change the notebook's directory."""

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_PICTURE = re.compile(r"<picture>.*?</picture>\n*|!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", re.DOTALL)
_LOCAL_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


def pages() -> dict[str, str]:
    """Name -> text of the tutorials: the pages in docs/tutorials with code to run."""
    texts = {page.stem: page.read_text() for page in sorted(TUTORIALS.glob("*.md"))}
    return {name: text for name, text in texts.items() if _BLOCK.search(text)}


def cells(page: str) -> list[tuple[str, str]]:
    """The cells of a page: (`markdown` or `code`, text)."""
    found, end = [], 0
    for block in _BLOCK.finditer(page):
        found += [("markdown", markdown(page[end : block.start()])), ("code", code(block[1], block[2].rstrip("\n")))]
        end = block.end()
    return [(kind, text) for kind, text in [*found, ("markdown", markdown(page[end:]))] if text]


def markdown(text: str) -> str:
    """Text without comments, pictures, and the targets of links between pages: a notebook is not next to them."""
    return _LOCAL_LINK.sub(r"\1", _PICTURE.sub("", _COMMENT.sub("", text))).strip()


def code(language: str, text: str) -> str:
    """A block as the text of a cell. A command that is expected to fail does not stop the notebook."""
    if language == "python":
        return text
    if text == 'cd "$(mktemp -d)"':
        return SCRATCH
    if text.startswith("pip install"):
        return f"%{text}"
    return f"%%bash{' --no-raise-error' if '# exit code' in text else ''}\n{text}"


def notebook(page: str) -> str:
    """The notebook of a page: the text of an .ipynb file (nbformat 4.5)."""
    made = []
    for number, (kind, text) in enumerate(cells(page)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        made.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def write(site: Path) -> None:
    """Write all notebooks into the built site."""
    for name, text in pages().items():
        (site / "tutorials" / f"{name}.ipynb").write_text(notebook(text))


def add_link(app, name, source):
    """Link a tutorial to its notebook, below the title."""
    folder, _, page = name.rpartition("/")
    if folder == "tutorials" and page in pages():
        source[0] = re.sub(r"^# .+$", rf"\g<0>\n\n{LINK.format(name=page)}", source[0], count=1, flags=re.MULTILINE)


def write_after_build(app, error):
    if error is None and app.builder.format == "html":
        write(Path(app.outdir))


def setup(app):
    app.connect("source-read", add_link)
    app.connect("build-finished", write_after_build)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
