"""Wire structs of the OpenAI surface: what a request may hold. Values are checked in `smg.api.openai`, types by msgspec."""

__all__: list[str] = []
