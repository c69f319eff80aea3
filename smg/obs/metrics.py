"""Metrics: what is counted is declared here as data; the counts live in shared memory and are summed over all processes at scrape.

Data workers hold a `Meter` each; the control process calls `render` and adds the gauges that it knows at that moment. Names as in the
original (inventory, "Observability"). What holds a series is native, or with a `PlainShm` its twin.
"""

import re
import zlib
from bisect import bisect_left
from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from smg._ext import NativeCounter, NativeHistogram, NativeShm
from smg.obs.shm import Shm

__all__ = ["METRICS", "Counter", "Histogram", "HttpObserver", "Meter", "Metric", "Sample", "render"]

DURATION_S = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 45.0),
    *(60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0),
)
METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
LONGEST_LABEL_BYTES = 160
FIRST_LABEL = re.compile(r'(\w+)\{\w+="((?:[^"\\]|\\.)*)"')
MICRO = 1_000_000


class Metric(Struct, frozen=True):
    """One family of series. Histograms are of seconds; a gauge is not kept but given at scrape."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    labels: tuple[str, ...]
    help: str


ROUTER = ("router_type", "backend_type", "connection_mode", "model", "endpoint", "streaming")
SHORT_ROUTER = ("router_type", "backend_type", "model", "endpoint")

METRICS = {
    metric.name: metric
    for metric in (
        Metric("smg_http_requests_total", "counter", ("method", "path"), "HTTP requests by route"),
        Metric(
            "smg_http_request_duration_seconds", "histogram", ("method", "path"), "time from the head of a request to the end of its answer"
        ),
        Metric("smg_http_responses_total", "counter", ("path", "status_code", "error_code"), "HTTP responses by status"),
        Metric("smg_router_requests_total", "counter", ROUTER, "requests that were routed"),
        Metric("smg_router_request_duration_seconds", "histogram", ROUTER, "time of a routed request"),
        Metric("smg_router_request_errors_total", "counter", (*ROUTER, "error_type"), "routed requests that failed"),
        Metric("smg_router_stage_duration_seconds", "histogram", ("router_type", "stage"), "time of one stage of the pipeline"),
        Metric("smg_router_ttft_seconds", "histogram", SHORT_ROUTER, "time to the first token"),
        Metric("smg_router_tpot_seconds", "histogram", SHORT_ROUTER, "mean time of each token after the first"),
        Metric("smg_router_generation_duration_seconds", "histogram", SHORT_ROUTER, "time from the first token to the last"),
        Metric("smg_router_tokens_total", "counter", (*SHORT_ROUTER, "token_type"), "tokens in and out"),
        Metric("smg_pd_prefill_duration_seconds", "histogram", ("backend_type", "model", "runtime"), "time of the prefill engine's part"),
        Metric("smg_pd_kv_transfer_failures_total", "counter", (), "prefill engines' parts that failed"),
        Metric("smg_tokenizer_cache_lookups_total", "counter", ("level", "result"), "requests (l0) and pieces of prompts (l1) looked up"),
        Metric("smg_worker_selection_total", "counter", ("worker_type", "connection_mode", "model", "policy"), "engines chosen, by policy"),
        Metric("smg_worker_errors_total", "counter", ("worker_type", "connection_mode", "error_type"), "engine calls that failed"),
        Metric(
            "smg_worker_retries_total",
            "counter",
            ("worker_type", "endpoint"),
            "requests that were sent again",
        ),
        Metric("smg_worker_retries_exhausted_total", "counter", ("worker_type", "endpoint"), "requests that were not sent once more"),
        Metric("smg_worker_retry_backoff_seconds", "histogram", ("attempt",), "pauses before an engine got a request again"),
        Metric("smg_worker_cb_state", "gauge", ("worker",), "circuit breaker: 0 = closed, 1 = open, 2 = half open"),
        Metric("smg_worker_cb_consecutive_failures", "gauge", ("worker",), "failed requests in a row, while it is closed"),
        Metric("smg_worker_cb_consecutive_successes", "gauge", ("worker",), "requests that went well, while it is half open"),
        Metric("smg_worker_cb_transitions_total", "counter", ("worker", "from", "to"), "changes of circuit breakers"),
        Metric("smg_worker_cb_outcomes_total", "counter", ("worker", "outcome"), "requests that circuit breakers have judged"),
        Metric("smg_http_rate_limit_total", "counter", ("result",), "requests that limits let pass, or not"),
        Metric("smg_rate_limit_server_failures_total", "counter", (), "calls that the server of shared limits did not answer"),
        Metric("smg_scheduler_admit_total", "counter", ("class", "outcome"), "requests by how they were admitted, or not"),
        Metric("smg_scheduler_queue_wait_seconds", "histogram", ("class",), "time in the queue, of who waited"),
        Metric("smg_scheduler_preemption_total", "counter", ("by_class", "victim_class"), "requests that gave way to others"),
        Metric("smg_scheduler_clamp_total", "counter", ("tenant", "requested_class", "effective_class"), "requests of too high a class"),
        Metric("smg_scheduler_unknown_priority_value_total", "counter", ("tenant",), "words that are no class"),
        Metric("smg_scheduler_starvation_promotion_total", "counter", ("class",), "waiters put first after long"),
        Metric("smg_scheduler_inflight", "gauge", ("class",), "requests that run"),
        Metric("smg_scheduler_queue_depth", "gauge", ("class",), "requests that wait"),
        Metric("smg_scheduler_queue_size_limit", "gauge", ("class",), "requests that may wait"),
        Metric("smg_scheduler_class_capacity_pressure", "gauge", ("class",), "how full queue or seats are, whichever is fuller"),
        Metric("smg_scheduler_utilization", "gauge", (), "share of all seats in use"),
        Metric("smg_worker_pool_size", "gauge", ("worker_type", "connection_mode", "model"), "registered engines"),
        Metric("smg_worker_requests_active", "gauge", ("worker",), "requests under way at an engine"),
        Metric("smg_worker_health", "gauge", ("worker",), "1 = the engine is ready"),
        Metric("smg_worker_health_checks_total", "counter", ("worker_type", "result"), "health checks by result"),
        Metric("smg_discovery_registrations_total", "counter", ("source", "result"), "engines that were registered"),
        Metric("smg_discovery_deregistrations_total", "counter", ("source", "reason"), "engines that were taken away"),
        Metric("smg_discovery_sync_duration_seconds", "histogram", ("source",), "time from what a source says to engines that are so"),
        Metric("smg_discovery_workers_discovered", "gauge", ("source",), "engines that a source names now"),
        Metric("smg_engine_running_requests", "gauge", ("worker",), "requests that an engine says it runs"),
        Metric("smg_engine_waiting_requests", "gauge", ("worker",), "requests that an engine says wait"),
        Metric("smg_engine_token_usage", "gauge", ("worker",), "share of its KV cache that an engine uses"),
        Metric("smg_engine_gen_throughput", "gauge", ("worker",), "tokens that an engine generates in a second"),
        Metric("smg_kv_events_live", "gauge", ("worker",), "1 = the engine's KV events are followed"),
        Metric("smg_kv_events_lag_seconds", "gauge", ("worker",), "age of the last KV events when they were taken"),
        Metric("smg_kv_events_stale_seconds", "gauge", ("worker",), "time since KV events were last followed; 0 while they are"),
        Metric("smg_kv_events_gaps_total", "gauge", ("worker",), "KV events that were missed and asked for again"),
        Metric("smg_kv_events_restarts_total", "gauge", ("worker",), "times that an engine was started anew, and its cache forgotten"),
        Metric("smg_kv_events_unplaced_total", "gauge", ("worker",), "blocks whose place in a prompt is not known"),
        Metric("smg_kv_events_passed_over_total", "gauge", ("worker",), "blocks of a model's further groups, which are not followed"),
        Metric("smg_kv_blocks", "gauge", ("worker",), "blocks that an engine has said it holds"),
        Metric("smg_prefix_index_entries", "gauge", (), "entries that the prefix index has room for"),
        Metric("smg_prefix_index_stored_total", "gauge", (), "entries made in the prefix index"),
        Metric("smg_prefix_index_evicted_total", "gauge", (), "entries of the prefix index that were given up for others"),
        Metric("smg_metric_series_dropped_total", "gauge", (), "counts that found no room"),
    )
}


class Sample(Struct, frozen=True):
    """The value of a gauge at scrape, or of a counter that is kept elsewhere; `labels` in the order of the metric's."""

    name: str
    labels: tuple[str, ...]
    value: float


