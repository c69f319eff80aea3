"""Metrics of one routed request."""

from smg.obs.metrics import Meter, render
from smg.obs.requests import RequestMeter, RequestMeters
from smg.obs.shm import Shm
from tests.shm.memory import shared_memory

SHORT = 'router_type="grpc",backend_type="regular",model="m",endpoint="chat"'
LONG = 'router_type="grpc",backend_type="regular",connection_mode="grpc",model="m",endpoint="chat",streaming="true"'


def request(shm: Shm) -> RequestMeter:
    return RequestMeters(Meter(shm, row=2)).start(model="m", endpoint="chat", streaming=True)


def lines(shm: Shm) -> list[str]:
    return [
        line for line in render(shm, gauges=()).decode().splitlines() if "_bucket" not in line and "_sum" not in line and line[0] != "#"
    ]


def test_a_whole_answer() -> None:
    shm = Shm(shared_memory(rows=4))
    made = request(shm)
    made.answered()
    made.answered()
    made.finish(prompt_tokens=7, completion_tokens=3)
    assert lines(shm) == [
        f"smg_router_requests_total{{{LONG}}} 1",
        f"smg_router_request_duration_seconds_count{{{LONG}}} 1",
        f"smg_router_ttft_seconds_count{{{SHORT}}} 1",
        f"smg_router_tpot_seconds_count{{{SHORT}}} 1",
        f"smg_router_generation_duration_seconds_count{{{SHORT}}} 1",
        *sorted((f'smg_router_tokens_total{{{SHORT},token_type="input"}} 7', f'smg_router_tokens_total{{{SHORT},token_type="output"}} 3')),
    ]


def test_a_failure_before_the_first_token() -> None:
    shm = Shm(shared_memory(rows=4))
    request(shm).fail("engine_unavailable")
    assert lines(shm) == [
        f"smg_router_requests_total{{{LONG}}} 1",
        f"smg_router_request_duration_seconds_count{{{LONG}}} 1",
        f'smg_router_request_errors_total{{{LONG},error_type="engine_unavailable"}} 1',
    ]


def test_who_leaves_at_the_last_token_leaves_a_whole_answer() -> None:
    shm, other = (Shm(shared_memory(rows=4)) for _ in range(2))
    for block in (shm, other):
        made = request(block)
        made.finish(prompt_tokens=7, completion_tokens=1)
        if block is shm:
            made.fail("client_gone")
            made.finish(prompt_tokens=7, completion_tokens=1)
    assert lines(shm) == lines(other)
