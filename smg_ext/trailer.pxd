"""Layout of what a call's headers and trailers say, for the plane."""

from libc.stdint cimport uint8_t


cdef struct TrailerC:
    int http_status             # 0 until it is known
    int grpc_status             # -1 until a trailer names it
    bint foreign                # the content is not gRPC's
    char text[1024]             # grpc-message, percent-encoded as received
    size_t text_size


cdef void take_header(
    TrailerC *trailer, bint last, const uint8_t *name, size_t name_size, const uint8_t *value, size_t value_size
) noexcept nogil
cdef bint is_grpc(const TrailerC *trailer) noexcept nogil
cdef object status_of(const TrailerC *trailer, object reset_code)
