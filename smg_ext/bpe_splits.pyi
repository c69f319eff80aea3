from smg_ext.bpe_ascii import Ascii
from smg_ext.bpe_characters import Characters

__all__ = ["Splits"]

class Splits:
    characters: Characters
    def __new__(
        cls, characters: Characters, steps: list[list[tuple[str, int, int, int, int, int, bool, bool]]], ascii: Ascii | None = ...
    ) -> Splits: ...
    def cuts(self, text: str) -> list[str]: ...
