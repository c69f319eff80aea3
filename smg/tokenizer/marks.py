"""Which added tokens are control marks, and a pattern that finds them. Used where client text is kept from becoming a mark."""

import re
from collections.abc import Iterable

__all__ = ["is_control", "is_mark", "pattern_of"]

MARK = re.compile(r"[<\[\]](?=.*\w).+[>\]\[]\Z", re.DOTALL)
BARRED = re.compile(r"<[|｜].*>\Z|<.*[|｜]>\Z", re.DOTALL)


def is_mark(content: str) -> bool:
    """True for added tokens in brackets, such as `<think>` or `[INST]`; False for runs of spaces and other plain text in the table."""
    return MARK.match(content) is not None


def is_control(content: str, *, special: bool) -> bool:
    """True for tokens that steer the model: those flagged special, and barred ones such as `<｜User｜>` that vendors forgot to flag."""
    return special or BARRED.match(content) is not None


def pattern_of(words: Iterable[str]) -> str:
    """Gives a pattern that matches the longest of the words at each place, as the reference library does; words of a kind share
    prefixes."""
    tree: dict[str, dict] = {}  # type: ignore[type-arg]
    for word in words:
        node = tree
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return _branch(tree)


def _branch(root: dict[str, dict]) -> str:  # type: ignore[type-arg]
    """Without recursion on single children, for a word may be longer than Python's stack is deep."""
    text = ""
    node = root
    while len(node) == 1 and "" not in node:
        character, node = next(iter(node.items()))
        text += re.escape(character)
    if len(node) <= 1:
        return text
    ends = "" in node
    options = [re.escape(character) + _branch(child) for character, child in node.items() if character]
    group = options[0] if len(options) == 1 and not ends else f"(?:{'|'.join(options)})" + ("?" if ends else "")
    if len(options) == 1 and ends:
        group = f"(?:{options[0]})?"
    return text + group
