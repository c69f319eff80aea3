"""Server-sent events as bytes. Used by the surfaces' renderers and by the application, which fills silence with comments."""

__all__ = ["DONE", "KEEP_ALIVE", "event"]

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def event(data: bytes) -> bytes:
    """Gives one event; `data` is JSON on one line."""
    return b"data: %b\n\n" % data
