"""How long the simulated GPU works: token counts come in, seconds go out. Called by the scheduler once a step."""

from msgspec import Struct

from smg.sim.options import SimOptions

__all__ = ["CostModel"]


class CostModel(Struct, frozen=True, kw_only=True):
    """A linear model of one engine. The defaults are of the order of an 8B model on one H100; `speed` divides all, 0 makes all nothing."""

    prefill_base_ms: float = 4.0
    prefill_token_us: float = 33.0
    step_base_ms: float = 7.0
    step_sequence_us: float = 50.0
    speed: float = 1.0

    @classmethod
    def from_options(cls, options: SimOptions) -> "CostModel":
        """Takes the fields of the same names."""
        return cls(**{name: getattr(options, name) for name in cls.__struct_fields__})

    def prefill_s(self, tokens: int) -> float:
        """Gives the seconds of a prefill of `tokens` uncached tokens."""
        if not tokens or not self.speed:
            return 0.0
        return (self.prefill_base_ms / 1e3 + tokens * self.prefill_token_us / 1e6) / self.speed

    def step_s(self, sequences: int) -> float:
        """Gives the seconds of one decode step of a batch."""
        if not sequences or not self.speed:
            return 0.0
        return (self.step_base_ms / 1e3 + sequences * self.step_sequence_us / 1e6) / self.speed
