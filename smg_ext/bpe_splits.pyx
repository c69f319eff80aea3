# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Cuts text into the words that a tokenizer merges bytes in: what the split patterns of known vocabularies do, without a pattern engine.

In: a program, which `smg.tokenizer.splitting` makes of a vocabulary's patterns, and valid UTF-8. Out: where the next word ends. A step is a
pattern: a list of alternatives (ops), of which the first that matches counts, as in a regular expression; what none of them matches, up to
where one does, is a word too. Each op is a run of characters by their kinds, so that no character is looked at more than a few times.
"""

from libc.stdint cimport uint8_t, uint32_t

from smg_ext.bpe_ascii cimport Ascii, contraction
from smg_ext.bpe_characters cimport (
    ANY_SPACE, APOSTROPHE, BLANK, KIND_BITS, LOWER, NEWLINE, PUNCTUATION, SLASH, SYMBOL, UPPER, Characters, CharactersC, code_at,
    entry_at, kind_at,
)

__all__ = ["Splits"]

cdef enum OpKind:
    WORD                        # prefix? body+ tail*
    CASED                       # prefix? body* lower+ ending?  or  prefix? body+ lower* ending?
    CONTRACTION                 # 's, 't, 're, 've, 'm, 'll, 'd
    LINES                       # \s*[\r\n]+
    INNER                       # \s+(?!\S)
    PUNCTUATED                  # a sign of ASCII and letters of ASCII
    KANA                        # [一-龥぀-ゟ゠-ヿ]+

NAMES = {
    "word": WORD, "cased": CASED, "contraction": CONTRACTION, "lines": LINES, "inner": INNER, "punctuated": PUNCTUATED, "kana": KANA,
}

cdef extern from *:
    """
    #define smg_lowest_bit(bits) __builtin_ctz(bits)
    """
    int smg_lowest_bit(uint32_t bits) noexcept nogil


cdef class Splits:
    """A program: for each step a list of ops, each a tuple (kind, prefix, body, lower, tail, most, ending, folded) as in `OpC`.

    `ascii`: what the whole program comes to in ASCII, where there is a rule for it. ValueError when there are too many ops.
    """

    def __cinit__(self, Characters characters not None, list steps not None, Ascii ascii=None):
        cdef StepC *step
        if len(steps) > STEPS_MAX or any(len(ops) > OPS_MAX for ops in steps):
            raise ValueError("too many patterns")
        self.characters = characters
        self.c.characters = &characters.c
        if ascii is not None:
            self.c.ascii = ascii.c
        for ops in steps:
            step = &self.c.steps[self.c.count]
            self.c.count += 1
            for op in ops:
                _add(step, NAMES[op[0]], op[1:])

    def cuts(self, str text not None):
        """Gives the words, cut one by one (for tests)."""
        cdef bytes data = text.encode()
        cdef const uint8_t *begin = data
        cdef const uint8_t *end = begin + len(data)
        cdef const uint8_t *at = begin
        cdef const uint8_t *cut
        cdef const uint8_t *bounds[STEPS_MAX]
        words = []
        start_words(bounds, at)
        while at < end:
            cut = next_word(&self.c, bounds, at, end)
            words.append(data[at - begin : cut - begin].decode())
            at = cut
        return words


cdef int _add(StepC *step, int kind, tuple numbers) except -1:
    cdef OpC *op = &step.ops[step.count]
    cdef uint32_t starts
    cdef int i
    op.kind = kind
    op.prefix, op.body, op.lower, op.tail, op.most, op.ending, op.folded = numbers
    if kind == WORD or kind == CASED:
        starts = op.prefix | op.body | op.lower
    elif kind == CONTRACTION:
        starts = APOSTROPHE
    elif kind == LINES or kind == INNER:
        starts = ANY_SPACE
    elif kind == PUNCTUATED:
        starts = PUNCTUATION | SYMBOL | APOSTROPHE | SLASH
    else:
        starts = ~<uint32_t>(UPPER | LOWER | BLANK | NEWLINE | APOSTROPHE | SLASH)
    for i in range(32):
        if starts >> i & 1:
            step.starts[i] |= <uint32_t>1 << step.count
    step.count += 1
    return 0


cdef void start_words(const uint8_t **bounds, const uint8_t *at) noexcept nogil:
    cdef int i
    for i in range(STEPS_MAX):
        bounds[i] = at


cdef const uint8_t *next_word(const SplitsC *splits, const uint8_t **bounds, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Where the word that begins at `at`, before `end`, ends: each step cuts what the one before gives.

    `bounds`: where what each step found last ends, which stays so for all words before that.
    """
    cdef int i
    for i in range(splits.count):
        if bounds[i] <= at:
            bounds[i] = _next_cut(splits, &splits.steps[i], at, end)
        end = bounds[i]
    return end


