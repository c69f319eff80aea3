"""Knows the split patterns of vocabularies by their text, and says them as programs that `smg_ext.bpe_splits` runs.

In: the pre-tokenizer part of a tokenizer.json. Out: a program, or None for one with anything in it that is not known. A pattern is
known when each of its alternatives is; they are spelled as in the files of GPT-2, cl100k, o200k, Llama 3, Qwen, DeepSeek, Kimi, and
Mistral's tekken.
"""

from enum import IntEnum

from smg._ext import Splits
from smg.tokenizer.blocks import Op, ascii_rule
from smg.tokenizer.characters import Kind, characters
from smg.types.json import Json, JsonObject

__all__ = ["program_of", "splits_of"]


def _kinds(*kinds: IntEnum) -> int:
    return sum(1 << kind for kind in kinds)


ALL = (1 << 32) - 1
HAN = _kinds(Kind.HAN_LETTER, Kind.HAN_NUMBER, Kind.HAN_SYMBOL, Kind.HAN_MARK)
LETTERS = _kinds(Kind.UPPER, Kind.LOWER, Kind.LETTER, Kind.HAN_LETTER)
MARKS = _kinds(Kind.MARK, Kind.HAN_MARK)
NUMBERS = _kinds(Kind.NUMBER, Kind.HAN_NUMBER)
DIGITS = NUMBERS | _kinds(Kind.DIGIT)
SIGNS = _kinds(Kind.PUNCTUATION, Kind.SYMBOL, Kind.HAN_SYMBOL, Kind.APOSTROPHE, Kind.SLASH)
BLANK = _kinds(Kind.BLANK)
LINE = _kinds(Kind.NEWLINE)
SPACES = _kinds(Kind.SPACE, Kind.NEWLINE, Kind.BLANK)
UPPER = _kinds(Kind.UPPER, Kind.LETTER, Kind.HAN_LETTER) | MARKS
LOWER = _kinds(Kind.LOWER, Kind.LETTER, Kind.HAN_LETTER) | MARKS
PREFIX = ALL & ~(LETTERS | NUMBERS | LINE)


def _word(body: int, *, prefix: int = 0, tail: int = 0, most: int = 0) -> Op:
    return ("word", prefix, body, 0, tail, most, False, False)


def _cased(*, han: bool = True, ending: bool = True) -> Op:
    apart = 0 if han else HAN
    return ("cased", PREFIX, UPPER & ~apart, LOWER & ~apart, 0, 0, ending, True)


def _plain(kind: str, *, folded: bool = False) -> Op:
    return (kind, 0, 0, 0, 0, 0, False, folded)


START = r"[^\r\n\p{L}\p{N}]?"
UPPERS, LOWERS = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def _cased_text(apart: str, ending: str) -> str:
    return f"{START}[{UPPERS}{apart}]*[{LOWERS}{apart}]+{ending}|{START}[{UPPERS}{apart}]+[{LOWERS}{apart}]*{ending}"


