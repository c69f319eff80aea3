"""The engine simulator, `smg sim`: speaks every engine protocol, says what scripts say, fails on demand. See `server` and `command`."""

__all__: list[str] = []
