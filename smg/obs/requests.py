"""The metrics of one routed request: the pipeline says when it was answered and how it ended, out come counters and durations."""

import time
from collections.abc import Callable

from msgspec import Struct

from smg.obs.metrics import Meter

__all__ = ["RequestMeter", "RequestMeters"]

BACKEND = "regular"


class RouterSeries:
    """The series of one kind of request."""

    def __init__(self, meter: Meter, *, mode: str, model: str, endpoint: str, streaming: bool) -> None:
        labels = (mode, BACKEND, mode, model, endpoint, "true" if streaming else "false")
        short = (mode, BACKEND, model, endpoint)
        self.labels = labels
        self.requests = meter.counter("smg_router_requests_total", labels)
        self.durations = meter.histogram("smg_router_request_duration_seconds", labels)
        self.ttft = meter.histogram("smg_router_ttft_seconds", short)
        self.generation = meter.histogram("smg_router_generation_duration_seconds", short)
        self.tpot = meter.histogram("smg_router_tpot_seconds", short)
        self.input_tokens = meter.counter("smg_router_tokens_total", (*short, "input"))
        self.output_tokens = meter.counter("smg_router_tokens_total", (*short, "output"))


class RequestMeters:
    """Makes the meters of requests; keeps the series of each kind. `mode`: how engines are asked, grpc or http.

    `model` is the model's own id, never what a client wrote, so that the number of series is bounded; `endpoint` the surface's name.
    """

    def __init__(self, meter: Meter, *, mode: str = "grpc") -> None:
        self._meter = meter
        self._mode = mode
        self._series: dict[tuple[str, str, bool], RouterSeries] = {}

    def start(self, *, model: str, endpoint: str, streaming: bool) -> "RequestMeter":
        """Counts a request that is being routed."""
        series = self._series.get((model, endpoint, streaming))
        if series is None:
            series = RouterSeries(self._meter, mode=self._mode, model=model, endpoint=endpoint, streaming=streaming)
            self._series[model, endpoint, streaming] = series
        series.requests.add()
        return RequestMeter(self._meter, series, time.monotonic())


class RequestMeter(Struct):
    """One request: `answered`, then `finish` or `fail`, of which the first counts: who leaves at the last token leaves a whole answer.

    Times are measured here; `on_answer` is called at the first token.
    """

    meter: Meter
    series: RouterSeries
    started_s: float
    answered_s: float = 0.0
    ended: bool = False
    on_answer: Callable[[], None] | None = None

    def answered(self) -> None:
        """The first token is there; later calls do nothing."""
        if not self.answered_s:
            self.answered_s = time.monotonic()
            self.series.ttft.observe(self.answered_s - self.started_s)
            if self.on_answer is not None:
                self.on_answer()

    def finish(self, *, prompt_tokens: int, completion_tokens: int) -> None:
        """The answer is whole."""
        if self.ended:
            return
        self.ended = True
        now_s = time.monotonic()
        series = self.series
        series.input_tokens.add(prompt_tokens)
        series.output_tokens.add(completion_tokens)
        series.durations.observe(now_s - self.started_s)
        if self.answered_s:
            generation_s = now_s - self.answered_s
            series.generation.observe(generation_s)
            if completion_tokens > 1:
                series.tpot.observe(generation_s / (completion_tokens - 1))

    def fail(self, code: str) -> None:
        """The request ended with an error; `code` is the error's."""
        if self.ended:
            return
        self.ended = True
        self.meter.add("smg_router_request_errors_total", (*self.series.labels, code))
        self.series.durations.observe(time.monotonic() - self.started_s)
