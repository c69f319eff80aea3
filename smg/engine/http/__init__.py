"""Engines that speak OpenAI's HTTP API: a pool of connections to each, requests that are passed on as bytes, and what is asked of them.

Transport only. `smg.pipeline.relay` chooses the engine and retries; nothing here knows what a body says.
"""

__all__ = ["HTTP_SCHEMES", "Head", "HttpCall", "HttpEngine", "HttpRequest"]

from smg.engine.http.address import HTTP_SCHEMES
from smg.engine.http.call import Head, HttpCall, HttpRequest
from smg.engine.http.engine import HttpEngine
