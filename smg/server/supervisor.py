"""The main process: makes the shared memory and the sockets, forks the control process and the data workers, and keeps them running.

In: the checked Config, from `smg launch`. Out: the exit code, when all have ended. SIGTERM and SIGINT drain, a second one ends at once;
SIGHUP reads the configuration again and replaces every process without refusing a request. It imports neither grpc nor anything that
starts a thread (`smg.server.preload`), since it forks for as long as it lives.
"""

import contextlib
import logging
import os
import resource
import selectors
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

from smg.config import Config
from smg.obs.log import start_logging
from smg.obs.seats import Seats
from smg.obs.shm import CONTROL_ROW, FIRST_WORKER_ROW, Shm, make_block, now_ms
from smg.server.activation import KEPT, Activation
from smg.server.boot import Boot, MakeApplication, Phase, fork
from smg.server.folders import CONTROL_SOCKET, Folders
from smg.server.listen import listen_tcp, listen_unix, shown_address
from smg.server.notify import Notifier
from smg.server.posts import Child, Post
from smg.server.preload import preload
from smg.server.reload import Reload

__all__ = ["Supervisor", "run"]

log = logging.getLogger(__name__)

# Generations of workers that may drain at the same time, each reload making one.
GENERATIONS = 4
CRASH_LOOP = 3
TOKENS_PER_BLOCK = 16  # of the prefix index
KILL_AFTER_GRACE_S = 3.0
CONTROL_STOP_S = 3.0
# A worker whose event loop does not turn for this long serves nobody.
HUNG_AFTER_MS = 60_000
TICK_S = 1.0
METRICS_BACKLOG = 64


def run(config: Config, *, reload: Callable[[], Config] | None = None, make_application: MakeApplication | None = None) -> int:
    """Runs the gateway until it is told to stop; gives the exit code. Raises ConfigError when an address or folder cannot be had.

    `reload` reads the configuration again on SIGHUP; `make_application(boot)`, awaited in each data worker, gives what it serves.
    """
    start_logging(config.logging, process="supervisor", in_thread=False)
    with contextlib.ExitStack() as stack:
        supervisor = Supervisor(config, reload=reload, make_application=make_application, stack=stack)
        preload(granian=config.server.http_front == "granian")
        return supervisor.run()


