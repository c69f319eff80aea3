"""State of an engine from the results of its checks."""

import pytest

from smg.config.tree import Health
from smg.worker import EngineState
from smg.worker.health import HealthTracker

CONFIG = Health(failure_threshold=3, success_threshold=2, check_interval_s=60, startup_timeout_s=100)


def tracker(state: EngineState = EngineState.PENDING) -> HealthTracker:
    return HealthTracker(CONFIG, now_s=0, state=state)


def test_pending_is_ready_after_the_success_threshold_without_waiting() -> None:
    made = tracker()
    assert made.success(now_s=1) is EngineState.PENDING
    assert made.delay_s() == 0
    assert made.success(now_s=1) is EngineState.READY
    assert made.delay_s() == 60


def test_a_failure_between_starts_the_count_again() -> None:
    made = tracker()
    made.success(now_s=1)
    made.failure(now_s=1)
    assert made.success(now_s=1) is EngineState.PENDING
    assert made.success(now_s=1) is EngineState.READY


def test_ready_survives_two_failures_and_not_three() -> None:
    made = tracker(EngineState.READY)
    assert [made.failure(now_s=1) for _ in range(2)] == [EngineState.READY] * 2
    assert made.success(now_s=1) is EngineState.READY
    states = [made.failure(now_s=1) for _ in range(3)]
    assert states == [EngineState.READY, EngineState.READY, EngineState.NOT_READY]


def test_failed_checks_are_repeated_soon_and_then_more_rarely() -> None:
    made = tracker(EngineState.READY)
    delays = []
    for _ in range(20):
        made.failure(now_s=1)
        delays.append(made.delay_s())
    assert delays[0] <= 0.1
    assert delays == sorted(delays)
    assert delays[-1] == 1


def test_a_short_interval_bounds_every_delay() -> None:
    made = HealthTracker(Health(check_interval_s=0.2), now_s=0)
    for _ in range(20):
        made.failure(now_s=1)
    assert made.delay_s() == 0.2


def test_pending_for_longer_than_the_startup_timeout_is_failed() -> None:
    made = tracker()
    assert made.failure(now_s=100) is EngineState.PENDING
    assert made.failure(now_s=101) is EngineState.FAILED
    assert made.delay_s() == 60


def test_not_ready_for_nine_intervals_is_failed_and_comes_back() -> None:
    made = tracker(EngineState.READY)
    for _ in range(3):
        made.failure(now_s=10)
    assert made.failure(now_s=10 + 9 * 60) is EngineState.NOT_READY
    assert made.failure(now_s=11 + 9 * 60) is EngineState.FAILED
    assert [made.success(now_s=700) for _ in range(2)] == [EngineState.FAILED, EngineState.READY]


@pytest.mark.parametrize("state", [EngineState.NOT_READY, EngineState.FAILED])
def test_recovery_needs_the_success_threshold(state: EngineState) -> None:
    made = tracker(state)
    assert made.success(now_s=1) is state
    assert made.success(now_s=1) is EngineState.READY
