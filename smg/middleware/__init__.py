"""What happens to every request before its handler, one concern a file. Called by `smg.server.app` in the order of its code."""

__all__ = ["Cors", "Keys", "choose_request_id", "load_keys", "read_body"]

from smg.middleware.auth import Keys, load_keys
from smg.middleware.body import read_body
from smg.middleware.cors import Cors
from smg.middleware.request_id import choose_request_id
