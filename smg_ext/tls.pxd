"""Layout of a TLS connection's two directions, for the plane."""

from libc.stdint cimport uint8_t

from smg_ext.nghttp2 cimport nghttp2_session


cdef class TlsPipe:
    cdef object socket
    cdef object tls
    cdef object incoming
    cdef object outgoing
    cdef object unsent          # encrypted bytes that the socket has not taken
    cdef int receive(self, nghttp2_session *session) except -1
    cdef int put(self, const uint8_t *data, size_t size) except -1
    cdef int push(self) except -1
