"""What the legs of a request that is computed by two engines are told of each other. Used by `smg.engine.pair`.

vLLM's connectors have words of their own; where both legs run at once they meet in a room at the prefill engine's address.
"""

import json
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

from msgspec import Struct

from smg.engine.base import KvTransfer, ServerInfo

__all__ = ["BOOTSTRAP_PORT", "Handover", "handover_of", "meeting_host", "rendezvous"]

# SGLang's own default, used where nobody names another.
BOOTSTRAP_PORT = 8998
# The field is an int32 in SGLang's protocol.
ROOM_BITS = 31


class Handover(Struct, frozen=True):
    """`prefill`: what the prefill engine is told; `decode` gives what the decode engine is told, of what the prefill engine answered."""

    prefill: KvTransfer
    decode: Callable[[str], KvTransfer]


def rendezvous(url: str, *, port: int) -> KvTransfer:
    """Gives a place where the legs can meet: at the prefill engine's host, in a room of this request's own."""
    return KvTransfer(host=meeting_host(url), port=port or BOOTSTRAP_PORT, room=1 + secrets.randbelow((1 << ROOM_BITS) - 1))


def meeting_host(url: str) -> str:
    """Gives a prefill engine's host as others are told of it: they put a colon and the port behind it, and so does SGLang's own balancer
    with an IPv6 address in brackets (sglang_router/mini_lb.py).
    """
    host = urlsplit(url).hostname or "localhost"
    return f"[{host}]" if ":" in host else host


def handover_of(server: ServerInfo, *, url: str, port: int) -> Handover:
    """Gives the words of the prefill engine's connector. Mooncake's legs share a name of our making; others' answer is passed on."""
    if server.kv_connector == "MooncakeConnector" and server.kv_engine_id:
        shared = {"transfer_id": f"xfer-{secrets.token_hex(16)}"}
        place = rendezvous(url, port=port)
        remote = {"remote_engine_id": server.kv_engine_id, "remote_bootstrap_addr": f"http://{place.host}:{place.port}"}
        prefill = {"do_remote_decode": True, "do_remote_prefill": False, **shared}
        decode = KvTransfer(params=json.dumps({"do_remote_decode": False, "do_remote_prefill": True, **shared, **remote}))
        return Handover(KvTransfer(params=json.dumps(prefill)), lambda answer: decode)
    return Handover(
        KvTransfer(params=json.dumps({"do_remote_decode": True, "do_remote_prefill": False})), lambda answer: KvTransfer(params=answer)
    )
