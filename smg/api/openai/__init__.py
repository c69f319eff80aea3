"""The OpenAI surface: chat completions and completions."""

__all__: list[str] = []
