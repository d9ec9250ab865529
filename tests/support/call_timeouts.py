"""Checks the timeouts of the gRPC calls that a test makes, so that no test has to measure time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest


class _Recorder(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    def __init__(self) -> None:
        self.timeouts: list[float | None] = []

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: bytes) -> Any:
        self.timeouts.append(details.timeout)
        return continuation(details, request)


@contextlib.contextmanager
def calls_end_within(seconds: float) -> Iterator[None]:
    """Fails unless the block makes unary calls on new channels, each with a timeout of at most `seconds`."""
    recorder, insecure_channel = _Recorder(), grpc.insecure_channel

    def channel(*arguments: Any, **options: Any) -> Any:
        return grpc.intercept_channel(insecure_channel(*arguments, **options), recorder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpc, "insecure_channel", channel)
        yield
    assert recorder.timeouts, "no call was made"
    assert all(timeout is not None and timeout <= seconds for timeout in recorder.timeouts), recorder.timeouts
