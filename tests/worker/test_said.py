"""What people say of an engine: what is refused, and under which name."""

import pytest

from smg.errors import InvalidValue
from smg.types.workers import HealthBody, WorkerBody, WorkerPatch
from smg.worker import edit_said, spec_said


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 10**30])
def test_a_priority_that_cannot_be_passed_on(priority: int) -> None:
    for refused in (
        lambda: spec_said(WorkerBody(url="grpc://a:1", priority=priority), source="api"),
        lambda: edit_said(WorkerPatch(priority=priority)),
    ):
        with pytest.raises(InvalidValue) as caught:
            refused()
        assert caught.value.param == "priority"


@pytest.mark.parametrize("interval_s", [1e-9, 0.049, 0.0, -1.0, float("nan"), float("inf"), 1e6])
def test_an_interval_of_checks_that_cannot_be(interval_s: float) -> None:
    with pytest.raises(InvalidValue) as caught:
        edit_said(WorkerPatch(health=HealthBody(check_interval_secs=interval_s)))
    assert caught.value.param == "health.check_interval_secs"


def test_what_is_at_the_bounds_is_taken() -> None:
    spec = spec_said(WorkerBody(url="grpc://a:1", priority=2**31 - 1, health=HealthBody(check_interval_secs=0.05)), source="api")
    assert (spec.priority, spec.health.check_interval_s) == (2**31 - 1, 0.05)
    assert edit_said(WorkerPatch(priority=-(2**31))).priority == -(2**31)
