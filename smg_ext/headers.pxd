"""Layout of the header fields that an engine's calls have in common, for the plane."""

from smg_ext.nghttp2 cimport nghttp2_nv


cdef enum:
    HEADERS_MOST = 32           # fields of one call, the deadline included


cdef class Headers:
    cdef nghttp2_nv fields[HEADERS_MOST]
    cdef size_t count
    cdef list texts             # own what `fields` points to
    cdef size_t fill(self, nghttp2_nv *into, bytes timeout) except 0
