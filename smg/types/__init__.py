"""Wire structs of every surface, and the neutral inner language: `job` on the way in, `event` on the way out."""

__all__: list[str] = []
