"""Layout of a request's own fields."""

from libc.stdint cimport uint8_t, uint32_t


cdef struct KeyC:
    uint8_t bytes[5]            # field number and wire type 2, as they stand on the wire
    size_t size


cdef class RequestLayout:
    cdef KeyC request_id
    cdef KeyC prompt
    cdef KeyC text              # of the prompt
    cdef KeyC ids               # of the prompt
    cdef bytes _write(self, bytes fixed, const char *id_text, size_t id_size, const char *text, size_t text_size, bytes packed)
