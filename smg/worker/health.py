"""What checks say of an engine over time: the results of single checks in, its state and the time of the next check out. No I/O.

Thresholds as in the original (inventory, "Health"), with two differences: an engine that fails is checked again soon instead of after the
whole interval, and a Failed engine is still looked at once an interval and comes back when it answers.
"""

from smg.config.tree import Health
from smg.worker.record import EngineState

__all__ = ["HealthTracker"]

FIRST_RETRY_S = 0.05
RETRY_GROWTH = 1.5
LONGEST_RETRY_S = 1.0
# NotReady for this many failure thresholds' worth of intervals is Failed.
FAILED_AFTER = 3


class HealthTracker:
    """State of one engine. Times are seconds on any one clock."""

    def __init__(self, config: Health, *, now_s: float, state: EngineState = EngineState.PENDING) -> None:
        self.state = state
        self._config = config
        self._since_s = now_s
        self._successes = 0
        self._failures = 0

    def success(self, *, now_s: float) -> EngineState:
        """Takes a good check; gives the state after it."""
        self._successes += 1
        self._failures = 0
        if self.state is not EngineState.READY and self._successes >= self._config.success_threshold:
            self._enter(EngineState.READY, now_s)
        return self.state

    def failure(self, *, now_s: float) -> EngineState:
        """Takes a failed check; gives the state after it."""
        self._failures += 1
        self._successes = 0
        if self.state is EngineState.READY:
            if self._failures >= self._config.failure_threshold:
                self._enter(EngineState.NOT_READY, now_s)
        elif now_s - self._since_s > self._patience_s():
            self._enter(EngineState.FAILED, now_s)
        return self.state

    def delay_s(self) -> float:
        """Gives the time until the next check: at once while good checks are being counted, soon after a failed one."""
        interval_s = self._config.check_interval_s
        if self._failures:
            if self.state is EngineState.FAILED:
                return interval_s
            return float(min(FIRST_RETRY_S * RETRY_GROWTH ** min(self._failures - 1, 20), LONGEST_RETRY_S, interval_s))
        return interval_s if self.state is EngineState.READY else 0.0

    def _patience_s(self) -> float:
        if self.state is EngineState.PENDING:
            return self._config.startup_timeout_s
        return self._config.failure_threshold * FAILED_AFTER * self._config.check_interval_s

    def _enter(self, state: EngineState, now_s: float) -> None:
        if state is not self.state:
            self.state = state
            self._since_s = now_s
