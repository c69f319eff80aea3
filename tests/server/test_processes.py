"""Processes of a gateway under signals and crashes, with real ones and a trivial application."""

import contextlib
import http.client
import os
import pathlib
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from smg.config.load import load
from smg.errors import ConfigError
from smg.server import supervisor
from tests.server.harness import Gateway, alive, gateway, wait_until
from tests.stopwatch import Stopwatch

LINES = 1200  # a minute's: such a stream does not end by itself before the test has it end
TOML = '[server]\nrequest_id_headers = ["{}"]\n'


class Stream:
    """A running stream, read in a thread."""

    def __init__(self, to: Gateway, *, lines: int) -> None:
        self.lines: list[str] = []
        self.broken = False
        self._connection = http.client.HTTPConnection("127.0.0.1", to.port, timeout=30)
        self._connection.request("GET", f"/stream?{lines}")
        self._reply = self._connection.getresponse()
        self.lines.append(self._reply.readline().decode().strip())
        self.pid = int(self.lines[0].split()[0])
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            while line := self._reply.readline():
                self.lines.append(line.decode().strip())
        except (OSError, http.client.HTTPException):
            self.broken = True
        self._connection.close()

    @property
    def whole(self) -> bool:
        return not self.broken and self.lines[-1] == "end"

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def two_workers(tmp_path: pathlib.Path) -> Iterator[Gateway]:
    with gateway(tmp_path) as made:
        yield made


def streams_on_both(to: Gateway) -> list[Stream]:
    streams = [Stream(to, lines=LINES)]
    while len({stream.pid for stream in streams}) < 2:
        assert len(streams) < 200, "one worker took every connection"
        streams.append(Stream(to, lines=LINES))
    return streams


def test_a_killed_worker_loses_only_its_own_requests(two_workers: Gateway) -> None:
    streams = streams_on_both(two_workers)
    victim = streams[0].pid
    wait_until(lambda: two_workers.get("/inflight")[1] == str(len(streams)), what="every stream is counted")
    watch = Stopwatch(two_workers.pid)
    os.kill(victim, signal.SIGKILL)
    survivors = [stream for stream in streams if stream.pid != victim]
    wait_until(lambda: two_workers.get("/inflight")[1] == str(len(survivors)), what="the dead worker's row is cleared")
    fresh = wait_until(lambda: len(set(two_workers.named("worker")) - {victim}) == 2, what="two workers again")
    wait_until(lambda: two_workers.get("/pid")[1].split()[0] not in {str(stream.pid) for stream in streams}, what="the new one serves")
    assert watch.seconds() < 2, f"back after {fresh:.2f} s"
    two_workers.end_streams()
    for stream in streams:
        stream.join()
    assert all(stream.whole for stream in survivors)
    assert all(not stream.whole for stream in streams if stream.pid == victim)
    wait_until(lambda: two_workers.get("/inflight")[1] == "0", what="nothing is counted")


def test_a_killed_control_process_comes_back_while_workers_serve(two_workers: Gateway) -> None:
    (control,) = two_workers.named("control")
    stream = Stream(two_workers, lines=LINES)
    watch = Stopwatch(two_workers.pid)
    os.kill(control, signal.SIGKILL)
    while not (fresh := set(two_workers.named("control")) - {control}):
        assert two_workers.get("/readiness")[0] == 200
        assert watch.seconds() < 1, "the control process is not back after 1 s"
    assert len(fresh) == 1
    two_workers.end_streams()
    stream.join()
    assert stream.whole


def test_term_lets_streams_end(two_workers: Gateway) -> None:
    streams = streams_on_both(two_workers)
    probe = http.client.HTTPConnection("127.0.0.1", two_workers.port, timeout=30)

    def ready() -> bool:
        probe.request("GET", "/readiness")
        reply = probe.getresponse()
        reply.read()
        return reply.status == 200

    assert ready()  # on a connection that is there already: new ones are taken for a quarter of a second only
    two_workers.signal(signal.SIGTERM)
    wait_until(lambda: not ready(), what="readiness says no while streams run")
    probe.close()

    def refused() -> bool:
        with contextlib.suppress(ConnectionError):
            two_workers.get("/readiness")
            return False
        return True

    wait_until(refused, what="no new connections while streams run")
    assert two_workers.child.process.poll() is None
    two_workers.end_streams()
    assert two_workers.wait_exit() == 0
    for stream in streams:
        stream.join()
    assert all(stream.whole for stream in streams), [(stream.broken, stream.lines[-1]) for stream in streams]


