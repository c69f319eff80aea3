"""A reload in progress: the control process first, then each data worker's successor starts, serves, and the old one drains."""

import logging
import signal
import time
from typing import TYPE_CHECKING, Optional

from smg.config import Config
from smg.errors import ConfigError

if TYPE_CHECKING:
    from smg.server.posts import Child, Post
    from smg.server.supervisor import Supervisor

__all__ = ["Reload"]

log = logging.getLogger(__name__)

SUCCESSOR_READY_S = 60.0
# Settings that the sockets, the shared memory or the folders were made from.
FIXED = (
    ("server", ("host", "port", "workers", "backlog")),
    ("metrics", ("prometheus_host", "prometheus_port", "health_check_port")),
    ("state", ("state_dir", "runtime_dir")),
)


class Reload:
    """Moves on by `advance`, which the supervisor calls whenever something has happened. When a successor fails, the old config stays."""

    def __init__(self, supervisor: "Supervisor", *, before: Config) -> None:
        self._supervisor = supervisor
        self._before = before
        self._queue: list[Post] = list(supervisor.workers)
        self._started: Child | None = None
        self._give_up_at = 0.0

    @classmethod
    def begin(cls, supervisor: "Supervisor") -> Optional["Reload"]:
        """Reads the configuration and begins; None when it is wrong, which is logged and changes nothing."""
        supervisor.notifier.reloading()
        before = supervisor.config
        try:
            after = supervisor.read_config() if supervisor.read_config else before
        except ConfigError as error:
            log.error("the configuration is wrong and stays as it was: %s", "; ".join(error.mistakes))
            supervisor.notifier.ready()
            return None
        for section, names in FIXED:
            for name in names:
                if getattr(getattr(before, section), name) != getattr(getattr(after, section), name):
                    log.warning("%s.%s changes only with a restart", section, name)
        supervisor.config = after
        supervisor.stop_control()
        log.info("reloading")
        return cls(supervisor, before=before)

    def advance(self) -> bool:
        """Does what can be done now; True when the reload is over."""
        while self._queue:
            post, started = self._queue[0], self._started
            if started is None and post.child is None:  # it crashed, and comes back with the new configuration by itself
                self._next()
            elif started is None:
                return self._start(post)
            elif started is post.child:  # the old one crashed, and this one has its place
                self._next()
            elif started is not post.successor:
                return self._abandon(post)
            elif started.ready:
                self._replace(post, started)
            else:
                self._limit(started)
                return False
        log.info("reloaded")
        self._supervisor.notifier.ready()
        return True

    def _start(self, post: "Post") -> bool:
        self._started = post.successor = self._supervisor.start(post)
        self._give_up_at = time.monotonic() + SUCCESSOR_READY_S
        return False

    def _replace(self, post: "Post", started: "Child") -> None:
        old, post.child, post.successor = post.child, started, None
        if old is not None:
            old.end(signal.SIGHUP, within_s=self._supervisor.grace_s())
        self._next()

    def _next(self) -> None:
        self._queue.pop(0)
        self._started = None

    def _limit(self, started: "Child") -> None:
        if time.monotonic() > self._give_up_at and not started.killed:
            started.killed = True
            started.send(signal.SIGKILL)

    def _abandon(self, post: "Post") -> bool:
        log.error("%s does not start with the new configuration, so the old one stays", post.name)
        self._supervisor.config = self._before
        self._supervisor.stop_control()
        self._supervisor.notifier.ready()
        return True