class PlainSeries:
    """Where one series is counted. Looked for when it is first needed, and again as long as there is no room."""

    __slots__ = ("_cell", "_key", "_row", "_shm")

    cells: int

    def __init__(self, shm: Shm, row: int, key: bytes) -> None:
        self._shm, self._row, self._key = shm, row, key
        self._cell = -1

    def found(self) -> bool:
        """False when there is no room for the series."""
        if self._cell < 0:
            self._cell = self._shm.series(self._key, zlib.crc32(self._key), self.cells)
        return self._cell >= 0


class PlainCounter(PlainSeries):
    """A number that only grows."""

    __slots__ = ()

    cells = 1

    def add(self, amount: int = 1) -> None:
        """Adds to it."""
        if self._cell >= 0 or self.found():
            self._shm.add(self._row, self._cell, amount)


class PlainHistogram(PlainSeries):
    """Durations, counted by their bounds."""

    __slots__ = ()

    cells = len(DURATION_S) + 2

    def observe(self, seconds: float) -> None:
        """Adds one duration."""
        if self._cell >= 0 or self.found():
            self._shm.add(self._row, self._cell + bisect_left(DURATION_S, seconds), 1)
            self._shm.add(self._row, self._cell + len(DURATION_S) + 1, int(seconds * MICRO))


