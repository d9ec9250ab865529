"""Checks that each link between generated pages leads to a file and an anchor that exist.

    python docs/check_links.py build/docs

Links to other sites are not followed.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: set[str] = set()
        self.anchors = {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src"):
                self.links.add(value or "")
            elif name == "id":
                self.anchors.add(value or "")


def broken_links(folder: Path) -> list[str]:
    """The broken links of all pages below a folder, each with the page it is on."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for link in sorted(page.links):
            url = urlsplit(link)
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            anchors = pages[target].anchors if target in pages else {""}
            if not (url.scheme or url.netloc) and not (target.is_file() and unquote(url.fragment) in anchors):
                broken.append(f"{path.relative_to(folder.resolve())}: {link}")
    return broken


if __name__ == "__main__":
    found = broken_links(Path(sys.argv[1]))
    print("\n".join(found or ["all links hold"]))
    sys.exit(bool(found))
