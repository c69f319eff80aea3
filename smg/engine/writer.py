"""GenerateRequests in bytes, for the native plane: an `EngineRequest` in, what the driver's `encode` would serialize to out. Used by
`smg.engine.grpc`.

Requests of one application differ in little but id and prompt. So the rest, as `encode` gives it, is kept by its values (equal ones are
one: -0.0 is 0.0), and native code adds id and prompt. The bytes may differ from protobuf's own in the order of fields; what is parsed
from them does not.
"""

from collections.abc import Callable
from functools import cache
from operator import attrgetter

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from msgspec.structs import replace

from smg._ext import RequestLayout, packed_ids
from smg.engine.base import EngineRequest, ResolvedSampling
from smg.engine.fields import request_numbers

__all__ = ["RequestWriter"]

OWN = ("request_id", "prompt_ids", "packed_ids", "prompt_text")
# What is kept of a protocol's requests: at most 256 times 4 KB, and keys of that size.
KEPT_REQUESTS = 256
KEPT_BYTES = 4096

_rest = attrgetter(*[name for name in EngineRequest.__struct_fields__ if name not in (*OWN, "sampling")])
_sampling = attrgetter(*[name for name in ResolvedSampling.__struct_fields__ if name != "logit_bias"])


@cache
def _shared(request: Descriptor) -> tuple[RequestLayout, dict[tuple[object, ...], bytes]]:
    """What all engines of a protocol use: the layout, and what is kept."""
    return RequestLayout(**request_numbers(request)), {}


class RequestWriter:
    """Writes one protocol's requests. `encode` must depend on nothing but the request: what it gives serves all engines of the protocol."""

    def __init__(self, request: Descriptor, encode: Callable[[EngineRequest], Message]) -> None:
        self._layout, self._kept = _shared(request)
        self._encode = encode

    def write(self, request: EngineRequest) -> bytes:
        """Gives the serialized request. Raises ValueError or TypeError when a value does not fit its field."""
        once = request.sampling.logit_bias or request.transfer  # not what others will say
        fixed = self._encoded(request) if once else self._fixed(request)
        packed = request.packed_ids or packed_ids(request.prompt_ids)
        return self._layout.write(fixed, request_id=request.request_id, text=request.prompt_text, packed=packed)

    def _fixed(self, request: EngineRequest) -> bytes:
        key = (_sampling(request.sampling), _rest(request))
        fixed = self._kept.get(key)
        if fixed is None:
            fixed = self._encoded(request)
            if len(fixed) <= KEPT_BYTES:
                if len(self._kept) >= KEPT_REQUESTS:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = fixed
        return fixed

    def _encoded(self, request: EngineRequest) -> bytes:
        return self._encode(replace(request, request_id="", prompt_ids=[], packed_ids=b"", prompt_text="")).SerializeToString()
