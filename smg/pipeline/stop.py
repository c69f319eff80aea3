"""Stop strings in a stream of text: text in, text that is surely not part of a stop string out. Called by the stream machine."""

import re
from collections import deque
from functools import lru_cache

__all__ = ["StopMatcher"]


class Automaton:
    """The part that does not change while text is read, so that all choices of a request share it. State 0 is the root."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.word = [-1]
        for index, string in enumerate(strings):
            self._add(string, index)
        self.fail = self._links()
        self.first = re.compile("[" + re.escape("".join(sorted({string[0] for string in strings}))) + "]")

    def _add(self, string: str, index: int) -> None:
        state = 0
        for char in string:
            if char not in self.next[state]:
                self.next[state][char] = len(self.next)
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.word.append(-1)
            state = self.next[state][char]
        if self.word[state] < 0:
            self.word[state] = index

    def _links(self) -> list[int]:
        """Failure links in breadth-first order; a state also ends the word that its longest ending suffix ends."""
        fail = [0] * len(self.next)
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self.next[state].items():
                link = fail[state]
                while link and char not in self.next[link]:
                    link = fail[link]
                fail[child] = self.next[link].get(char, 0)
                queue.append(child)
            if self.word[state] < 0:
                self.word[state] = self.word[fail[state]]
        return fail


@lru_cache(maxsize=8)
def automaton_of(strings: tuple[str, ...]) -> Automaton:
    """Gives the automaton of these strings; the latest few are kept."""
    return Automaton(strings)


class StopMatcher:
    """An Aho-Corasick automaton over characters (Aho and Corasick 1975), fed in any division of the text.

    Holds back exactly the longest tail that may still grow into a stop string. The match that ends first wins; of those ending at the same
    character the longest, so that no part of a stop string is shown. One step a character, whatever the number and length of the strings.
    """

    def __init__(self, strings: tuple[str, ...], *, include: bool = False) -> None:
        self.strings = strings
        self.include = include
        self.matched: str | None = None
        self._state = 0
        self._held = ""
        self._first = None
        if strings:
            automaton = automaton_of(strings)
            self._first = automaton.first
            self._next, self._depth, self._word, self._fail = automaton.next, automaton.depth, automaton.word, automaton.fail

    def feed(self, text: str, *, armed: bool = True) -> str:
        """Gives the text that is safe to show. On a match sets `matched` and gives what stands before it (with it, if included).

        Not `armed`, the text is followed but no match ends it: for tokens below `min_tokens`.
        """
        if self._first is None or self.matched is not None:
            return "" if self.matched is not None else text
        buffer, held = self._held + text, len(self._held)
        position = held
        while position < len(buffer):
            if self._state == 0:
                found = self._first.search(buffer, position)
                if found is None:
                    position = len(buffer)
                    break
                position = found.start()
            self._step(buffer[position])
            position += 1
            if armed and self._word[self._state] >= 0:
                return self._match(buffer, position)
        keep = len(buffer) - self._depth[self._state]
        self._held = buffer[keep:]
        return buffer[:keep]

    def finish(self) -> str:
        """Gives what was held back, at the end of the output."""
        held, self._held = self._held, ""
        return "" if self.matched is not None else held

    def _match(self, buffer: str, end: int) -> str:
        self.matched = self.strings[self._word[self._state]]
        self._held = ""
        return buffer[: end if self.include else end - len(self.matched)]

    def _step(self, char: str) -> None:
        state = self._state
        while state and char not in self._next[state]:
            state = self._fail[state]
        self._state = self._next[state].get(char, 0)
