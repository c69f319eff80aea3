"""When systemd's watchdog is fed: as long as no process that serves has stood still for longer than it takes to be killed here."""

from types import SimpleNamespace

import pytest

from smg.server.supervisor import HUNG_AFTER_MS, Supervisor

NOW = 10 * HUNG_AFTER_MS


@pytest.mark.parametrize(
    ("silent_ms", "is_ready", "woken_ago_ms", "fed"),
    [
        (1_000, True, NOW, True),
        (HUNG_AFTER_MS + 1, True, NOW, True),  # it is being killed
        (2 * HUNG_AFTER_MS + 1, True, NOW, False),
        (2 * HUNG_AFTER_MS + 1, False, NOW, True),  # it starts, which has a limit of its own
        (2 * HUNG_AFTER_MS + 1, True, HUNG_AFTER_MS // 2, True),  # the whole machine stood still
    ],
)
def test_fed_unless_a_hung_process_stays(
    monkeypatch: pytest.MonkeyPatch, silent_ms: int, is_ready: bool, woken_ago_ms: int, fed: bool
) -> None:
    monkeypatch.setattr("smg.server.supervisor.now_ms", lambda: NOW)
    supervisor = Supervisor.__new__(Supervisor)
    supervisor.shm = SimpleNamespace(row=lambda row: (1, 2, NOW - silent_ms))  # type: ignore[assignment]
    supervisor._children = {1: SimpleNamespace(ready=is_ready, row=2)}  # type: ignore[dict-item]
    supervisor._hung_after_ms = NOW - woken_ago_ms
    assert supervisor._all_beat() is fed