class Supervisor:
    """One gateway. Everything that it opens is closed by `stack`."""

    def __init__(
        self,
        config: Config,
        *,
        reload: Callable[[], Config] | None,
        make_application: MakeApplication | None,
        stack: contextlib.ExitStack,
    ) -> None:
        self.config = config
        self.read_config = reload
        self._make_application = make_application
        self._workers = config.server.workers or len(os.sched_getaffinity(0))
        self._folders = Folders(config.state, environment=os.environ)
        stack.callback(self._folders.close)
        self.notifier = Notifier(os.environ)
        self._http, self._metrics, self._probes = self._listen(stack)
        self._control = stack.enter_context(listen_unix(self._folders.runtime / CONTROL_SOCKET))
        block = make_block(
            rows=FIRST_WORKER_ROW + GENERATIONS * self._workers + 2,
            prefix_blocks=config.routing.max_tree_size // TOKENS_PER_BLOCK,
            prefix_block_size=config.routing.block_size,
            sticky_keys=config.routing.max_sticky_keys,
        )
        stack.callback(os.close, block.fd)
        self.shm = Shm(block.memory)
        self._seats = Seats(self.shm)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        stack.callback(os.close, self._wake_fd)
        self._reports, self._report = self._pair(stack, socket.SOCK_DGRAM)
        self._signals, self._signal = self._pair(stack, socket.SOCK_STREAM)
        self._selector = stack.enter_context(selectors.DefaultSelector())
        for readable in (self._reports, self._signals):
            self._selector.register(readable, selectors.EVENT_READ)
        self.control = Post("control")
        self.workers = [Post(f"worker-{index + 1}") for index in range(self._workers)]
        self._children: dict[int, Child] = {}
        self._reload: Reload | None = None
        self._reload_wanted = False
        self._stopping = False
        self._announced = False
        self._exit_code = 0
        self._pinged = 0.0
        self._stepped_ms = now_ms()
        self._hung_after_ms = 0

    def _listen(self, stack: contextlib.ExitStack) -> tuple[socket.socket, socket.socket, socket.socket | None]:
        """Opens the ports, or takes them from systemd, and leaves them in its keeping for the next run."""
        activation = Activation(os.environ)
        stack.callback(activation.close)
        server, metrics = self.config.server, self.config.metrics
        places = [
            ("http", server.host, server.port, server.backlog, "server.port"),
            ("metrics", metrics.prometheus_host, metrics.prometheus_port, METRICS_BACKLOG, "metrics.prometheus_port"),
        ]
        if metrics.health_check_port:
            places.append(("probes", server.host, metrics.health_check_port, METRICS_BACKLOG, "metrics.health_check_port"))
        made = []
        for name, host, port, backlog, setting in places:
            listener = listen_tcp(host, port, backlog=backlog, setting=setting, name=name, activation=activation)
            made.append(stack.enter_context(listener))
            if name not in activation.units:
                self.notifier.keep(listener, name=KEPT + name)
        return made[0], made[1], made[2] if len(made) > 2 else None

    @staticmethod
    def _pair(stack: contextlib.ExitStack, kind: int) -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        for end in (ours, theirs):
            end.setblocking(False)
            stack.enter_context(end)
        return ours, theirs

    def run(self) -> int:
        """Runs until every child has ended after a signal to stop; gives the exit code."""
        self._raise_limits()
        with self._handlers():
            try:
                while True:
                    self._step()
                    if self._stopping and not self._children:
                        return self._exit_code
                    self._wait()
            finally:
                self._kill_all()

    @contextlib.contextmanager
    def _handlers(self):  # type: ignore[no-untyped-def]
        def wake(number: int, frame: FrameType | None) -> None:
            """The number arrives by the wake-up descriptor."""

        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        before = [(number, signal.signal(number, wake)) for number in numbers]
        descriptor = signal.set_wakeup_fd(self._signal.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in before:
                signal.signal(number, handler)

    @staticmethod
    def _raise_limits() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def _step(self) -> None:
        now = time.monotonic()
        self._reap()
        for child in self._children.values():
            child.enforce(now)
        self._kill_hung()
        if self._stopping:
            self._stop_control_last()
        else:
            self._fill()
            self._advance_reload()
        if self.notifier.watchdog_s and now - self._pinged >= self.notifier.watchdog_s / 3 and self._all_beat():
            self._pinged = now
            self.notifier.watchdog()

    def _wait(self) -> None:
        timeout = TICK_S if not self.notifier.watchdog_s else min(TICK_S, self.notifier.watchdog_s / 3)
        now = time.monotonic()
        vacant = [post.not_before for post in self.posts() if post.child is None and not self._stopping]
        ending = [child.stop_by for child in self._children.values() if child.stop_by is not None and not child.killed]
        for moment in (*vacant, *ending):
            timeout = min(timeout, max(0.0, moment - now))
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._signals:
                for number in self._signals.recv(4096):
                    self._take_signal(signal.Signals(number))
            else:
                self._take_reports()

    def posts(self) -> list[Post]:
        """Gives every post, the control process first."""
        return [self.control, *self.workers]

    def _take_signal(self, number: signal.Signals) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            if self._stopping:
                log.warning("told to stop again: ending at once")
                self._kill_all()
            else:
                self._stop(f"{number.name} received")
        elif number is signal.SIGHUP:
            self._reload_wanted = True

    def _take_reports(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                word, _, pid = self._reports.recv(64).decode("ascii", "replace").partition(" ")
                child = self._children.get(int(pid)) if word == "ready" and pid.isdecimal() else None
                if child is not None and child.stop_by is None:
                    child.ready = True
                    self._announce()

    def _announce(self) -> None:
        """Tells the world once, when everything serves for the first time."""
        for post in self.posts():
            post.ever_ready = post.ever_ready or (post.child is not None and post.child.ready)
        if self._announced or self._stopping or not all(post.child and post.child.ready for post in self.posts()):
            return
        self._announced = True
        scheme = "https" if self.config.tls.cert_path else "http"
        log.info(f"listening on {scheme}://{shown_address(self._http)}", extra={"workers": self._workers})
        log.info(f"metrics on http://{shown_address(self._metrics)}/metrics")
        self.notifier.ready()

    def _fill(self) -> None:
        for post in self.posts():
            post.fill(lambda post=post: self.start(post))  # type: ignore[misc]

    def start(self, post: Post) -> Child | None:
        """Starts a process for a post; None when every row is in use by processes that drain."""
        row = CONTROL_ROW if post is self.control else self._free_row()
        if row is None or self.shm.row(row)[0]:
            return None
        boot = Boot(
            config=self.config,
            shm=self.shm,
            row=row,
            name=post.name,
            state_dir=self._folders.state,
            runtime_dir=self._folders.runtime,
            http=self._http,
            metrics=self._metrics,
            probes=self._probes,
            control=self._control,
            report=self._report,
            wake_fd=self._wake_fd,
        )
        try:
            pid = fork(lambda: self._main(post, boot), name=f"smg:{post.name}", close=lambda: self._drop(post))
        except OSError as error:  # no memory, or too many processes
            log.error("%s cannot be forked: %s", post.name, error)
            post.not_before = time.monotonic() + TICK_S
            return None
        self.shm.set_row(row, pid, Phase.STARTING, now_ms())
        child = self._children[pid] = Child(pid, row=row, name=post.name)
        log.debug("%s started", post.name, extra={"pid": pid})
        return child

    def _main(self, post: Post, boot: Boot) -> int:
        start_logging(boot.config.logging, process=post.name, in_thread=True)
        if post is self.control:
            from smg.server.control import run_control

            return run_control(boot)
        from smg.server.worker import make_application, run_worker

        return run_worker(boot, make_application=self._make_application or make_application)

    def _drop(self, post: Post) -> None:
        """In the child: closes what is the supervisor's, or for another kind of child."""
        self._selector.close()
        for mine in (self._reports, self._signals, self._signal):
            mine.close()
        for other in (self._http,) if post is self.control else (self._metrics, self._probes, self._control):
            if other is not None:
                other.close()

    def _free_row(self) -> int | None:
        return next((row for row in range(FIRST_WORKER_ROW, self.shm.rows) if not self.shm.row(row)[0]), None)

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                child = self._children.pop(pid)
                self._seats.clear(child.row)
                self.shm.clear_row(child.row)
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, code: int) -> None:
        post = next((post for post in self.posts() if child in (post.child, post.successor)), None)
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if post is None or child.stop_by is not None:
            if code and not child.killed:
                log.warning("%s did not end well: %s", child.name, how, extra={"pid": child.pid})
            if post is not None and post.child is child:
                post.child = None
            return
        log.error("%s ended unexpectedly: %s", child.name, how, extra={"pid": child.pid})
        if post.successor is child:
            post.successor = None
            return
        post.lost(child)
        post.child, post.successor = post.successor, None
        if post.failures >= CRASH_LOOP and not post.ever_ready and not self._stopping:
            log.critical("%s ended %d times before it served once (%s); giving up", post.name, post.failures, how)
            self._exit_code = 1
            self._stop(f"{post.name} cannot start")

    def _all_beat(self) -> bool:
        """False when a process that serves has not turned for so long that it should have been killed: then this one is broken too."""
        now = now_ms()
        if now < self._hung_after_ms + HUNG_AFTER_MS:
            return True
        beats = [self.shm.row(child.row)[2] for child in self._children.values() if child.ready]
        return all(not beat or now - beat < 2 * HUNG_AFTER_MS for beat in beats)

    def _kill_hung(self) -> None:
        now = now_ms()
        slept, self._stepped_ms = now - self._stepped_ms > HUNG_AFTER_MS / 2, now
        if slept:  # the whole machine was stopped, or this process: the others have not had their turn yet
            self._hung_after_ms = now + HUNG_AFTER_MS
        if now < self._hung_after_ms:
            return
        for child in self._children.values():
            beat = self.shm.row(child.row)[2]
            if child.ready and not child.killed and beat and now - beat > HUNG_AFTER_MS:
                log.error("%s does not respond and is killed", child.name, extra={"pid": child.pid})
                child.killed = True
                child.send(signal.SIGKILL)

    def _advance_reload(self) -> None:
        if self._reload is None and self._reload_wanted and self._announced:
            self._reload_wanted = False
            self._reload = Reload.begin(self)
        if self._reload is not None and self._reload.advance():
            self._reload = None

    def grace_s(self) -> float:
        """Gives the time after which a child that was told to drain is killed."""
        return self.config.server.shutdown_grace_period_s + KILL_AFTER_GRACE_S

    def _stop(self, why: str) -> None:
        log.info(f"{why}: draining", extra={"grace_s": self.config.server.shutdown_grace_period_s})
        self._stopping = True
        self.notifier.stopping()
        self._http.close()
        for child in self._children.values():
            if self.control.child is not child:
                child.end(signal.SIGTERM, within_s=self.grace_s())

    def _stop_control_last(self) -> None:
        control = self.control.child
        if control is not None and control.stop_by is None and len(self._children) == 1:
            control.end(signal.SIGTERM, within_s=CONTROL_STOP_S)

    def stop_control(self) -> None:
        """Tells the control process to end; its post is filled again."""
        if self.control.child is not None:
            self.control.child.end(signal.SIGTERM, within_s=CONTROL_STOP_S)

    def _kill_all(self) -> None:
        for child in self._children.values():
            child.killed, child.stop_by = True, time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                child.send(signal.SIGKILL)
