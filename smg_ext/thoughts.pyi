__all__ = ["ThoughtMarks"]

class ThoughtMarks:
    def __init__(
        self, *, starts: tuple[str, ...], ends: tuple[str, ...], also_ends: tuple[str, ...] = (), layout: tuple[str, ...] = ()
    ) -> None: ...
