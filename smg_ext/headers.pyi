__all__ = ["Headers"]

class Headers:
    def __init__(self, path: bytes, authority: bytes, *, secure: bool, metadata: list[tuple[bytes, bytes]]) -> None: ...
