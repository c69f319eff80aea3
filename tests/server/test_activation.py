"""Sockets that systemd hands over: which are taken, which are closed; and that a gateway serves on one and leaves its own for the next."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import urllib.request

import pytest

from smg.server.activation import KEPT, Activation
from smg.server.listen import listen_tcp
from smg.server.notify import Notifier

LOOPBACK = ("127.0.0.1", 0)


@contextlib.contextmanager
def handed(**sockets: socket.socket):  # type: ignore[no-untyped-def]
    """An Activation with these sockets by name, the descriptors in a row; dashes in names are written as underscores."""
    first = max(map(int, os.listdir("/proc/self/fd"))) + 8
    for number, given in enumerate(sockets.values()):
        os.dup2(given.fileno(), first + number)
    names = ":".join(name.replace("_", "-") for name in sockets)
    activation = Activation({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": names}, first=first)
    try:
        yield activation
    finally:
        activation.close()


@pytest.fixture
def listener():  # type: ignore[no-untyped-def]
    with socket.create_server(LOOPBACK) as made:
        yield made


def listen(activation: Activation, port: int) -> socket.socket:
    return listen_tcp("127.0.0.1", port, backlog=8, setting="server.port", name="http", activation=activation)


def test_socket_of_a_unit_is_taken_whatever_its_port(listener: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    with handed(http=listener) as activation, listen(activation, 1) as taken:
        assert taken.getsockname() == listener.getsockname()
        assert not taken.get_inheritable()
        assert not taken.getblocking()
        assert activation.units == {"http"}
    assert "not the configured one" in caplog.text


def test_kept_socket_is_taken_at_its_port_only(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    for wanted in (port, 0):
        with handed(kept_http=listener) as activation, listen(activation, wanted) as taken:
            assert taken.getsockname()[1] == port
            assert not activation.units
    with socket.create_server(LOOPBACK) as other:
        free = other.getsockname()[1]
    with handed(kept_http=listener) as activation, listen(activation, free) as taken:
        assert taken.getsockname()[1] == free


def test_kept_socket_gives_way_to_that_of_a_unit(listener: socket.socket) -> None:
    with socket.create_server(LOOPBACK) as old, handed(kept_http=old, http=listener) as activation, listen(activation, 0) as taken:
        assert taken.getsockname() == listener.getsockname()


@pytest.mark.parametrize("environment", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": "me", "LISTEN_FDS": "x"}])
def test_what_is_meant_for_others_is_left(environment: dict[str, str]) -> None:
    pid = {"me": str(os.getpid())}
    activation = Activation({name: pid.get(value, value) for name, value in environment.items()} | {"LISTEN_FDNAMES": "http"}, first=0)
    assert activation.take("http", family=socket.AF_INET, address=LOOPBACK) is None


def test_what_does_not_listen_is_closed() -> None:
    left, right = socket.socketpair()
    with left, right, handed(http=left) as activation:
        assert activation.take("http", family=socket.AF_INET, address=LOOPBACK) is None
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(200)


def test_notifier_hands_a_socket_to_systemd(tmp_path: pathlib.Path, listener: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}).keep(listener, name=KEPT + "http")
        assert manager.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=kept-http"
        message, descriptors, _, _ = socket.recv_fds(manager, 100, 4)
        assert message == b"FDSTORE=1\nFDNAME=kept-http"
        with socket.socket(fileno=descriptors[0]) as received:
            assert received.getsockname() == listener.getsockname()


STARTER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="http")
os.execv(sys.executable, [sys.executable, "-m", "smg", *sys.argv[2:]])
"""


def test_gateway_serves_on_the_socket_it_was_handed(tmp_path: pathlib.Path, listener: socket.socket) -> None:
    listener.set_inheritable(True)
    flags = ("launch", "--host", "127.0.0.1", "--port", "1", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0", "--workers", "1")
    log = tmp_path / "log"
    with log.open("wb") as output:
        started = subprocess.Popen(
            [sys.executable, "-c", STARTER, str(listener.fileno()), *flags, "--state-dir", str(tmp_path)],
            pass_fds=[listener.fileno()],
            stderr=output,
        )
    try:  # the connection waits in the socket's queue until a worker serves
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.getsockname()[1]}/health", timeout=60) as reply:
            assert reply.status == 200
    finally:
        started.terminate()
        assert started.wait(timeout=60) == 0, log.read_text()