def test_term_cuts_what_outlasts_the_grace_period(tmp_path: pathlib.Path) -> None:
    with gateway(tmp_path, "--shutdown-grace-period-secs", "1", workers=1) as made:
        stream = Stream(made, lines=LINES)
        start, before = time.monotonic(), len(stream.lines)
        made.signal(signal.SIGTERM)
        assert made.wait_exit() == 0
        assert time.monotonic() - start > 0.9
        stream.join()
        assert not stream.whole
        assert len(stream.lines) > before + 1


def test_an_idle_gateway_stops_fast(two_workers: Gateway) -> None:
    two_workers.signal(signal.SIGINT)
    assert two_workers.wait_exit(within_s=10) == 0  # the grace period is 180 s


def test_a_second_signal_stops_now(two_workers: Gateway) -> None:
    stream = Stream(two_workers, lines=LINES)
    two_workers.signal(signal.SIGTERM)
    wait_until(lambda: "draining" in two_workers.child.output(), what="it drains")
    two_workers.signal(signal.SIGTERM)
    assert two_workers.wait_exit() == 0
    stream.join()
    assert not stream.whole


def test_no_orphans_when_the_supervisor_is_killed(two_workers: Gateway) -> None:
    children = list(two_workers.children())
    assert len(children) == 3
    two_workers.signal(signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in children), what="every child is gone")


class Load:
    """Clients that never stop asking: some open a connection a request, some keep theirs until they are told to close it."""

    def __init__(self, to: Gateway, *, clients: int) -> None:
        self.answers: list[str] = []
        self.failures: list[str] = []
        self._to = to
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(bool(index % 2),)) for index in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, keep: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._to.port, timeout=30)
        while not self._stop.is_set():
            try:
                connection.request("GET", "/pid", headers={} if keep else {"connection": "close"})
                reply = connection.getresponse()
                self.answers.append(reply.read().decode())
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
            time.sleep(0.002)
        connection.close()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


