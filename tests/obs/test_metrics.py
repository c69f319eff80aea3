"""Metrics from several processes' rows, as Prometheus reads them."""

import pytest

from smg.obs.metrics import DURATION_S, METRICS, HttpObserver, Meter, Sample, render
from smg.obs.shm import PlainShm, Shm
from tests.shm.memory import shared_memory


@pytest.fixture(params=[Shm, PlainShm], ids=["native", "plain"])
def shm(request: pytest.FixtureRequest) -> Shm:
    made: Shm = request.param(shared_memory(rows=4, engines=1, series=64, cells=512))
    return made


def lines(shm: Shm, *gauges: Sample) -> list[str]:
    return render(shm, gauges=gauges).decode().splitlines()


def test_counts_are_summed_over_processes_and_outlive_them(shm: Shm) -> None:
    for row in (2, 3):
        Meter(shm, row=row).add("smg_http_requests_total", ("GET", "/v1/models"), row)
    shm.clear_row(2)
    Meter(shm, row=2).add("smg_http_requests_total", ("GET", "/v1/models"))
    assert lines(shm) == [
        "# HELP smg_http_requests_total HTTP requests by route",
        "# TYPE smg_http_requests_total counter",
        'smg_http_requests_total{method="GET",path="/v1/models"} 6',
    ]


def test_histograms_are_cumulative(shm: Shm) -> None:
    meter = Meter(shm, row=2)
    for seconds in (0.001, 0.0011, 0.3, 10_000.0):
        meter.histogram("smg_router_stage_duration_seconds", ("grpc", "tokenize")).observe(seconds)
    text = lines(shm)
    name, labels = "smg_router_stage_duration_seconds", 'router_type="grpc",stage="tokenize"'
    assert f'{name}_bucket{{{labels},le="0.001"}} 1' in text
    assert f'{name}_bucket{{{labels},le="0.005"}} 2' in text
    assert f'{name}_bucket{{{labels},le="0.25"}} 2' in text
    assert f'{name}_bucket{{{labels},le="0.5"}} 3' in text
    assert f'{name}_bucket{{{labels},le="7200"}} 3' in text
    assert f'{name}_bucket{{{labels},le="+Inf"}} 4' in text
    assert f"{name}_count{{{labels}}} 4" in text
    assert f"{name}_sum{{{labels}}} 10000.302100" in text
    assert len(text) == 2 + len(DURATION_S) + 1 + 2


def test_labels_are_escaped_and_bounded(shm: Shm) -> None:
    Meter(shm, row=2).add("smg_http_requests_total", ("GET", 'a"b\\c\nd' + "x" * 500))
    (line,) = [line for line in lines(shm) if not line.startswith("#")]
    assert 'path="a\\"b\\\\c\\nd' in line
    assert len(line) < 250


def test_labels_in_any_script_stay_whole(shm: Shm) -> None:
    meter = Meter(shm, row=2)
    meter.add("smg_http_requests_total", ("GET", "é🙂" * 200))
    meter.add("smg_router_tokens_total", ("🙂" * 99, "🙂" * 99, "🙂" * 99, "🙂" * 99, "input"))
    (line,) = [line for line in lines(shm) if not line.startswith("#")]
    assert line.count("🙂") == 26
    assert shm.dropped() == 1


def test_gauges_are_given_at_scrape(shm: Shm) -> None:
    text = lines(shm, Sample("smg_worker_health", ("grpc://a:1",), 1), Sample("smg_worker_health", ("grpc://b:1",), 0))
    assert text[1:] == [
        "# TYPE smg_worker_health gauge",
        'smg_worker_health{worker="grpc://a:1"} 1',
        'smg_worker_health{worker="grpc://b:1"} 0',
    ]


def test_counters_that_are_kept_elsewhere_have_all_their_digits(shm: Shm) -> None:
    text = lines(shm, Sample("smg_worker_cb_outcomes_total", ("grpc://a:1", "success"), 123_456_789), Sample("smg_kv_blocks", ("a",), 0.5))
    assert 'smg_worker_cb_outcomes_total{worker="grpc://a:1",outcome="success"} 123456789' in text
    assert "# TYPE smg_worker_cb_outcomes_total counter" in text
    assert 'smg_kv_blocks{worker="a"} 0.5' in text


def test_series_without_room_are_dropped_and_counted(shm: Shm) -> None:
    meter = Meter(shm, row=2)
    for index in range(100):
        meter.add("smg_http_requests_total", ("GET", f"/{index}"))
    assert len([line for line in lines(shm) if not line.startswith("#")]) == 64
    assert shm.dropped() == 36


def test_methods_that_clients_invent_make_no_series(shm: Shm) -> None:
    observer = HttpObserver(Meter(shm, row=2))
    for index in range(50):
        observer.observe(f"X{index}", "/health", 405, 0.01)
    assert 'smg_http_requests_total{method="OTHER",path="/health"} 50' in lines(shm)
    assert 'smg_http_responses_total{path="/health",status_code="405",error_code=""} 50' in lines(shm)


def test_a_wrong_number_of_labels_is_a_mistake(shm: Shm) -> None:
    with pytest.raises(ValueError, match="zip"):
        Meter(shm, row=2).add("smg_http_requests_total", ("GET",))


def test_names_are_the_original_s() -> None:
    assert all(name.startswith("smg_") for name in METRICS)
    assert all(name.endswith("_seconds") for name, metric in METRICS.items() if metric.kind == "histogram")
