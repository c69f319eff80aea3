# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""TLS under an HTTP/2 session: what the socket brings goes into nghttp2 decrypted, frames go out encrypted. Used by `smg_ext.plane`.

Works on an `ssl.SSLObject` with its two `ssl.MemoryBIO`, whose handshake is done (`smg.engine.dial`).
"""

import ssl

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

from smg_ext.nghttp2 cimport nghttp2_session, nghttp2_session_mem_recv
from smg_ext.session cimport BLOCKED, BROKEN, ENDED, WELL

__all__ = []

cdef enum:
    READ_SIZE = 65536


cdef class TlsPipe:
    """One connection's TLS. Every method gives an outcome; what OpenSSL finds wrong ends the connection."""

    def __cinit__(self, socket, tls):
        self.socket = socket
        self.tls, self.incoming, self.outgoing = tls
        self.unsent = memoryview(b"")

    cdef int receive(self, nghttp2_session *session) except -1:
        """Reads once from the socket and hands over all that can be decrypted."""
        cdef const unsigned char[::1] plain
        cdef int outcome = WELL
        try:
            data = self.socket.recv(READ_SIZE)
            outcome = WELL if data else ENDED
            self.incoming.write(data)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            outcome = ENDED
        try:
            while True:
                plain = self.tls.read(READ_SIZE)
                if plain.shape[0] == 0:
                    return ENDED
                if nghttp2_session_mem_recv(session, &plain[0], <size_t>plain.shape[0]) < 0:
                    return BROKEN
        except ssl.SSLWantReadError:
            return outcome
        except ssl.SSLError:
            return ENDED

    cdef int put(self, const uint8_t *data, size_t size) except -1:
        """Encrypts; `push` sends."""
        try:
            self.tls.write(PyBytes_FromStringAndSize(<const char *>data, <Py_ssize_t>size))
        except OSError:
            return ENDED
        return WELL

    cdef int push(self) except -1:
        """Sends what is encrypted, as far as the socket takes it."""
        try:
            while True:
                if not self.unsent:
                    self.unsent = memoryview(self.outgoing.read())
                    if not self.unsent:
                        return WELL
                self.unsent = self.unsent[self.socket.send(self.unsent):]
        except (BlockingIOError, InterruptedError):
            return BLOCKED
        except OSError:
            return ENDED
