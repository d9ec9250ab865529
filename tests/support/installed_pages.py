"""Opens the pages of an installed rlds-beam in Chromium: python tests/support/installed_pages.py COMMAND DATASET REPORT

The list of `COMMAND browse DATASET` must have the steps of each episode, an episode must play, and the report must show
one. This needs Playwright, which the environment of COMMAND need not have.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from browser_page import Tab, chromium, opened_report


def main(command: str, dataset: str, report: str) -> None:
    with (
        chromium() as browser,
        subprocess.Popen([command, "browse", dataset, "--no_open"], stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            url = next(match[0] for line in server.stdout if (match := re.search(r"http://127\S+", line)))
            tab = Tab(browser.new_page(), url)
            tab.scanned()
            tab.listed(10)
            steps = tab.column("steps")
            assert len(steps) >= 10 and all(int(text) > 1 for text in steps), steps
            tab.open(0)
            tab.at(0)
            tab.page.keyboard.press("ArrowRight")
            tab.at(1)
            tab.check()
        finally:
            server.terminate()
        with opened_report(browser, Path(report).resolve()) as tab:
            tab.check()
    print(f"browse lists {len(steps)} episodes and plays them; the report opens")


if __name__ == "__main__":
    main(*sys.argv[1:])
