"""API keys, as a Bearer token or as Anthropic's clients send them. Built once a process from the config.

Only digests are kept and compared, so that neither memory nor timing tells a key.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from smg.api.base import Headers
from smg.config import Config
from smg.config.control_keys import ADMIN, read_control_key
from smg.errors import ConfigError, Forbidden, Unauthorized

__all__ = ["Keys", "load_keys"]

SCHEME = "bearer "
# Of the digest of a key that is nobody's in particular, by which metrics and limits name it.
SHOWN_DIGITS = 16


class Keys:
    """The keys that open the serving endpoints; without any, all are open. Those of tenants do not open the paths that manage it.

    Where there are keys of the control plane, they alone open those paths, and nothing else.
    """

    def __init__(
        self, keys: Iterable[str], *, tenants: Mapping[str, str] | None = None, control: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        """`tenants`: by key, whose it is; `control`: by key, its id and role."""
        self._names: dict[bytes, str] = {}
        self._tenants: set[bytes] = set()
        for key in keys:
            digest = hashlib.sha256(key.encode())
            self._names[digest.digest()] = f"auth:{digest.hexdigest()[:SHOWN_DIGITS]}"
        self._control = {hashlib.sha256(key.encode()).digest(): known for key, known in (control or {}).items()}
        for key, tenant in (tenants or {}).items():
            self._names[hashlib.sha256(key.encode()).digest()] = f"auth:{tenant}"
            self._tenants.add(hashlib.sha256(key.encode()).digest())

    def check(self, headers: Headers, *, managing: bool = False) -> str:
        """Gives whose the request's key is, empty where none is needed. Raises Unauthorized unless it carries a known key,
        Forbidden for one whose role may not do this.

        `managing`: the path manages the gateway, so that a tenant's key is none (as in the original, where all is refused while there are
        tenants' keys alone).

        A set lookup of a SHA-256 digest may end early, which tells a caller about digests only: none can be steered towards a key's.
        """
        if managing and self._control:
            return self._check_control(_digest(headers))
        if not self._names:
            return ""
        digest = _digest(headers)
        name = self._names.get(digest)
        if name is None or (managing and digest in self._tenants):
            raise Unauthorized("the API key is not valid")
        return name

    def _check_control(self, digest: bytes) -> str:
        number, role = self._control.get(digest, ("", ""))
        if not role:
            raise Unauthorized("the API key is not one of the control plane")
        if role != ADMIN:
            raise Forbidden(f"the API key has the role {role}, and {ADMIN} is needed here")
        return f"control:{number}"


def _digest(headers: Headers) -> bytes:
    """Gives the digest of a request's key. Raises Unauthorized when it has none."""
    value = headers.get("authorization") or ""
    key = value[len(SCHEME) :].strip() if value[: len(SCHEME)].lower() == SCHEME else headers.get("x-api-key")
    if key is None:
        raise Unauthorized("an API key is required: send it as Authorization: Bearer KEY, or as x-api-key")
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def load_keys(config: Config) -> Keys:
    """Gives the keys of flags and file. Raises ConfigError when the file cannot be read or holds no key: never open by mistake."""
    keys = [key for key in config.server.api_key if key]
    if path := config.server.api_key_file:
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([f"server.api_key_file: cannot be read: {error}"]) from error
        lines = [line.strip() for line in text.splitlines()]
        in_file = [line for line in lines if line and not line.startswith("#")]
        if not in_file:
            raise ConfigError(["server.api_key_file: holds no key"])
        keys += in_file
    tenants = (entry.partition(":") for entry in config.tenants.api_key)
    control = (read_control_key(entry) for entry in config.server.control_plane_api_keys)
    return Keys(
        keys,
        tenants={key.strip(): tenant.strip() for tenant, _, key in tenants},
        control={known.key: (known.id, known.role) for known in control},
    )
