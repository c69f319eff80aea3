# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""How a call ended: header fields in, gRPC status and text out. Used by `smg_ext.plane`.

Rules as in github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md (Responses, Errors) and doc/http-grpc-status-mapping.md.
"""

from urllib.parse import unquote_to_bytes

from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy

__all__ = []

cdef enum:
    CANCELLED = 1
    UNKNOWN = 2
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16

BY_RESET = {7: UNAVAILABLE, 8: CANCELLED, 11: RESOURCE_EXHAUSTED, 12: PERMISSION_DENIED}
BY_HTTP = {
    400: INTERNAL, 401: UNAUTHENTICATED, 403: PERMISSION_DENIED, 404: UNIMPLEMENTED,
    429: UNAVAILABLE, 502: UNAVAILABLE, 503: UNAVAILABLE, 504: UNAVAILABLE,
}


cdef void take_header(TrailerC *trailer, bint last, const uint8_t *name, size_t name_size, const uint8_t *value,
                      size_t value_size) noexcept nogil:
    """Takes one field; `last` when it stands in the frame that ends the stream, where alone a gRPC status counts."""
    if name_size == 7 and memcmp(name, b":status", 7) == 0:
        trailer.http_status = _number(value, value_size)
    elif name_size == 12 and memcmp(name, b"content-type", 12) == 0:
        trailer.foreign = value_size < 16 or memcmp(value, b"application/grpc", 16) != 0
    elif last and name_size == 11 and memcmp(name, b"grpc-status", 11) == 0:
        trailer.grpc_status = _number(value, value_size)
    elif last and name_size == 12 and memcmp(name, b"grpc-message", 12) == 0:
        trailer.text_size = min(value_size, sizeof(trailer.text))
        memcpy(trailer.text, value, trailer.text_size)


cdef bint is_grpc(const TrailerC *trailer) noexcept nogil:
    """True when the body holds gRPC messages, and not the page of a proxy."""
    return trailer.http_status == 200 and not trailer.foreign


cdef int _number(const uint8_t *digits, size_t size) noexcept nogil:
    cdef int value = 0
    cdef size_t i
    if size == 0 or size > 3:
        return UNKNOWN
    for i in range(size):
        if digits[i] < 48 or digits[i] > 57:
            return UNKNOWN
        value = value * 10 + digits[i] - 48
    return value


cdef object status_of(const TrailerC *trailer, object reset_code):
    """Gives (status, text): the trailer's, else what the reset or the HTTP status stands for. `reset_code`: None without a reset."""
    if trailer.grpc_status >= 0:
        if trailer.text_size == 0:
            return trailer.grpc_status, ""
        return trailer.grpc_status, unquote_to_bytes(trailer.text[:trailer.text_size]).decode("utf-8", "replace")
    if trailer.http_status not in (0, 200):
        return BY_HTTP.get(trailer.http_status, UNKNOWN), f"the engine answered with HTTP status {trailer.http_status}"
    if reset_code is not None:
        return BY_RESET.get(reset_code, INTERNAL), f"the engine reset the stream (HTTP/2 code {reset_code})"
    if trailer.foreign:
        return UNKNOWN, "the engine answered with something that is not gRPC"
    return INTERNAL, "the engine ended the stream without a status"
