__all__ = ["ACTIONS", "FieldTable", "decode_message"]

ACTIONS: tuple[str, ...]

class FieldTable:
    def __init__(self, messages: list[dict[int, tuple[str, int]]]) -> None: ...

def decode_message(table: FieldTable, data: bytes) -> dict[str, object]: ...