cdef inline const uint8_t *_next_cut(const SplitsC *splits, const StepC *step, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Where what a step takes from `at`, before `end`, ends."""
    cdef const CharactersC *table = splits.characters
    cdef size_t width
    cdef const uint8_t *cut = _match(table, step, at, end)
    if cut != NULL:
        return cut
    while True:
        entry_at(table, at, &width)
        at += width
        if at >= end or _match(table, step, at, end) != NULL:
            return at


cdef inline const uint8_t *_match(const CharactersC *table, const StepC *step, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """The end of the first op that matches; NULL when none does."""
    cdef size_t width
    cdef uint8_t entry = entry_at(table, at, &width) & KIND_BITS
    cdef uint32_t todo = step.starts[entry]
    cdef const OpC *op
    cdef const uint8_t *cut
    while todo:
        op = &step.ops[smg_lowest_bit(todo)]
        todo &= todo - 1
        if op.kind == WORD:
            cut = _word(table, op, at, end, <uint32_t>1 << entry, width)
        elif op.kind == CASED:
            cut = _cased(table, op, at, end, <uint32_t>1 << entry, width)
        elif op.kind == LINES or op.kind == INNER:
            cut = _spaces(table, op.kind, at, end)
        elif op.kind == CONTRACTION:
            cut = contraction(at, end, op.folded)
        elif op.kind == PUNCTUATED:
            cut = _punctuated(at, end)
        else:
            cut = _kana(at, end)
        if cut != NULL:
            return cut
    return NULL


cdef inline const uint8_t *_run(const CharactersC *table, const uint8_t *at, const uint8_t *end, uint32_t kinds) noexcept nogil:
    """Where a run of characters of some kinds ends."""
    cdef size_t width
    while at < end:
        if at[0] < 0x80:
            if not kinds >> (table.ascii[at[0]] & KIND_BITS) & 1:
                return at
            at += 1
        else:
            if not kind_at(table, at, &width) & kinds:
                return at
            at += width
    return at


cdef const uint8_t *_counted(const CharactersC *table, const uint8_t *at, const uint8_t *end, const OpC *op) noexcept nogil:
    """The same, of some characters at most."""
    cdef size_t width
    cdef uint32_t left = op.most
    while at < end and left and kind_at(table, at, &width) & op.body:
        at += width
        left -= 1
    return at


cdef inline const uint8_t *_word(
    const CharactersC *table, const OpC *op, const uint8_t *at, const uint8_t *end, uint32_t kind, size_t width
) noexcept nogil:
    cdef const uint8_t *body
    cdef size_t following
    if kind & op.prefix and at + width < end and kind_at(table, at + width, &following) & op.body:
        body = at + width
    elif kind & op.body:
        body = at
    else:
        return NULL
    if op.most:
        return _counted(table, body, end, op)
    body = _run(table, body, end, op.body)
    return _run(table, body, end, op.tail) if op.tail else body


cdef const uint8_t *_cased(
    const CharactersC *table, const OpC *op, const uint8_t *at, const uint8_t *end, uint32_t kind, size_t width
) noexcept nogil:
    """The first alternative with its prefix or without, then the second."""
    cdef const uint8_t *body = at + width if kind & op.prefix else at
    cdef const uint8_t *cut = _ending_low(table, op, body, end)
    cdef const uint8_t *more
    if cut == NULL and body != at:
        cut = _ending_low(table, op, at, end)
    if cut == NULL:
        cut = _run(table, body, end, op.body)
        if cut == body:
            body = at
            cut = _run(table, body, end, op.body)
        if cut == body:
            return NULL
        cut = _run(table, cut, end, op.lower)
    if op.ending:
        more = contraction(cut, end, op.folded)
        if more != NULL:
            return more
    return cut


cdef const uint8_t *_ending_low(const CharactersC *table, const OpC *op, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """body* lower+ : the body gives back what lies behind the last of its characters that may be lower as well."""
    cdef const uint8_t *last = NULL
    cdef size_t width
    cdef uint32_t kind
    while at < end:
        kind = kind_at(table, at, &width)
        if not kind & op.body:
            return _run(table, at, end, op.lower) if kind & op.lower else last
        at += width
        if kind & op.lower:
            last = at
    return last


cdef const uint8_t *_spaces(const CharactersC *table, int kind, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """LINES: up to the last line's end in the spaces. INNER: all of them at the end of the text, elsewhere all but the last one."""
    cdef const uint8_t *begin = at
    cdef const uint8_t *line = NULL
    cdef const uint8_t *last = at
    cdef size_t width
    cdef uint32_t found
    while at < end:
        found = kind_at(table, at, &width)
        if not found & ANY_SPACE:
            break
        last = at
        at += width
        if found & NEWLINE:
            line = at
    if kind == LINES:
        return line
    return at if at == end else last if last != begin else NULL


cdef const uint8_t *_punctuated(const uint8_t *at, const uint8_t *end) noexcept nogil:
    cdef const uint8_t *begin = at
    if at[0] >= 0x7F or at[0] <= 0x20:
        return NULL
    at += 1
    while at < end and 0x61 <= (at[0] | 0x20) <= 0x7A:
        at += 1
    return at if at - begin > 1 else NULL


cdef const uint8_t *_kana(const uint8_t *at, const uint8_t *end) noexcept nogil:
    cdef const uint8_t *begin = at
    cdef uint32_t code
    while at < end and 0xE0 <= at[0] < 0xF0:
        code = code_at(at, 3)
        if not (0x4E00 <= code <= 0x9FA5 or 0x3040 <= code <= 0x30FF):
            break
        at += 3
    return at if at != begin else NULL
