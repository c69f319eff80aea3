"""Who says that there is which engine: what each source says comes in, one spec an address comes out. No I/O; `smg.worker.fleet` keeps it.

A source takes away only what it said itself. Where several name one address the first of `ORDER` counts. Above all of them is what the
workers API changed (`Edit`), which is forgotten with the last source that named the address.
"""

from collections.abc import Iterable
from typing import get_args

from msgspec import structs

from smg.worker.record import Edit, EngineSpec, HealthEdit, Source

__all__ = ["Roster"]

ORDER: tuple[Source, ...] = ("api", "config", "file", "kubernetes")
assert set(ORDER) == set(get_args(Source))


class Roster:
    """By address: source -> spec. `edits` is shared with who publishes it."""

    def __init__(self, edits: dict[str, Edit]) -> None:
        self.edits = edits
        self._said: dict[str, dict[Source, EngineSpec]] = {}

    def say(self, spec: EngineSpec) -> None:
        """Takes what a source says of one engine, in place of what it said before."""
        self._said.setdefault(spec.url, {})[spec.source] = spec

    def unsay(self, url: str, source: Source) -> None:
        """A source says no more that there is an engine."""
        said = self._said.get(url, {})
        if said.pop(source, None) is not None and not said:
            del self._said[url]
            self.edits.pop(url, None)

    def replace(self, source: Source, specs: Iterable[EngineSpec]) -> list[str]:
        """Takes all that a source says; gives the addresses about which it says something else than before."""
        wanted = {spec.url: spec for spec in specs}
        changed = [url for url, spec in wanted.items() if self._said.get(url, {}).get(source) != spec]
        gone = [url for url, said in self._said.items() if source in said and url not in wanted]
        for url in changed:
            self.say(wanted[url])
        for url in gone:
            self.unsay(url, source)
        return changed + gone

    def edit(self, url: str, edit: Edit) -> None:
        """Changes an engine, whoever said it, besides what was changed before."""
        changes = {name: value for name in Edit.__struct_fields__ if (value := getattr(edit, name)) is not None}
        before = self.edits.get(url, Edit())
        if edit.health is not None and before.health is not None:
            changes["health"] = _merged(before.health, edit.health)
        self.edits[url] = structs.replace(before, **changes)

    def unedit(self, url: str) -> None:
        """Takes back what was changed."""
        self.edits.pop(url, None)

    def sources(self, url: str) -> list[Source]:
        """Gives who says that there is an engine at an address."""
        return list(self._said.get(url, ()))

    def count(self, source: Source) -> int:
        """Gives the number of engines that a source says there are."""
        return sum(source in said for said in self._said.values())

    def wanted(self, url: str) -> EngineSpec | None:
        """Gives what is to be registered at an address; None when nothing is."""
        said = self._said.get(url)
        edit = self.edits.get(url, Edit())
        if not said or edit.removed:
            return None
        spec = next(said[source] for source in ORDER if source in said)
        changes = {name: value for name in ("labels", "priority", "cost", "api_key") if (value := getattr(edit, name)) is not None}
        if edit.health is not None:
            changes["health"] = _merged(spec.health, edit.health)
        return structs.replace(spec, **changes) if changes else spec


def _merged(before: HealthEdit, after: HealthEdit) -> HealthEdit:
    changes = {name: value for name in HealthEdit.__struct_fields__ if (value := getattr(after, name)) is not None}
    return structs.replace(before, **changes)
