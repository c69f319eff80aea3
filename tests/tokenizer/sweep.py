"""Asks the reference library about every character, and writes `smg/tokenizer/characters.py` anew. A minute; for a new release of it.

    python -m tests.tokenizer.sweep [--write]

Without --write it says whether the file is still right. The library's parts know different versions of Unicode, so each is asked by itself:
its regular expressions for classes and spaces, `Digits` for numbers, `NFC` for what is composed.
"""

import argparse
import base64
import textwrap
import unicodedata
import zlib
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from tokenizers import Regex, normalizers, pre_tokenizers

from smg.tokenizer import characters
from smg.tokenizer.characters import CODE_POINTS, COMPOSED, STRANGE, Kind

FILE = Path(characters.__file__)
CHARACTERS = [chr(code) for code in range(CODE_POINTS) if not 0xD800 <= code < 0xE000]
FILE_WIDTH = 136


def matched(pattern: str, among: Iterable[str]) -> set[str]:
    """The characters that the library's regular expressions match."""
    text = "".join(among)
    return set(text) - set(normalizers.Replace(Regex(pattern), "").normalize_str(text))


def digits() -> set[str]:
    """The characters that `Digits` sets apart."""
    text = "".join(f"a{character}" for character in CHARACTERS)
    pieces = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str(text)
    return {piece for piece, _ in pieces if len(piece) == 1 and piece != "a"}


def kinds() -> dict[str, Kind]:
    """The kind of each character that is not of kind OTHER."""
    found: dict[str, Kind] = dict.fromkeys(digits(), Kind.DIGIT)
    han = matched(r"\p{Han}", CHARACTERS)
    apart = {Kind.LETTER: Kind.HAN_LETTER, Kind.NUMBER: Kind.HAN_NUMBER, Kind.MARK: Kind.HAN_MARK, Kind.SYMBOL: Kind.HAN_SYMBOL}
    apart[Kind.PUNCTUATION] = Kind.HAN_SYMBOL  # no pattern tells these two apart
    classes = {
        r"[\p{Lu}\p{Lt}]": Kind.UPPER,
        r"\p{Ll}": Kind.LOWER,
        r"[\p{Lm}\p{Lo}]": Kind.LETTER,
        r"\p{M}": Kind.MARK,
        r"\p{N}": Kind.NUMBER,
        r"\p{P}": Kind.PUNCTUATION,
        r"\p{S}": Kind.SYMBOL,
        r"\s": Kind.SPACE,
    }
    for pattern, kind in classes.items():
        for character in matched(pattern, CHARACTERS):
            found[character] = apart[kind] if character in han else kind
    return found | {"\n": Kind.NEWLINE, "\r": Kind.NEWLINE, " ": Kind.BLANK, "'": Kind.APOSTROPHE, "/": Kind.SLASH}


def composition() -> dict[str, int]:
    """COMPOSED for what composing may change, alone or beside others; STRANGE for what the library, or Python, does not know."""
    ours, theirs = (lambda text: unicodedata.normalize("NFC", text)), normalizers.NFC().normalize_str
    marks = dict.fromkeys((c for c in CHARACTERS if unicodedata.category(c) == "Cn"), STRANGE)
    seconds = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}
    for character in CHARACTERS:
        parts = unicodedata.decomposition(character)
        if parts and not parts.startswith("<"):
            pair = "".join(chr(int(part, 16)) for part in parts.split())
            seconds.update(pair[1:])
            if ours(pair) != theirs(pair):
                marks.update(dict.fromkeys([character, *pair], STRANGE))
    for character in CHARACTERS:
        contexts = [context % character for context in ("a\u0301%s", "a%s\u0301", "e%s\u0323\u0302", "%s\u0327")]
        if any(ours(text) != theirs(text) for text in contexts):
            marks[character] = STRANGE
        elif unicodedata.combining(character) or ours(character) != character or character in seconds:
            marks.setdefault(character, COMPOSED)
    return marks


def runs() -> bytes:
    """The table as `characters.py` has it: for each run of equal characters its length less one, in groups of seven bits, and its entry."""
    kind, marks = kinds(), composition()
    out = bytearray()
    for entry, group in groupby(kind.get(chr(code), Kind.OTHER) | marks.get(chr(code), 0) for code in range(CODE_POINTS)):
        length = sum(1 for _ in group) - 1
        while length > 0x7F:
            out.append(0x80 | length & 0x7F)
            length >>= 7
        out += bytes((length, entry))
    return bytes(out)


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    found = runs()
    if parser.parse_args().write:
        head = FILE.read_text().split("RUNS = ", 1)[0]
        lines = textwrap.wrap(base64.b64encode(zlib.compress(found, 9)).decode(), FILE_WIDTH - 4)
        FILE.write_text(head + "RUNS = (\n" + "".join(f'    "{line}"\n' for line in lines) + ")\n")
        return 0
    same = found == characters.unpacked()
    print("the table is right" if same else "the library has other characters now: run with --write")
    return not same


if __name__ == "__main__":
    raise SystemExit(main())
