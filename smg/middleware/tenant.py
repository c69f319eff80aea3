"""Whose a request is: its key's tenant, else what a trusted header says, else its address. Called by `smg.middleware.gate`.

The names are the original's: `auth:TENANT`, `header:VALUE`, `ip:ADDRESS`, `anonymous`.
"""

from smg.api.base import Headers
from smg.config.tree import Tenants

__all__ = ["ANONYMOUS", "TenantReader"]

ANONYMOUS = "anonymous"
LONGEST_NAME = 128


class TenantReader:
    """Reads a request's tenant."""

    def __init__(self, config: Tenants) -> None:
        self._header = config.header_name.lower() if config.trust_header else ""

    def name(self, headers: Headers, *, authorized: str, client: str) -> str:
        """Gives the tenant's name. `authorized`: what its key says, empty without one; `client`: its address and port."""
        if authorized:
            return authorized
        if self._header:
            value = (headers.get(self._header) or "").strip()
            if value and len(value) <= LONGEST_NAME and value.isprintable():
                return f"header:{value}"
        address = client.rpartition(":")[0].strip("[]")
        return f"ip:{address}" if address else ANONYMOUS