# Each alternative, or two of them that belong together, by its text; the longest that fits is taken.
ALTERNATIVES: dict[str, Op] = {
    ENDING: _plain("contraction", folded=True),
    r"'(?i:[sdmt]|ll|ve|re)": _plain("contraction", folded=True),
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])": _plain("contraction", folded=True),
    "'s|'t|'re|'ve|'m|'ll|'d": _plain("contraction"),
    r" ?\p{L}+": _word(LETTERS, prefix=BLANK),
    r" ?\p{N}+": _word(NUMBERS, prefix=BLANK),
    r" ?[^\s\p{L}\p{N}]+": _word(ALL & ~(SPACES | LETTERS | NUMBERS), prefix=BLANK),
    rf"{START}\p{{L}}+": _word(LETTERS, prefix=PREFIX),
    r"[^\r\n\p{L}\p{N}]?+\p{L}+": _word(LETTERS, prefix=PREFIX),
    rf"{START}[\p{{L}}\p{{M}}]+": _word(LETTERS | MARKS, prefix=PREFIX),
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+": _word(LETTERS | MARKS, prefix=ALL & ~(LETTERS | SIGNS | LINE)),
    _cased_text("", f"{ENDING}?"): _cased(),
    _cased_text("", ""): _cased(ending=False),
    _cased_text(r"&&[^\p{Han}]", f"{ENDING}?"): _cased(han=False),
    r"[\p{Han}]+": _word(HAN),
    r"\p{N}": _word(NUMBERS, most=1),
    r"\p{N}{1,3}": _word(NUMBERS, most=3),
    r" ?[^\s\p{L}\p{N}]+[\r\n]*": _word(ALL & ~(SPACES | LETTERS | NUMBERS), prefix=BLANK, tail=LINE),
    r" ?[^\s\p{L}\p{N}]++[\r\n]*": _word(ALL & ~(SPACES | LETTERS | NUMBERS), prefix=BLANK, tail=LINE),
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*": _word(ALL & ~(SPACES | LETTERS | NUMBERS), prefix=BLANK, tail=LINE | _kinds(Kind.SLASH)),
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*": _word(ALL & ~(SPACES | LETTERS | MARKS | NUMBERS), prefix=BLANK, tail=LINE),
    " ?[\\p{P}\\p{S}]+[\r\n]*": _word(SIGNS, prefix=BLANK, tail=LINE),
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+": _plain("punctuated"),
    "[一-龥\u3040-ゟ゠-ヿ]+": _plain("kana"),
    r"\s*[\r\n]+": _plain("lines"),
    r"\s*[\r\n]": _plain("lines"),
    r"\s+(?!\S)": _plain("inner"),
    r"\s+": _word(SPACES),
}
LONGEST_FIRST = sorted(ALTERNATIVES, key=len, reverse=True)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # what `ByteLevel` splits by


def splits_of(pre_tokenizer: Json) -> Splits | None:
    """Gives the native form of a pre-tokenizer's program; None where it has none."""
    program = program_of(pre_tokenizer)
    if program is None:
        return None
    try:
        return Splits(characters(), program, ascii_rule(program))
    except ValueError:
        return None


def program_of(pre_tokenizer: Json) -> list[list[Op]] | None:
    """Gives the program of a pre-tokenizer that ends in `ByteLevel`: the ops of each step. None for one of another kind."""
    steps = _parts(pre_tokenizer)
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space") is not False:
        return None
    programs = [_step(step) for step in steps[:-1]]
    if steps[-1].get("use_regex") is not False:
        programs.append(_pattern(GPT2))
    known = [program for program in programs if program is not None]
    return known if len(known) == len(programs) else None


def _parts(pre_tokenizer: Json) -> list[JsonObject]:
    if not isinstance(pre_tokenizer, dict):
        return []
    parts = pre_tokenizer.get("pretokenizers")
    if pre_tokenizer.get("type") == "Sequence" and isinstance(parts, list):
        return [part if isinstance(part, dict) else {} for part in parts]
    return [pre_tokenizer]


def _step(step: JsonObject) -> list[Op] | None:
    if step.get("type") == "Digits":
        return [_word(DIGITS, most=1 if step.get("individual_digits") is True else 0)]
    pattern = step.get("pattern")
    if step.get("type") != "Split" or step.get("behavior") != "Isolated" or step.get("invert") is True or not isinstance(pattern, dict):
        return None
    text = pattern.get("Regex")
    return _pattern(text) if isinstance(text, str) else None


def _pattern(text: str) -> list[Op] | None:
    """The ops of a pattern."""
    ops: list[Op] = []
    text = text.replace("\\r", "\r").replace("\\n", "\n")
    while True:
        for alternative in LONGEST_FIRST:
            written = alternative.replace("\\r", "\r").replace("\\n", "\n")
            if text == written:
                return [*ops, ALTERNATIVES[alternative]]
            if text.startswith(f"{written}|"):
                ops.append(ALTERNATIVES[alternative])
                text = text[len(written) + 1 :]
                break
        else:
            return None
