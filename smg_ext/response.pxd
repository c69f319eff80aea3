"""Layout of a streamed response, for exits of the stream machine that write into it without a Python object."""

from libc.stdint cimport uint8_t


cdef class ResponseStream:
    cdef object link
    cdef object transport
    cdef object on_end
    cdef bytes head
    cdef int fd                     # -1: only through the transport
    cdef bint chunked
    cdef bint silent
    cdef readonly long long count   # writes so far

    cdef int send(self, const uint8_t *data, size_t size) except -1
    cdef int _put(self, const uint8_t *data, size_t size, bint last) except -1
