"""How long the simulated GPU works: token counts come in, seconds go out. Called by the scheduler once a step."""

from msgspec import Struct

from smg.sim.options import SimOptions

__all__ = ["CostModel"]


class CostModel(Struct, frozen=True, kw_only=True):
    """A linear model of one engine. The defaults are of the order of an 8B model on one H100; `speed` divides all, 0 makes all nothing.

    A step that computes prompts and answers costs both, as each delays the other in engines that batch them together (DistServe, 2024,
    section 2). That is the price of two passes, one after the other. One pass for both, as in vLLM, reads the weights while it computes
    the prompts (Sarathi-Serve, 2024, section 3: of memory's and arithmetic's time the longer one counts): that is `step_overlap` 1.

    Of the 50 us a sequence most is its KV cache, which a step reads: 131,072 bytes a token of an 8B model with 8 KV heads, 0.039 us at an
    H100's 3.35 TB/s, so 50 us are about 1,300 tokens. Where contexts are much longer, set `step_token_us` to that and `step_sequence_us`
    to about 5.
    """

    prefill_base_ms: float = 4.0
    prefill_token_us: float = 33.0
    step_base_ms: float = 7.0
    step_sequence_us: float = 50.0
    step_token_us: float = 0.0
    step_overlap: float = 0.0
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

    def step_s(self, sequences: int, *, context: int = 0) -> float:
        """Gives the seconds of one decode step of a batch whose sequences have so many tokens together."""
        if not sequences or not self.speed:
            return 0.0
        return (self.step_base_ms / 1e3 + (sequences * self.step_sequence_us + context * self.step_token_us) / 1e6) / self.speed

    def mixed_s(self, tokens: int, sequences: int, *, context: int = 0) -> float:
        """Gives the seconds of a step that computes so many prompt tokens and a token of each sequence."""
        prefill_s, step_s = self.prefill_s(tokens), self.step_s(sequences, context=context)
        if not prefill_s or not step_s:
            return prefill_s + step_s
        return prefill_s + step_s - self.step_overlap * min(prefill_s, self.step_base_ms / 1e3 / self.speed)
