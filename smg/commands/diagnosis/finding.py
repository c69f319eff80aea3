"""One thing that was looked at: what was seen, and what to do about it. Made by the checks, printed by `smg.commands.doctor`."""

from typing import Literal

from msgspec import Struct

__all__ = ["Finding", "good", "warning", "wrong"]


class Finding(Struct, frozen=True, kw_only=True):
    """`subject`: what was looked at; `seen` and `advice` are sentences for an operator, the latter empty when there is nothing to do."""

    state: Literal["good", "warning", "wrong"]
    subject: str
    seen: str
    advice: str = ""


def good(subject: str, seen: str) -> Finding:
    """Gives a finding that needs nothing."""
    return Finding(state="good", subject=subject, seen=seen)


def warning(subject: str, seen: str, advice: str) -> Finding:
    """Gives a finding that the gateway can live with."""
    return Finding(state="warning", subject=subject, seen=seen, advice=advice)


def wrong(subject: str, seen: str, advice: str) -> Finding:
    """Gives a finding that keeps requests from being served."""
    return Finding(state="wrong", subject=subject, seen=seen, advice=advice)
