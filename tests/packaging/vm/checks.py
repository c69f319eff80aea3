"""The checks in their order, by boot. Each leaves the service running in front of two simulated engines, but for the last ones."""

from collections.abc import Callable
from typing import TypeAlias

import commands
import faults
import keys
import life
import service
from guest import Guest

__all__ = ["BRIEF", "CHECKS", "Check"]

Check: TypeAlias = Callable[[Guest], str]

CHECKS: dict[str, tuple[tuple[str, Check], ...]] = {
    "first boot": (
        ("install", life.first_install),
        ("conffile", life.conffile),
        ("engines not up yet", life.engines_come_late),
        ("chat, streamed", service.streams),
        ("smg doctor", service.doctor),
        ("hardening", service.hardening),
        ("journal", service.journal),
        ("commands that are shown", commands.shown_commands),
        ("reload under load", service.reload),
        ("wrong configuration", service.wrong_reload),
        ("restart under load", service.restart),
        ("upgrade under load", life.upgrade),
        ("downgrade under load", life.downgrade),
        ("socket activation", service.socket_unit),
        ("stop drains", service.stop_drains),
        ("kill -9 main", faults.killed_main),
        ("kill -9 children", faults.killed_children),
        ("watchdog", faults.watchdog),
        ("disk full", faults.disk_full),
        ("clock jumps", faults.clock_jumps),
        ("keys and TLS", keys.keys_and_tls),
        ("rotated keys", keys.rotated_keys),
        ("instances", service.instances),
    ),
    "second boot": (
        ("boot without network", life.boots_without_network),
        ("edited conffile", life.edited_conffile),
        ("stopped stays stopped", life.stopped_stays_stopped),
        ("purge", life.purge),
    ),
}

# What another release of Debian may do otherwise: its libraries, its systemd, its dpkg.
BRIEF = (
    *("install", "conffile", "engines not up yet", "chat, streamed", "smg doctor", "hardening", "reload under load", "restart under load"),
    *("upgrade under load", "kill -9 main", "rotated keys", "boot without network", "edited conffile", "purge"),
)
