"""The native HTTP/1.1 server of a data worker: llhttp parses, uvloop carries, and the application is called as granian would call it.

It gives `smg.server.app.App` the same scope and protocol objects as granian's RSGI (spec 1.6), without a thread between socket and
application, and with a write queue that can be seen: a client that stops reading is given up at a known cost. HTTP/2 and WebSocket are
granian's alone.
"""

__all__ = ["Application", "Front", "Limits", "Responder"]

from smg.server.front.front import Application, Front
from smg.server.front.limits import Limits
from smg.server.front.responder import Responder
