"""The server of `rlds-beam browse`: a read-only page on the loopback interface. This is its API.

Everything is GET (or HEAD; others are 405) and needs the token: `/?token=…` sets a cookie (HttpOnly, SameSite=Strict),
which all other requests then carry. The page removes the token from its address with `history.replaceState`. Answers
are JSON, except for images and videos. Numbers that JSON lacks (NaN, infinity) are null. An error is
`{"error": "what is wrong"}` with status 400 (wrong parameters), 403 (no token, or another host), 404 (no such episode,
step, or image), or 405. Texts come from datasets and may contain anything; the page never interprets them as HTML.

`/`  the page (`static/index.html`); `/static/NAME` its files, and the vendored ones:
    `uPlot.iife.min.js`, `uPlot.min.css`, `preact-htm.module.js`. The Content-Security-Policy is `default-src 'self'`
    (plus `img-src 'self' blob: data:`): no inline script, and no `style` attribute in HTML (scripts may set styles).

`/api/datasets` -> a list, in the order of the command line; poll it every second while a `scan.state` is `running`:
    id            "0", "1", ...; the `dataset` of all other requests
    name, path    `bridge_dataset/1.0.0`, and the path as given
    format        `rlds`, `lerobot`, ..., `columns`, `trajectories`
    episodes      the number of rows of the list without filters; may change while shards are read
    splits        [{name, episodes: number | null}]
    fps           number | null: null means unknown; play at 10
    cameras       [{path, kind: "image" | "video", width, height (or null)}]
    fields        {steps: [{path, dtype, shape, encoding, feature}], metadata: [...]}
    columns       [{name, label, kind: "number" | "text", group, unit, summary, threshold, above}]: what the list can
                  be sorted and filtered by. `group` is `Episode`, `Metadata`, or the group of a signal; the last four
                  may be null. Empty until there is a table.
    rules         {rule: number of episodes that it rejects}
    signals       the names of the signals among `columns`
    scan          {state: "table" | "running" | "done" | "stopped" | "failed" | "none", done, total (or null), error}:
                  where the table comes from: `signals.parquet`, or a job in the background
    scanned       whether the table covers all episodes
    summary       whether `/api/summary` has an answer
    problems      faults of the dataset as a whole: [text]
    compare_to    the id of the dataset that was converted to or from this one | null

`/api/episodes?dataset=&offset=&limit=&sort=&desc=&filter=&text=&split=&rule=` -> {total, offset, rows, scanned}
    sort, desc    a column's name, and `1` for descending; missing values are last. Without it: the dataset's order
    filter        conditions as of `--reject`: `steps > 10`, `frozen_camera > 0.2`. Commas mean "or"; several `filter`
                  parameters mean "and"
    text          all of these words, in any order and case, in the instruction; or the key of one episode
    split         the name of a split
    rule          a rule's name, `accepted`, or `rejected`
    limit         1 to 500 (default 100)
    A row is {index, key, split, steps, return, instruction, rule, detail, metadata: {name: value},
    signals: {name: value}}; everything after `split` is null (or empty) for an episode that no table has yet. `index`
    is its number in the dataset's order. Sorting and filtering need the table; `scanned` is false if it is incomplete.

`/api/histogram?dataset=&column=` and the filters of `/api/episodes` -> {counts, edges}: how many of these episodes have
    values in each of at most 60 equal ranges; one more edge than counts. Empty without numbers.

`/api/summary?dataset=` -> `report.dataset.make_summary`: rules, signals, distributions, texts, as in a report

`/api/episode?dataset=&key=` -> what `episode_view.EpisodeView.to_json` gives, and
    key, index, split, steps, fps, instruction, metadata: {path: value}
    version       add it to images and videos as `&v=`, so that the browser keeps them
    curves        [{path, labels, steps, values}]: `values` is a list per label; `steps` are the x values (null: 0, 1,
                  2, ...; long curves are thinned to about 4,000 points, keeping each minimum and maximum); `left_out`
                  counts further dimensions
    cameras       [{path, kind, frames, width, height}]; an image is at `/image?dataset=&key=&camera=&step=`, a video at
                  `/video?dataset=&key=&camera=` with the episode between `from` and `to` seconds. Step t is at
                  `from + t / fps`; seek half a frame later, so that rounding cannot show the frame before it
    texts         [{path, runs: [[step, text], ...]}]: text fields of the steps; a run lasts until the next one
    marks         [{kind: "rule" | "signal", name, field, step, stop, detail}]: broken rules, and signals beyond their
                  thresholds, by their steps [step, stop), which may be null. `rejected` is the rule, or null
    readable      false for a damaged record: no steps, curves, or cameras; `marks` say why
    previous, next  the keys of its neighbors in the dataset's order, or null

`/api/videos?dataset=&key=` -> the videos among `cameras` of `/api/episode`, without reading the episode

`/api/step?dataset=&key=&step=` -> {step, values: [{path, dtype, shape, value, cut}]}
    `value` is a (nested) list, number, bool, or text; at most 1,000 numbers or characters, else `cut` is true. Images
    have {"image": "jpeg", "bytes": n} as value.

`/image?dataset=&key=&camera=&step=` -> the stored bytes (JPEG, PNG, BMP), or a PNG of raw pixels.
    `&height=96` instead gives a JPEG of at most this height (16 to 512), for lists and grids; a placeholder if the
    image is damaged.

`/video?dataset=&key=&camera=` -> the MP4 file, with Range.

`/api/made?dataset=&key=&offset=&limit=` -> what the learner sees of an episode; items by default, at most 20
    kind          `items`, `frames`, or `rows`: what was made; `about`: `--items=sequences --sequence_length=8`
    note          what differs from a conversion, or null
    total, offset the number of items, and the first one here
    fields        [{path, dtype, shape}]
    items         [{number, length, padding: [bool per row] | null, steps: [source step per row, or null] | null,
                  values: {path: [value per row]}}]; a value is as in `/api/step`, images are {"image": ...}
    error         why nothing was made (then the others are missing)

`/api/counterpart?dataset=&key=` -> {dataset, key, how}: the same episode in `compare_to`; `key` is null if unknown, and
    `how` says in words how it was found, or why not.
"""

