"""The throughput of a Reverb server itself: `python benchmarks/reverb_limits.py DATASET`.

Prepares the requests that `rlds-beam push` would send for the dataset (step pairs), then sends them to two fresh
servers: through our `InsertStream`, and over a bare grpc stream that only counts acknowledgments. Prints JSON: items/s
of each.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tables import TIMEOUT, items_of, make_thumbnails, options_of, servers, target_of

from rlds_beam.jobs.push import open_input
from rlds_beam.reverb.connection import Connection
from rlds_beam.reverb.encoding import Cut
from rlds_beam.reverb.protocol.inserts import METHOD, Request, acknowledged_keys, count_keys
from rlds_beam.reverb.stream import InsertStream
from rlds_beam.reverb.writer import BATCH_BYTES, CheckedItems, RequestEncoder


def through_our_stream(address: str, requests: Sequence[Request]) -> None:
    stream = InsertStream(address, timeout=TIMEOUT)
    for request in requests:
        stream.send(request)
    stream.flush()
    stream.close()


def over_bare_grpc(address: str, requests: Sequence[Request]) -> None:
    missing = sum(len(request.keys) for request in requests)
    done = threading.Event()

    def payloads() -> Iterator[bytes]:
        yield from (b"".join([*request.parts, request.keep]) for request in requests)
        done.wait(TIMEOUT)  # the server ends the call when we do, acknowledged or not

    with Connection(address) as connection:
        for response in connection.channel.stream_stream(METHOD)(payloads()):
            missing -= count_keys(acknowledged_keys(response))
            if not missing:
                done.set()
                return
    raise SystemExit(f"{address} ended the stream with {missing} items to go")


CLIENTS: dict[str, Callable[[str, Sequence[Request]], None]] = {
    "stream": through_our_stream,
    "bare": over_bare_grpc,
}


def batched(batches: Sequence[CheckedItems]) -> Iterator[list[Cut]]:
    """The batches that the writer encodes together."""
    waiting: list[Cut] = []
    for batch in batches:
        waiting.append(batch.cut)
        if sum(cut.size for cut in waiting) >= BATCH_BYTES:
            yield waiting
            waiting = []
    yield waiting


def measure(dataset: str) -> dict[str, float]:
    source = open_input(options_of(dataset))
    with servers(source, len(CLIENTS)) as addresses:
        encoder = RequestEncoder(target_of(options_of(dataset, server=addresses[0])))
        began = time.perf_counter()
        batches = [encoder.encode(items) for items in items_of(make_thumbnails(source), source.items)]
        encoded = time.perf_counter() - began
        requests = [request for cuts in batched(batches) for request in encoder.requests(cuts)]
        items = sum(batch.cut.windows.count for batch in batches)
        rates = {}
        for (name, send), address in zip(CLIENTS.items(), addresses, strict=True):
            began = time.perf_counter()
            send(address, requests)
            rates[name] = items / (time.perf_counter() - began)
            with Connection(address) as connection:
                (table,) = connection.info(TIMEOUT).tables.values()
            assert table.current_size == items, f"{table.current_size} items there, {items} sent"
    return {"items": items, "encoding": items / encoded, **rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    print(json.dumps(measure(parser.parse_args().dataset)))


if __name__ == "__main__":
    main()
