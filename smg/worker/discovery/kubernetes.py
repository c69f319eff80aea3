"""Pods that hold engines, by label selectors: listed once, then watched, and listed again only when the server has forgotten the place.

Every change goes out as all engines there are now; nothing does before each selector's first list. A server that cannot be reached changes
nothing. Source: "Efficient detection of changes" in Kubernetes' API concepts.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import aclosing

import msgspec

from smg.config.tree import Discovery
from smg.worker.discovery.apiserver import ApiFailed, ApiServer
from smg.worker.discovery.pods import Event, Pod, PodList, engines_in
from smg.worker.record import EngineSpec, Role

__all__ = ["Pods"]

log = logging.getLogger(__name__)

LIST_S = 30.0
PAGE = "500"
# The server ends a watch after this time, and tells the place once a minute or so when nothing else happens.
WATCH_S = 300
SILENCE_S = WATCH_S + 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
# Changes that come together are told together; without any, the same is told again after a while.
GATHER_S = 0.05
AGAIN_S = 60.0
GONE = 410
SHORT_S = 1.0

PAGES = msgspec.json.Decoder(PodList)
EVENTS = msgspec.json.Decoder(Event)


class Forgotten(Exception):
    """The server does not know the place any more from which it was to go on."""


class Selection:
    """The engines of one selector, by pod. `version` is the place up to which they are known, empty before the first list."""

    def __init__(self, role: Role, selector: tuple[str, ...]) -> None:
        self.role = role
        self.selector = ",".join(selector)
        self.pods: dict[str, list[EngineSpec]] = {}
        self.version = ""
        self.listed = False
        self.pause_s = FIRST_PAUSE_S


class Pods:
    """Watches until cancelled."""

    def __init__(
        self, settings: Discovery, *, server: ApiServer, found: Callable[[list[EngineSpec]], None], failed: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._server = server
        self._found = found
        self._failed = failed
        self._changed = asyncio.Event()
        self._trouble = ""
        wanted: tuple[tuple[Role, tuple[str, ...]], ...] = (
            ("prefill", settings.prefill_selector),
            ("decode", settings.decode_selector),
            ("regular", settings.selector),
        )
        self._selections = [Selection(role, selector) for role, selector in wanted if selector]
        namespace = settings.service_discovery_namespace
        self._path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"

    async def run(self) -> None:
        """Follows every selector, and tells what is found."""
        async with asyncio.TaskGroup() as group:
            for selection in self._selections:
                group.create_task(self._follow(selection))
            await self._tell()

    def engines(self) -> list[EngineSpec]:
        """Gives all engines there are now; a pod that several selectors name has the role of the first."""
        found: dict[str, EngineSpec] = {}
        for selection in self._selections:
            for specs in selection.pods.values():
                for spec in specs:
                    found.setdefault(spec.url, spec)
        return list(found.values())

    async def _tell(self) -> None:
        while True:
            try:
                async with asyncio.timeout(AGAIN_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(GATHER_S)
            self._changed.clear()
            if all(selection.listed for selection in self._selections):
                self._found(self.engines())

    async def _follow(self, selection: Selection) -> None:
        while True:
            began_s = time.monotonic()
            try:
                if not selection.version:
                    await self._list(selection)
                    began_s = time.monotonic()  # a list may take its time
                await self._watch(selection)
            except Forgotten:
                selection.version = ""
            except (ApiFailed, msgspec.DecodeError, RecursionError) as error:  # the last is not msgspec's own
                self._failed()
                self._complain(str(error))
                if getattr(error, "status", 0) == GONE or not isinstance(error, ApiFailed):
                    selection.version = ""
                await asyncio.sleep(selection.pause_s * random.uniform(0.5, 1.0))
                selection.pause_s = min(selection.pause_s * 2, LONGEST_PAUSE_S)
                continue
            if time.monotonic() - began_s < SHORT_S:  # what ends its answers at once must not be asked without end
                await asyncio.sleep(FIRST_PAUSE_S)

    async def _list(self, selection: Selection) -> None:
        """Takes all pods, page by page; those that are not there any more are forgotten at its end."""
        pods: dict[str, list[EngineSpec]] = {}
        page = ""
        while True:
            query = {"labelSelector": selection.selector, "limit": PAGE} | ({"continue": page} if page else {})
            answer = PAGES.decode(await self._server.get(self._path, query, timeout_s=LIST_S))
            pods.update((_key(pod), self._engines_in(pod, selection)) for pod in answer.items or ())
            page = answer.metadata.continue_
            if not page:
                break
        selection.pods, selection.version, selection.listed = pods, answer.metadata.resource_version, True
        self._recovered()
        self._changed.set()

    async def _watch(self, selection: Selection) -> None:
        """Takes changes until the server ends the watch. Raises Forgotten."""
        query = {
            "labelSelector": selection.selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
            "resourceVersion": selection.version,
        }
        async with aclosing(self._server.lines(self._path, query, silence_s=SILENCE_S)) as lines:
            async for line in lines:
                self._take(selection, EVENTS.decode(line))
                selection.pause_s = FIRST_PAUSE_S

    def _take(self, selection: Selection, event: Event) -> None:
        pod = event.object
        if event.type == "ERROR":
            if pod.code == GONE:
                raise Forgotten
            selection.version = ""  # as client-go does: a server that was set back does not know the place and never says 410
            raise ApiFailed(f"the watch failed: {pod.message}", status=pod.code)
        selection.version = pod.metadata.resource_version or selection.version
        if event.type in ("ADDED", "MODIFIED"):
            selection.pods[_key(pod)] = self._engines_in(pod, selection)
        elif event.type == "DELETED":
            selection.pods.pop(_key(pod), None)
        else:
            return
        self._recovered()
        self._changed.set()

    def _engines_in(self, pod: Pod, selection: Selection) -> list[EngineSpec]:
        """Looked for once, when the pod is told of, so that what is wrong with it is logged once."""
        return engines_in(pod, role=selection.role, settings=self._settings)

    def _complain(self, trouble: str) -> None:
        """Once for each trouble."""
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("Kubernetes cannot be asked for engines; those that are known stay: %s", trouble)

    def _recovered(self) -> None:
        if self._trouble:
            log.info("Kubernetes tells of engines again")
        self._trouble = ""


def _key(pod: Pod) -> str:
    return pod.metadata.uid or f"{pod.metadata.namespace}/{pod.metadata.name}"