Counter: TypeAlias = PlainCounter | NativeCounter
Histogram: TypeAlias = PlainHistogram | NativeHistogram


class Meter:
    """Counts in one process's row. A series that finds no room is dropped, and that is counted."""

    def __init__(self, shm: Shm, *, row: int) -> None:
        self._shm = shm
        self._row = row
        self._series: dict[tuple[str, tuple[str, ...]], Counter] = {}

    def add(self, name: str, labels: tuple[str, ...], amount: int = 1) -> None:
        """Adds to a counter."""
        series = self._series.get((name, labels))
        if series is None:
            series = self._series[name, labels] = self.counter(name, labels)
        series.add(amount)

    def counter(self, name: str, labels: tuple[str, ...]) -> Counter:
        """Gives one series of a counter, for who adds to it with each request."""
        key = series_key(name, labels)
        return NativeCounter(self._shm, self._row, key) if isinstance(self._shm, NativeShm) else PlainCounter(self._shm, self._row, key)

    def first_labels(self, name: str) -> set[str]:
        """Gives the values of the first label of all series of a metric, whichever process made them, as they are written."""
        found = (FIRST_LABEL.match(key.decode("utf-8", "replace")) for key, _ in self._shm.totals())
        return {match[2] for match in found if match is not None and match[1] == name}

    def histogram(self, name: str, labels: tuple[str, ...]) -> Histogram:
        """Gives one series of a histogram."""
        key = series_key(name, labels)
        if isinstance(self._shm, NativeShm):
            return NativeHistogram(self._shm, self._row, key, DURATION_S)
        return PlainHistogram(self._shm, self._row, key)


class HttpObserver:
    """Counts what the application tells it; see `smg.server.app.Observer`."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._series: dict[tuple[str, str, int], tuple[Counter, Counter, Histogram]] = {}

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        """Takes one finished request; `path` is a route's template."""
        method = method if method in METHODS else "OTHER"
        series = self._series.get((method, path, status))
        if series is None:
            series = self._series[method, path, status] = (
                self._meter.counter("smg_http_requests_total", (method, path)),
                self._meter.counter("smg_http_responses_total", (path, str(status), "")),
                self._meter.histogram("smg_http_request_duration_seconds", (method, path)),
            )
        requests, responses, durations = series
        requests.add()
        responses.add()
        durations.observe(seconds)


def series_key(name: str, values: tuple[str, ...]) -> bytes:
    """Gives `name{label="value",…}` as Prometheus writes it."""
    pairs = ",".join(f'{label}="{escape(value)}"' for label, value in zip(METRICS[name].labels, values, strict=True))
    return (f"{name}{{{pairs}}}" if pairs else name).encode("utf-8", "backslashreplace")


def escape(value: str) -> str:
    """Gives a label's value, shortened where it is too long to be one."""
    if len(value) * 4 > LONGEST_LABEL_BYTES:
        value = value.encode("utf-8", "replace")[:LONGEST_LABEL_BYTES].decode("utf-8", "ignore")
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def written(value: float) -> str:
    """Gives a number as Prometheus reads it, whole ones with all their digits."""
    return str(int(value)) if isinstance(value, int) else f"{value:g}"


def render(shm: Shm, *, gauges: Iterable[Sample]) -> bytes:
    """Gives all metrics in Prometheus' text format, version 0.0.4."""
    lines: dict[str, list[str]] = {}
    sums: dict[bytes, list[int]] = {}
    for key, values in shm.totals():
        before = sums.get(key)
        sums[key] = values if before is None else [one + other for one, other in zip(before, values, strict=True)]
    for key, values in sorted(sums.items()):
        text = key.decode()
        name = text.partition("{")[0]
        if name in METRICS:
            lines.setdefault(name, []).extend(_histogram(text, values) if len(values) > 1 else [f"{text} {values[0]}"])
    for sample in gauges:
        lines.setdefault(sample.name, []).append(f"{series_key(sample.name, sample.labels).decode()} {written(sample.value)}")
    text_lines = []
    for name, metric in METRICS.items():
        if name in lines:
            text_lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}", *lines[name]]
    return ("\n".join(text_lines) + "\n").encode()


def _histogram(key: str, values: list[int]) -> list[str]:
    name, _, rest = key.partition("{")
    labels = rest.removesuffix("}")
    before = f"{labels}," if labels else ""
    lines, count = [], 0
    for bound, value in zip((*map("{:g}".format, DURATION_S), "+Inf"), values, strict=False):
        count += value
        lines.append(f'{name}_bucket{{{before}le="{bound}"}} {count}')
    suffix = f"{{{labels}}}" if labels else ""
    return [*lines, f"{name}_sum{suffix} {values[-1] / MICRO:.6f}", f"{name}_count{suffix} {count}"]
