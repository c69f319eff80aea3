from typing import Literal

__all__ = ["Ascii"]

class Ascii:
    def __new__(
        cls,
        *,
        signs: bool,
        spaces: bool,
        cased: bool,
        digits: int,
        apart: bool,
        lines: bool,
        tail: bool,
        slashes: bool,
        contraction: Literal["", "alone", "ending"],
        folded: bool,
    ) -> Ascii: ...
    def cuts(self, data: bytes) -> list[int]: ...
