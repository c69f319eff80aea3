"""What happens to every request before its handler, one concern a file. Called by `smg.server.app` in the order of its code."""

__all__ = ["Cors", "Gate", "Keys", "Permit", "SeatGauges", "choose_request_id", "load_keys", "read_body"]

from smg.middleware.admission import Permit
from smg.middleware.auth import Keys, load_keys
from smg.middleware.body import read_body
from smg.middleware.cors import Cors
from smg.middleware.gate import Gate
from smg.middleware.request_id import choose_request_id
from smg.middleware.seat_gauges import SeatGauges
