"""What is under way at engines, as routing weighs it. `loads_of` gives the native class of `smg_ext.loads`, or its twin for a plain block.

Made by `smg.worker` in each data worker.
"""

from array import array

from smg._ext import NO_EXT, NativeLoads, native_least_of
from smg.obs.shm import PlainShm, Shm
from smg.types.candidate import MOST_REQUESTS, MOST_TOKENS, Candidate, Cost

__all__ = ["SURVEY_FIELDS", "LoadReader", "PlainLoads", "least_of", "loads_of", "plain_least_of"]

# What `survey` says of an engine: requests and prompt tokens in flight, whether it takes requests, its breaker's state, what it has of
# others' requests and tokens, of waiting requests whose tokens it does not tell, and the part of its KV cache in use, in thousandths.
SURVEY_FIELDS = ("requests", "tokens", "usable", "breaker", "foreign_requests", "foreign_tokens", "foreign_untold", "usage_milli")


class PlainLoads:
    """The twin of `smg_ext.loads.Loads`; what each method means is said there."""

    def __init__(self, shm: PlainShm) -> None:
        self._shm = shm

    def survey(self, slots: "array[int]", epochs: "array[int]", state: int, fresh_ms: int, out: "array[int]") -> None:
        fields = len(SURVEY_FIELDS)
        if len(epochs) < len(slots) or len(out) < fields * len(slots):
            raise ValueError("no room for the fields of every slot")
        seen = [self._seen(slot, fresh_ms) for slot in slots]
        for index, (slot, epoch) in enumerate(zip(slots, epochs, strict=False)):
            its_state, its_epoch, breaker, _ = self._shm.engine(slot)
            row = (*seen[index][:2], int(its_state == state and its_epoch == epoch), breaker, *seen[index][2:])
            out[fields * index : fields * index + fields] = array("q", row)

    def works(self, slots: "array[int]", fresh_ms: int, weights: "array[float]", out: "array[int]") -> None:
        if len(weights) != len(Cost.__struct_fields__) or len(out) < len(slots):
            raise ValueError("no room for a number a slot, or not all weights")
        request_tokens, untold_tokens, pressure, overload = weights
        cost = Cost(int(request_tokens), int(untold_tokens), pressure, overload)
        seen = [self._seen(slot, fresh_ms) for slot in slots]
        for index, (requests, tokens, others, others_tokens, untold, usage_milli) in enumerate(seen):
            out[index] = Candidate(slots[index], "", requests, tokens, others, others_tokens, untold, usage_milli / 1000).work(cost)

    def _seen(self, slot: int, fresh_ms: int) -> tuple[int, int, int, int, int, int]:
        running, waiting, used, most, uncached, _, polled_ms, counted_requests, counted_tokens = self._shm.engine(slot)[3]
        sums = array("q", (0, 0))
        self._shm.sums(array("q", (slot,)), sums)
        if polled_ms <= fresh_ms:
            return sums[0], sums[1], 0, 0, 0, 0
        requests = min(max(0, running + waiting - counted_requests), MOST_REQUESTS)
        untold = 0 if uncached else min(waiting, requests)
        tokens = min(max(0, uncached - counted_tokens), MOST_TOKENS)
        return sums[0], sums[1], requests, tokens, untold, 1000 * min(used, 1 << 50) // most if most > 0 else 0


def plain_least_of(works: "array[int]", draw: int, saved: "array[int] | None" = None, unit: int = 1) -> int:
    """The twin of `smg_ext.loads.least_of`."""
    if not works or draw < 0 or unit < 1 or (saved is not None and len(saved) < len(works)):
        raise ValueError("no engines, or a saving, a draw or a unit that cannot be")
    for index in range(len(works) if saved is not None else 0):
        works[index] -= saved[index] // unit  # type: ignore[index]
    least = min(works)
    equal = [index for index, work in enumerate(works) if work == least]
    return equal[draw % len(equal)]


LoadReader = NativeLoads | PlainLoads


def loads_of(shm: Shm | PlainShm) -> LoadReader:
    """Gives the reader of a block."""
    return PlainLoads(shm) if isinstance(shm, PlainShm) else NativeLoads(shm)


least_of = plain_least_of if NO_EXT else native_least_of
