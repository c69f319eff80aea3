"""The two ports: whether the gateway can listen there, or does so already."""

import errno
import http.client
import ssl
from collections.abc import Iterator

from smg.commands.diagnosis.finding import Finding, good, wrong
from smg.config import Config
from smg.errors import ConfigError
from smg.server.listen import listen_tcp

__all__ = ["look_at_ports"]

ANSWER_S = 3.0
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def look_at_ports(config: Config) -> Iterator[Finding]:
    """Opens and closes each port; one that is in use is asked whether a gateway is behind it."""
    server, metrics = config.server, config.metrics
    yield _look("port", server.host, server.port, setting="server.port", tls=bool(config.tls.cert_path))
    yield _look("metrics port", metrics.prometheus_host, metrics.prometheus_port, setting="metrics.prometheus_port", tls=False)


def _look(subject: str, host: str, port: int, *, setting: str, tls: bool) -> Finding:
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        listen_tcp(host, port, backlog=1, setting=setting).close()
    except ConfigError as error:
        cause = error.__cause__
        number = cause.errno if isinstance(cause, OSError) else None
        if number == errno.EADDRINUSE and _is_gateway(ANYWHERE.get(host, host), port, tls=tls):
            return good(subject, f"a gateway answers on {shown}")
        return wrong(subject, "; ".join(error.mistakes), _advice(number, port, setting))
    return good(subject, f"{shown} is free; nothing serves there now")


def _advice(number: int | None, port: int, setting: str) -> str:
    if number == errno.EADDRINUSE:
        return f"end the program that has the port (ss -ltnp 'sport = :{port}'), or choose another in {setting}"
    if number == errno.EACCES:
        return "ports below 1024 are root's: let systemd open it with smg.socket (systemctl edit smg.socket), or choose a higher one"
    return f"name an address of this machine in {setting.replace('port', 'host')} (ip address); 0.0.0.0 is all of them"


def _is_gateway(host: str, port: int, *, tls: bool) -> bool:
    """True when something answers as the probes do. Its certificate is not looked at, since only its words matter."""
    connection: http.client.HTTPConnection
    if tls:
        connection = http.client.HTTPSConnection(host, port, timeout=ANSWER_S, context=ssl._create_unverified_context())
    else:
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    try:
        return _asked(connection)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _asked(connection: http.client.HTTPConnection) -> bool:
    connection.request("GET", "/readiness")
    reply = connection.getresponse()
    return reply.status in (200, 503) and b"ready" in reply.read(1000)
