from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Citing", "Collector", "Shapes"]

class Shapes:
    def __init__(
        self,
        text: Callable[[str], object],
        thought: Callable[[str], object],
        call: Callable[[int, str, str | None], object],
        arguments: Callable[[int, str], object],
    ) -> None: ...

class Collector:
    ended: bool
    work: int
    def __init__(
        self,
        *options: object,
        shapes: Shapes,
        schemas: Mapping[str, Any],
        new_id: Callable[[], str] | None = None,
        single: bool = False,
        forced: str = "",
        **more: object,
    ) -> None: ...
    def feed(self, text: str) -> list[Any]: ...
    def finish(self) -> list[Any]: ...

class Citing(Collector): ...
