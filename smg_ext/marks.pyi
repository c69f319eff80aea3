__all__ = ["MarkSet", "scan_marks"]

class MarkSet:
    marks: tuple[str, ...]
    def __init__(self, marks: tuple[str, ...]) -> None: ...

def scan_marks(marks: MarkSet, deltas: list[str]) -> list[str]: ...
