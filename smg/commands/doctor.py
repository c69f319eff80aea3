"""`smg doctor`: looks at everything that a gateway needs, and says in plain words what is wrong and what to do about it."""

import asyncio
import sys
from collections.abc import Iterator

import msgspec

from smg.commands.diagnosis.finding import Finding, good, warning, wrong
from smg.config import Config
from smg.config.load import Loaded, load
from smg.errors import ConfigError

__all__ = ["run"]

USAGE = """usage: smg doctor [--json] [FLAG ...]

Looks at the configuration, ports, engines (reachable, protocol, model, tokenizer, template, KV events), the unit of systemd, clock, limits
and shared memory, and says what to do. Changes nothing, and can be run beside the service. Exit code 0: nothing is wrong; 1: something is.
  --json   a JSON list of {state, subject, seen, advice}; state is good, warning or wrong
`smg launch --help` lists the flags.
"""


def run(arguments: list[str]) -> int:
    """Gives 1 when something is wrong."""
    flags = [word for word in arguments if word != "--json"]
    if {"--help", "-h"} & set(flags):
        sys.stdout.write(USAGE)
        return 0
    findings = list(_look(flags))
    if len(flags) < len(arguments):
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(findings)).decode() + "\n")
    else:
        sys.stdout.write("".join(map(_told, findings)) + _summary(findings))
    return 1 if any(finding.state == "wrong" for finding in findings) else 0


def _look(flags: list[str]) -> Iterator[Finding]:
    try:
        loaded = load(flags)
    except ConfigError as error:
        for mistake in error.mistakes:
            yield wrong("configuration", mistake, "correct it; smg config --reference explains every key")
        yield from _look_at_machine(Config())
        return
    yield from _settings(loaded)
    yield from _look_at_machine(loaded.config)
    from smg.commands.diagnosis.engines import look_at_engines
    from smg.commands.diagnosis.events import followed
    from smg.commands.diagnosis.ports import look_at_ports
    from smg.commands.diagnosis.unit import look_at_unit

    yield from look_at_unit(loaded.config, files=loaded.files)
    yield from look_at_ports(loaded.config)
    yield from asyncio.run(look_at_engines(loaded.config, told=followed(loaded.config)))


def _settings(loaded: Loaded) -> Iterator[Finding]:
    yield good("configuration", loaded.summary)
    for text in loaded.warnings:
        if not text.startswith("engines.worker_urls"):  # which the look at the engines says
            yield warning("configuration", text, "look whether that is meant")
    server = loaded.config.server
    if not (server.api_key or server.api_key_file) and server.host not in ("127.0.0.1", "::1", "localhost"):
        from smg.commands.diagnosis.unit import unit_of

        here = "put keys into /etc/smg/credentials/api-keys, one a line" if unit_of(loaded.files) else "give --api-key"
        advice = f"{here}, or name a file with one a line in server.api_key_file"
        yield warning("keys", f"there are none, and {server.host} can be reached by others", advice)


def _look_at_machine(config: Config) -> Iterator[Finding]:
    from smg.commands.diagnosis.machine import look_at_clock, look_at_limits, look_at_memory

    for look in (look_at_limits, look_at_memory, look_at_clock):
        yield from look(config)


def _told(finding: Finding) -> str:
    line = f"{finding.state:8} {finding.subject}: {finding.seen}\n"
    return f"{line}{'':8} -> {finding.advice}\n" if finding.advice else line


def _summary(findings: list[Finding]) -> str:
    states = [finding.state for finding in findings]
    if "wrong" not in states:
        return f"\nnothing is wrong; {states.count('warning')} to look at\n"
    return f"\n{states.count('wrong')} wrong, {states.count('warning')} to look at\n"
