# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The header fields of gRPC calls: checked and laid out once for each method of an engine, used by `smg_ext.plane` for each call.

Fields as in github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, Request-Headers. Made by `smg.engine.native`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from smg_ext.nghttp2 cimport NGHTTP2_FLAG_NONE, nghttp2_nv

__all__ = ["Headers"]

cdef bytes TIMEOUT = b"grpc-timeout"


cdef class Headers:
    """What the calls of one method have in common. `metadata`: lower-case (name, value) pairs.

    Raises ValueError for a character that no header may hold, or when there are too many fields.
    """

    def __cinit__(self, bytes path not None, bytes authority not None, *, bint secure, list metadata not None):
        cdef bytes name, value
        fields = [
            (b":method", b"POST"), (b":scheme", b"https" if secure else b"http"), (b":path", path), (b":authority", authority),
            (b"te", b"trailers"), (b"content-type", b"application/grpc"), *metadata,
        ]
        if len(fields) >= HEADERS_MOST:
            raise ValueError("too many header fields")
        self.texts = fields
        for name, value in fields:
            _check(name, value)
            self.fields[self.count] = _field(name, value)
            self.count += 1

    cdef size_t fill(self, nghttp2_nv *into, bytes timeout) except 0:
        """Writes the fields of one call, and gives their number. They point into `self` and `timeout`, None = no deadline."""
        memcpy(into, self.fields, self.count * sizeof(nghttp2_nv))
        if timeout is None:
            return self.count
        _check(TIMEOUT, timeout)
        into[self.count] = _field(TIMEOUT, timeout)
        return self.count + 1


cdef int _check(bytes name, bytes value) except -1:
    if b"\n" in value or b"\r" in value or b"\0" in value:
        raise ValueError(f"the header {name!r} holds a character that no header may hold")
    return 0


cdef nghttp2_nv _field(bytes name, bytes value) noexcept:
    return nghttp2_nv(
        <uint8_t *>PyBytes_AS_STRING(name), <uint8_t *>PyBytes_AS_STRING(value), <size_t>PyBytes_GET_SIZE(name),
        <size_t>PyBytes_GET_SIZE(value), NGHTTP2_FLAG_NONE,
    )
