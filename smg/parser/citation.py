"""Takes Cohere's citation marks out of visible text: `<co>…</co: 0:[1]>` and `<co: 0>…</co: 0>` leave their inside."""

from collections.abc import Callable

from smg.parser.matcher import Matcher

__all__ = ["Citations"]

OPENS = ("<co>", "<co:", "</co>", "</co:")
SOURCES_MAX = 256  # characters of the list of sources in a mark


class Citations:
    """A filter before `emit`."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._matcher = Matcher(OPENS)
        self._mark = ""

    def text(self, text: str) -> None:
        """More of the channel's text."""
        at, size = 0, len(text)
        while at < size:
            at = self._sources(text, at) if self._mark else self._plain(text, at)

    def _plain(self, text: str, at: int) -> int:
        released, mark, at = self._matcher.scan(text, at, len(text))
        if released:
            self._emit(released)
        self._mark = mark if mark is not None and mark.endswith(":") else ""
        return at

    def _sources(self, text: str, at: int) -> int:
        if text[at] == ">":
            self._mark = ""
        elif text[at] in " ,:[]" or text[at].isalnum():
            self._mark += text[at]
            if len(self._mark) > SOURCES_MAX:
                self.finish()
        else:
            self.finish()
            return at
        return at + 1

    def finish(self) -> None:
        """No mark comes any more: what is held is text."""
        held, self._mark = self._mark + self._matcher.take(), ""
        if held:
            self._emit(held)
