__all__ = ["Prompt"]

class Prompt:
    def __len__(self) -> int: ...