def test_hup_takes_the_new_config_and_refuses_nobody(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "smg.toml"
    file.write_text(TOML.format("old"))
    with gateway(tmp_path, "--config", str(file)) as made:
        before = set(made.children())
        stream = Stream(made, lines=60)
        load_on = Load(made, clients=6)
        file.write_text(TOML.format("new"))
        made.signal(signal.SIGHUP)
        wait_until(lambda: "reloaded" in made.child.output(), what="the reload is over")
        settled = len(load_on.answers)
        wait_until(lambda: len(load_on.answers) > settled + 50, what="new answers")
        stream.join()
        wait_until(lambda: not before & set(made.children()), what="old processes are gone")
        settled = len(load_on.answers)
        wait_until(lambda: len(load_on.answers) > settled + 30, what="answers of the new ones alone")
        load_on.stop()
        assert load_on.failures == []
        assert stream.whole
        assert {answer.split()[1] for answer in load_on.answers} == {"old", "new"}
        assert all(answer.endswith("new") for answer in load_on.answers[-20:])


def test_a_wrong_config_changes_nothing(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "smg.toml"
    file.write_text(TOML.format("old"))
    with gateway(tmp_path, "--config", str(file)) as made:
        before = set(made.children())
        file.write_text("[server]\nport = 'many'\n")
        made.signal(signal.SIGHUP)
        wait_until(lambda: "the configuration is wrong" in made.child.output(), what="it is told")
        assert "server.port" in made.child.output()
        assert set(made.children()) == before
        assert made.get("/pid")[0] == 200


def test_a_config_that_workers_die_of_is_abandoned(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "smg.toml"
    file.write_text(TOML.format("old"))
    with gateway(tmp_path, "--config", str(file)) as made:
        before = set(made.named("worker"))
        file.write_text(TOML.format("die-at-boot"))
        made.signal(signal.SIGHUP)
        wait_until(lambda: "the old one stays" in made.child.output(), what="it is told")
        assert set(made.named("worker")) == before
        assert made.get("/pid")[1].endswith("old")
        os.kill(next(iter(before)), signal.SIGKILL)
        wait_until(lambda: len(set(made.named("worker")) - before) == 1, what="respawned, with the old config")
        wait_until(lambda: made.get("/pid")[1].split()[0] not in map(str, before), what="it serves")


def test_a_gateway_that_cannot_start_says_so(tmp_path: pathlib.Path) -> None:
    with gateway(tmp_path, "--request-id-headers", "die-at-boot", listening=False) as made:
        assert made.wait_exit() == 1
        assert "giving up" in made.child.output()
        assert "exit code 3" in made.child.output()


def test_a_mistake_that_only_workers_find_is_told_without_a_traceback(tmp_path: pathlib.Path) -> None:
    with gateway(tmp_path, "--request-id-headers", "mistake", listening=False) as made:
        assert made.wait_exit() == 1
        assert "server.api_key_file: holds no key" in made.child.output()
        assert "Traceback" not in made.child.output()


def test_a_worker_that_hangs_is_replaced(tmp_path: pathlib.Path) -> None:
    with gateway(tmp_path, workers=1, environment={"TEST_HUNG_AFTER_MS": "2500"}) as made:
        (worker,) = made.named("worker")
        os.kill(worker, signal.SIGSTOP)
        wait_until(lambda: made.named("worker") not in ([], [worker]), what="another worker")
        assert not alive(worker)
        assert made.get("/pid")[0] == 200
        assert "does not respond" in made.child.output()


@pytest.mark.parametrize("plain", ["", "1"])
def test_both_bodies_of_the_shared_memory_serve(tmp_path: pathlib.Path, plain: str) -> None:
    with gateway(tmp_path, environment={"SMG_NO_EXT": plain}) as made:
        streams = streams_on_both(made)
        wait_until(lambda: made.get("/inflight")[1] == str(len(streams)), what="every stream is counted")
        made.end_streams()
        for stream in streams:
            stream.join()
        wait_until(lambda: made.get("/inflight")[1] == "0", what="nothing is counted")


def test_systemd_is_told(tmp_path: pathlib.Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(30)
        environment = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "600000"}
        with gateway(tmp_path, environment=environment) as made:

            def told(word: str) -> str:
                while True:
                    message = systemd.recv(1000).decode()
                    if word in message:
                        return message

            told("READY=1")
            assert made.get("/pid")[0] == 200
            told("WATCHDOG=1")
            made.signal(signal.SIGHUP)
            assert "MONOTONIC_USEC=" in told("RELOADING=1")
            told("READY=1")
            made.signal(signal.SIGTERM)
            told("STOPPING=1")
            assert made.wait_exit() == 0


def test_a_taken_port_is_a_mistake_in_the_config(tmp_path: pathlib.Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        flags = ["--host", "127.0.0.1", "--port", str(taken.getsockname()[1]), "--state-dir", str(tmp_path)]
        with pytest.raises(ConfigError, match=r"server\.port: cannot listen"):
            supervisor.run(load([*flags, "--worker-urls", "grpc://127.0.0.1:1"]).config)


def test_two_gateways_do_not_share_a_runtime_folder(tmp_path: pathlib.Path) -> None:
    with gateway(tmp_path, "--runtime-dir", str(tmp_path / "run")) as made:
        flags = ["--host", "127.0.0.1", "--port", "0", "--state-dir", str(tmp_path), "--runtime-dir", str(tmp_path / "run")]
        with pytest.raises(ConfigError, match="in use by another gateway"):
            supervisor.run(load([*flags, "--worker-urls", "grpc://127.0.0.1:1"]).config)
        assert made.get("/pid")[0] == 200
