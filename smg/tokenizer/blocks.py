"""Knows the programs of splits that come to a rule by which `smg_ext.bpe_ascii` cuts ASCII, many bytes at once. Called by `splitting.py`.

In: a program. Out: its rule, or None for one of another form. A rule says only what becomes of ASCII, control characters excepted: two
programs that differ in other characters may have the same one.
"""

from enum import IntEnum

from smg._ext import Ascii
from smg.tokenizer.characters import Kind

__all__ = ["Op", "ascii_rule"]

# As the native part takes it: kind, prefix, body, lower, tail, most, ending, folded.
Op = tuple[str, int, int, int, int, int, bool, bool]


def _kinds(*kinds: IntEnum) -> int:
    return sum(1 << kind for kind in kinds)


LETTERS = _kinds(Kind.UPPER, Kind.LOWER)
NUMBERS = _kinds(Kind.NUMBER)
SIGNS = _kinds(Kind.PUNCTUATION, Kind.SYMBOL, Kind.APOSTROPHE, Kind.SLASH)
BLANK = _kinds(Kind.BLANK)
SPACE = _kinds(Kind.SPACE)
LINE = _kinds(Kind.NEWLINE)
SEEN = LETTERS | NUMBERS | SIGNS | BLANK | SPACE | LINE  # the kinds of ASCII without control characters


def ascii_rule(program: list[list[Op]]) -> Ascii | None:
    """Gives the rule of a program that cuts out digits, or does not, and then has the classes of nearly all vocabularies in their usual
    order: contractions, letters, digits, signs, spaces up to a line's end, the other spaces."""
    steps = [ops for step in program if (ops := [op for op in step if not _beyond(op)])]
    if not 1 <= len(steps) <= 2:
        return None
    apart = _digits(steps[0][0], alone=len(steps[0]) == 1) if len(steps) == 2 else None
    if len(steps) == 2 and apart is None:
        return None
    ops = steps[-1]
    contraction = _taken(ops, "contraction")
    sign = _taken(ops, "punctuated")
    letters = ops.pop(0) if ops and _are_letters(ops[0]) else None
    digits = _digits(ops[0], alone=False) if ops else None
    del ops[: int(digits is not None)]
    signs = ops.pop(0) if ops and _are_signs(ops[0]) else None
    lines = _taken(ops, "lines")
    if letters is None or signs is None or not _end(ops) or (signs[4] and not lines):
        return None
    if (apart is None and digits is None) or (apart is not None and digits not in (None, 0)):
        return None
    if contraction and letters[6]:
        return None
    return Ascii(
        signs=sign is not None or bool(letters[1] & SIGNS),
        spaces=bool(letters[1] & SPACE),
        cased=letters[0] == "cased",
        digits=(digits if apart is None else apart) or 0,
        apart=apart is not None,
        lines=lines is not None,
        tail=bool(signs[4]),
        slashes=bool(signs[4] & SIGNS),
        contraction="alone" if contraction else "ending" if letters[6] else "",
        folded=(contraction or letters)[7],
    )


def _beyond(op: Op) -> bool:
    """Takes nothing of ASCII."""
    return op[0] == "kana" or (op[0] == "word" and not (op[1] | op[2] & SEEN))


def _taken(ops: list[Op], kind: str) -> Op | None:
    return ops.pop(0) if ops and ops[0][0] == kind else None


def _digits(op: Op, *, alone: bool) -> int | None:
    """How many digits are a word, 0 = any number: then a blank may come before them where they are not cut out `alone`."""
    kind, prefix, body, _, tail, most, *_ = op
    if kind != "word" or body & SEEN != NUMBERS or tail or most not in (0, 1, 3):
        return None
    return most if prefix == (0 if alone or most else BLANK) else None


def _are_letters(op: Op) -> bool:
    kind, prefix, body, lower, tail, most, *_ = op
    if prefix & SEEN & ~NUMBERS not in (BLANK, BLANK | SPACE, BLANK | SPACE | SIGNS) or tail or most:
        return False
    if kind == "cased":
        return body & SEEN == _kinds(Kind.UPPER) and lower & SEEN == _kinds(Kind.LOWER)
    return kind == "word" and body & SEEN == LETTERS


def _are_signs(op: Op) -> bool:
    kind, prefix, body, _, tail, most, *_ = op
    usual = prefix == BLANK and body & SEEN == SIGNS and not most
    return kind == "word" and usual and tail in (0, LINE, LINE | _kinds(Kind.SLASH))


def _end(ops: list[Op]) -> bool:
    """Several spaces less the last one, then any of them."""
    return [op[0] for op in ops] == ["inner", "word"] and ops[1][2] == BLANK | SPACE | LINE and not (ops[1][1] or ops[1][4] or ops[1][5])
