# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The table of what each character is to a tokenizer: one byte a code point, in pages that are kept once. Immutable.

In: the entries of `smg.tokenizer.characters`, which says what they mean. Shared by all tokenizers of a process.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

__all__ = ["Characters"]


cdef class Characters:
    """Looks up entries; ValueError unless there is one for every code point."""

    def __cinit__(self, const unsigned char[::1] entries):
        cdef size_t page
        cdef bytes content
        if entries.shape[0] != PAGES << 8:
            raise ValueError("not a table of all code points")
        places: dict[bytes, int] = {}
        for page in range(PAGES):
            content = bytes(entries[page << 8 : (page + 1) << 8])
            self.c.pages[page] = places.setdefault(content, len(places))
        self.c.entries = <uint8_t *>malloc(len(places) << 8)
        if self.c.entries == NULL:
            raise MemoryError()
        for page in range(PAGES):
            memcpy(self.c.entries + (<size_t>self.c.pages[page] << 8), &entries[page << 8], 256)
        memcpy(self.c.ascii, &entries[0], 128)

    def __dealloc__(self):
        free(self.c.entries)

    def entry(self, str character not None):
        """Gives the entry of one character (for tests)."""
        return entry_of(&self.c, ord(character))
