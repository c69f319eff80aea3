"""Parts of the supervisor that need no processes."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from smg.config.tree import State
from smg.errors import ConfigError
from smg.server import posts
from smg.server.folders import Folders
from smg.server.listen import listen_tcp, listen_unix, shown_address
from smg.server.notify import Notifier
from smg.server.posts import Child, Post


def test_what_forks_has_one_thread_and_no_library_that_starts_some() -> None:
    code = (
        "import os, sys, smg.server.supervisor, smg.server.preload, smg.config.load\n"
        "smg.config.load.load(['--worker-urls', 'grpc://127.0.0.1:1'])\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "smg.server.preload.preload()\n"
        "print(sorted({'grpc', 'numpy', 'fastokens'} & set(sys.modules)), len(os.listdir('/proc/self/task')))\n"
        "print(len(os.listdir('/proc/self/fd')) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["[] 1", "0"]


def test_systemd_gets_datagrams(tmp_path: pathlib.Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0smg-test-" + os.urandom(8).hex())
        systemd.settimeout(30)
        environment = {
            "NOTIFY_SOCKET": "@" + systemd.getsockname()[1:].decode(),
            "WATCHDOG_USEC": "3000000",
            "WATCHDOG_PID": str(os.getpid()),
        }
        notifier = Notifier(environment)
        assert notifier.watchdog_s == 3
        notifier.ready()
        notifier.status("fine")
        assert [systemd.recv(100) for _ in range(2)] == [b"READY=1", b"STATUS=fine"]


def test_without_systemd_nothing_is_sent(tmp_path: pathlib.Path) -> None:
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready()
    assert Notifier({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}).watchdog_s == 0
    assert Notifier({"WATCHDOG_USEC": "soon"}).watchdog_s == 0


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("localhost", ""), ("::1", "[::1]")])
def test_addresses(host: str, shown: str) -> None:
    try:
        listener = listen_tcp(host, 0, backlog=1, setting="x")
    except ConfigError as error:
        if host == "::1":
            pytest.skip(f"no IPv6 here: {error}")
        raise
    with listener:
        assert shown_address(listener).startswith(f"{shown}" if shown else "")
        assert int(shown_address(listener).rpartition(":")[2]) > 0


def test_a_host_that_is_none_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"x: cannot listen on no\.such\.host\.invalid:0"):
        listen_tcp("no.such.host.invalid", 0, backlog=1, setting="x")


def test_a_stale_unix_socket_is_replaced(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "s"
    listen_unix(path).close()
    assert path.exists()
    with listen_unix(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_folders_come_from_config_then_systemd_then_home(tmp_path: pathlib.Path) -> None:
    environment = {"STATE_DIRECTORY": f"{tmp_path}/s1:{tmp_path}/s2", "XDG_STATE_HOME": str(tmp_path / "home")}
    for config, expected in ((State(state_dir=str(tmp_path / "c")), "c"), (State(), "s1")):
        folders = Folders(config, environment=environment)
        assert folders.state == tmp_path / expected
        folders.close()
        assert not folders.runtime.exists()
    folders = Folders(State(), environment={"XDG_STATE_HOME": str(tmp_path / "home")})
    assert folders.state == tmp_path / "home" / "smg"
    folders.close()


def test_a_given_runtime_folder_stays_without_old_snapshots(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "engines.json").write_text("old")
    folders = Folders(State(state_dir=str(tmp_path), runtime_dir=str(run)), environment={})
    assert not (run / "engines.json").exists()
    folders.close()
    assert run.exists()


def test_a_folder_that_cannot_be_made_is_a_mistake(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"state\.state_dir"):
        Folders(State(state_dir=str(tmp_path / "file" / "x")), environment={})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands still."""
    monkeypatch.setattr(posts, "time", SimpleNamespace(monotonic=lambda: 1000.0))


def child(*, ready: bool, lived_s: float) -> Child:
    made = Child(0, row=2, name="w")
    made.ready = ready
    made.started -= lived_s
    return made


def delays(post: Post, *, ready: bool, times: int) -> list[float]:
    found = []
    for _ in range(times):
        lost = child(ready=ready, lived_s=0.1)
        post.lost(lost)
        found.append(round(post.not_before - lost.started - 0.1, 2))
    return found


@pytest.mark.usefixtures("clock")
def test_a_stable_process_is_replaced_at_once() -> None:
    post = Post("w")
    lost = child(ready=True, lived_s=10)
    post.lost(lost)
    assert post.not_before - lost.started - 10 < 0.05
    assert post.failures == 0


@pytest.mark.usefixtures("clock")
def test_crashes_in_a_row_wait_longer_but_not_for_long_once_it_served() -> None:
    never, once = Post("w"), Post("w")
    once.ever_ready = True
    slow = delays(never, ready=False, times=10)
    assert slow == sorted(slow)
    assert 4.9 < slow[-1] < 5.1
    quick = delays(once, ready=True, times=10)
    assert quick[0] < 0.05
    assert 0.9 < quick[-1] < 1.1


@pytest.mark.parametrize("ready", [True, False])
def test_a_process_that_does_not_serve_yet_is_killed_at_once_and_on_purpose(ready: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, signal.Signals]] = []
    monkeypatch.setattr("smg.server.posts.os.kill", lambda *what: sent.append(what))
    made = child(ready=ready, lived_s=1)
    made.end(signal.SIGTERM, within_s=0)
    made.enforce(time.monotonic() + 1)
    made.end(signal.SIGTERM, within_s=0)
    assert made.killed, "so that its end is no news"
    assert sent == [(0, signal.SIGTERM), (0, signal.SIGKILL)][0 if ready else 1 :]
