"""A vocabulary of byte pairs, for `bpe`."""

from smg_ext.bpe_merge cimport TableC


cdef class Table:
    cdef TableC c
