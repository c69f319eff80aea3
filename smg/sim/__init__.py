"""The engine simulator, `smg sim`: speaks every engine protocol, generates what a script says, and fails on demand. See `server` and `command`."""

__all__: list[str] = []