from __future__ import annotations

import dataclasses
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.cleaning.presets import with_preset
from rlds_beam.errors import RldsBeamError, UsageError, needs
from rlds_beam.formats.inputs import open_input
from rlds_beam.viewing.browser.dataset import BrowsedDataset
from rlds_beam.viewing.browser.measuring import signals_beside
from rlds_beam.viewing.browser.origins import compare
from rlds_beam.viewing.browser.table import dataset_of, read_table

HOST = "127.0.0.1"
_START_SECONDS = 30


class BrowserServer:
    """Serves datasets to the user's browser; enter the context to start, leave it to stop.

    Args:
      datasets: the datasets to show.
      port: the port on 127.0.0.1; 0 for a free one.

    Attributes:
      token: the secret in the address.
      opened: set when a browser has opened the address.

    Raises:
      UsageError: the port is taken.
      MissingExtraError: the extra `view` is not installed.
    """

    def __init__(self, datasets: Sequence[BrowsedDataset], port: int = 0):
        check_installed()
        import uvicorn

        from rlds_beam.viewing.browser.app import create_app

        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self.token, self.datasets, self.opened = secrets.token_urlsafe(24), tuple(datasets), threading.Event()
        config = uvicorn.Config(
            create_app(datasets, self.token, self.port, self.opened.set),
            log_level="error",
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            loop="asyncio",
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def __enter__(self) -> BrowserServer:
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RldsBeamError(f"the server on {HOST}:{self.port} did not start")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.should_exit = True
        self._thread.join(_START_SECONDS)
        self._socket.close()
        for dataset in self.datasets:
            dataset.table.stop()


def check_installed() -> None:
    """Raises MissingExtraError if the extra `view` is not installed."""
    with needs("view", "rlds-beam browse needs Starlette and uvicorn"):
        import starlette
        import uvicorn  # noqa: F401

        del starlette


def _listening(port: int) -> socket.socket:
    """A socket bound to a port of the loopback interface."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # without Nagle's delay in asyncio
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
    except OSError as error:
        bound.close()
        raise UsageError(f"--port={port}: {error.strerror}; choose another port, or 0 for a free one") from error
    return bound


def open_datasets(config: Any) -> list[BrowsedDataset]:
    """Opens the datasets of a `BrowseConfig`, and their tables. Raises UsageError if one of them cannot be opened."""
    check = dataclasses.replace(CheckOptions.of(with_preset(config)), fail=())
    opened: list[BrowsedDataset] = []
    measured = None if config.signals is None else dataset_of(read_table(config.signals))
    for number, path in enumerate(config.path):
        own = config.for_input(path)
        source = open_input(own)
        opened.append(BrowsedDataset(str(number), path, own.source_format, source, check, config))
    compare(opened)
    for dataset in opened:
        file = signals_beside(dataset.path)
        if config.signals is not None and (len(opened) == 1 or dataset.source.dataset == measured):
            file, measured = config.signals, None  # an output in the same format has the name and keys of its input
        if file is not None:
            dataset.table.open(file)
    for dataset in opened:
        if dataset.table.rows is None and not config.no_scan and storage.scheme(dataset.path) is None:
            dataset.table.start()
    return opened
