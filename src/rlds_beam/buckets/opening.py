"""The store for a path: one client for all threads of a process; each bucket is checked once."""

from __future__ import annotations

import os
import threading

from rlds_beam.buckets.base import Store
from rlds_beam.errors import Extra, missing

_EXTRAS: dict[str, Extra] = {"gs": "gcs", "s3": "s3", "az": "azure", "hf": "hub"}
_SETTINGS = ("AWS_", "AZURE_", "GOOGLE_", "HF_", "STORAGE_EMULATOR_HOST")
"""Prefixes of environment variables that select an account or server."""

_lock = threading.RLock()
_stores: dict[object, Store] = {}
_checked: set[tuple[Store, str]] = set()


def open_store(path: str) -> Store:
    """Returns the store for a path.

    Raises:
      MissingExtraError: its client is not installed.
      UsageError: the path has no bucket, or its scheme is unknown.
      BucketAccessError: the bucket cannot be used.
    """
    scheme = path.partition("://")[0]
    if scheme not in _EXTRAS:
        from rlds_beam.buckets.beam import BeamStore

        return BeamStore(path)
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_SETTINGS)))
    with _lock:
        key = scheme, os.getpid(), settings  # a forked process cannot use its parent's connections
        if key not in _stores:
            _stores[key] = _open(scheme, path)
        store = _stores[key]
        root = store.root(path)
        if (store, root) not in _checked:
            store.check(path)
            _checked.add((store, root))
    return store


def _open(scheme: str, path: str) -> Store:
    try:
        if scheme == "gs":
            from rlds_beam.buckets.gcs import Gcs

            return Gcs()
        if scheme == "az":
            from rlds_beam.buckets.azure import Azure

            return Azure()
        if scheme == "hf":
            from rlds_beam.buckets.hub import Hub

            return Hub()
        from rlds_beam.buckets.s3 import S3

        return S3()
    except ImportError as error:
        raise missing(_EXTRAS[scheme], f"cannot open {path}: {scheme}:// needs an extra ({error})") from error
