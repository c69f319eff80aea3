from collections.abc import Callable

__all__ = ["BareGrammar", "ChoiceGrammar", "Grammar"]

class Grammar:
    def __init__(
        self,
        *arguments: object,
        marks: tuple[str, ...] = (),
        without_marks: Callable[[str, str, tuple[str, ...]], str],
        **options: object,
    ) -> None: ...

class ChoiceGrammar(Grammar):
    def __init__(
        self,
        decide: Callable[[str], Grammar | None],
        *,
        marks: tuple[str, ...] = (),
        without_marks: Callable[[str, str, tuple[str, ...]], str],
    ) -> None: ...

class BareGrammar(Grammar): ...
