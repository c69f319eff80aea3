"""Whose tokens a request uses: set by `smg.middleware` for a request's task where tenants are limited, asked by `smg.pipeline`.

A context variable, since every surface's handler and each of a request's jobs hands it on without knowing of it.
"""

from contextvars import ContextVar
from typing import Protocol

from smg.types.job import Sampling

__all__ = ["ACCOUNT", "Account", "Charge"]


class Charge(Protocol):
    """What one job was charged before it began."""

    def settle(self, tokens: int) -> None:
        """The answer is whole: `tokens` of prompt and output are what it used."""

    def drop(self, *, answered: bool) -> None:
        """The answer is not whole. What nobody answered cost nothing; of another one nobody knows what it cost, so the estimate stays."""


class Account(Protocol):
    """A tenant's."""

    async def charge(self, *, model: str, prompt_tokens: int, sampling: Sampling) -> Charge:
        """Charges what a job may use. Raises TenantLimited when there is not so much left."""


ACCOUNT: ContextVar[Account | None] = ContextVar("ACCOUNT", default=None)
