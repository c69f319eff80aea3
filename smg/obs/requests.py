"""The metrics of one routed request: the pipeline says when it was answered and how it ended, out come counters and durations."""

import time
from collections.abc import Callable

from smg.obs.metrics import Meter

__all__ = ["RequestMeter"]

ROUTER, BACKEND, MODE = "grpc", "regular", "grpc"


class RequestMeter:
    """Made when a request is routed; then `answered` once, and `finish` or `fail` once. Times are measured here.

    `model` is the model's own id, never what a client wrote, so that the number of series is bounded; `endpoint` the surface's name.
    `on_answer` is called at the first token.
    """

    __slots__ = ("_answered_s", "_labels", "_meter", "_short", "_started_s", "on_answer")

    def __init__(self, meter: Meter, *, model: str, endpoint: str, streaming: bool) -> None:
        self._meter = meter
        self._labels = (ROUTER, BACKEND, MODE, model, endpoint, "true" if streaming else "false")
        self._short = (ROUTER, BACKEND, model, endpoint)
        self._started_s = time.monotonic()
        self._answered_s = 0.0
        self.on_answer: Callable[[], None] | None = None
        meter.add("smg_router_requests_total", self._labels)

    def answered(self) -> None:
        """The first token is there; later calls do nothing."""
        if not self._answered_s:
            self._answered_s = time.monotonic()
            self._meter.observe("smg_router_ttft_seconds", self._short, self._answered_s - self._started_s)
            if self.on_answer is not None:
                self.on_answer()

    def finish(self, *, prompt_tokens: int, completion_tokens: int) -> None:
        """The answer is whole."""
        now_s = time.monotonic()
        meter, short = self._meter, self._short
        meter.add("smg_router_tokens_total", (*short, "input"), prompt_tokens)
        meter.add("smg_router_tokens_total", (*short, "output"), completion_tokens)
        meter.observe("smg_router_request_duration_seconds", self._labels, now_s - self._started_s)
        if self._answered_s:
            generation_s = now_s - self._answered_s
            meter.observe("smg_router_generation_duration_seconds", short, generation_s)
            if completion_tokens > 1:
                meter.observe("smg_router_tpot_seconds", short, generation_s / (completion_tokens - 1))

    def fail(self, code: str) -> None:
        """The request ended with an error; `code` is the error's."""
        self._meter.add("smg_router_request_errors_total", (*self._labels, code))
        self._meter.observe("smg_router_request_duration_seconds", self._labels, time.monotonic() - self._started_s)
