"""Keys of the control plane, as `server.control_plane_api_keys` has them. Read by `smg.config.check` and `smg.middleware.auth`."""

from msgspec import Struct

__all__ = ["ADMIN", "ROLES", "ControlKey", "read_control_key"]

ADMIN = "admin"
ROLES = (ADMIN, "user")


class ControlKey(Struct, frozen=True):
    """`id` names the key in logs; `name` is for people."""

    id: str
    name: str
    role: str
    key: str


def read_control_key(entry: str) -> ControlKey:
    """Reads ID:NAME:ROLE:KEY; colons behind the third are the key's. Raises ValueError, which tells nothing of the key."""
    parts = [part.strip() for part in entry.split(":", 3)]
    if len(parts) < 4 or not all(parts) or not entry.isascii() or not entry.isprintable():
        raise ValueError("an entry is not ID:NAME:ROLE:KEY, or has characters that a header cannot carry")
    if parts[2] not in ROLES:
        raise ValueError(f"the role of {parts[0]!r} is not one of {', '.join(ROLES)}")
    return ControlKey(*parts)
