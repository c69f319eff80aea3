"""A pod as Kubernetes tells of it in, the engines in it out. No I/O; called by `smg.worker.discovery.kubernetes`.

Annotations are the original's (inventory, "Discovery"): `smg.ai/worker-ports` lists the engines' ports, `sglang.ai/bootstrap-port` those at
which prefill engines hand over their KV caches, in the same order.
"""

import ipaddress
import logging
import re

from msgspec import Struct

from smg.config.tree import Discovery
from smg.worker.record import EngineSpec, Role

__all__ = ["Event", "Pod", "PodList", "engines_in"]

log = logging.getLogger(__name__)

PORTS, BOOTSTRAP_PORTS = "smg.ai/worker-ports", "sglang.ai/bootstrap-port"
MOST_PORTS = 64
LONGEST_NAME = 512
PORT = re.compile(r"[1-9][0-9]{0,4}")


class ListMeta(Struct, frozen=True, kw_only=True, rename={"resource_version": "resourceVersion", "continue_": "continue"}):
    """`continue_` names the next page of a list, empty on its last."""

    resource_version: str = ""
    continue_: str = ""


class Metadata(Struct, frozen=True, kw_only=True, rename="camel"):
    """Of one object. `deletion_timestamp` is set once it is to end."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Condition(Struct, frozen=True, kw_only=True):
    """One of the things that are true of a pod, or not."""

    type: str = ""
    status: str = ""


class Status(Struct, frozen=True, kw_only=True, rename={"pod_ip": "podIP"}):
    """How a pod is."""

    phase: str = ""
    pod_ip: str = ""
    conditions: list[Condition] | None = None


class Pod(Struct, frozen=True, kw_only=True):
    """The little of a pod that is looked at. `code` is that of a Status object, which comes in a pod's place when a watch fails."""

    metadata: Metadata = Metadata()
    status: Status | str = Status()
    code: int = 0
    message: str = ""


class PodList(Struct, frozen=True, kw_only=True):
    """One page of pods."""

    metadata: ListMeta = ListMeta()
    items: list[Pod] | None = None


class Event(Struct, frozen=True, kw_only=True):
    """One line of a watch."""

    type: str
    object: Pod


def engines_in(pod: Pod, *, role: Role, settings: Discovery) -> list[EngineSpec]:
    """Gives the engines of a pod: none unless it is ready and is to stay."""
    if not _serves(pod):
        return []
    assert isinstance(pod.status, Status)
    meta, annotations = pod.metadata, pod.metadata.annotations or {}
    place = {"pod": f"{meta.namespace}/{meta.name}"}
    try:
        address = ipaddress.ip_address(pod.status.pod_ip)
        ports = _ports(annotations.get(PORTS, "")) or [settings.service_discovery_port]
        bootstrap = _ports(annotations.get(BOOTSTRAP_PORTS, ""))
    except ValueError as error:
        log.error("a pod is left out: %s", error, extra=place)
        return []
    host = f"[{address}]" if address.version == 6 else str(address)
    return [
        EngineSpec(
            url=f"{settings.service_discovery_scheme}://{host}:{port}",
            source="kubernetes",
            role=role,
            bootstrap_port=bootstrap[number] if number < len(bootstrap) else 0,
            labels=(("smg.ai/namespace", meta.namespace), ("smg.ai/pod-name", meta.name), ("smg.ai/pod-uid", meta.uid)),
            served_as=_model(meta, settings.model_id_from),
        )
        for number, port in enumerate(ports)
    ]


def _serves(pod: Pod) -> bool:
    status = pod.status
    if not isinstance(status, Status) or pod.metadata.deletion_timestamp is not None:
        return False
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in status.conditions or ())
    return ready and status.phase == "Running" and bool(status.pod_ip)


def _ports(text: str) -> list[int]:
    """Gives the ports of a list like "8000,8001". Raises ValueError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) > MOST_PORTS or not all(PORT.fullmatch(word) and int(word) < 65536 for word in words):
        raise ValueError(f"{text[:100]!r} is no list of ports")
    return [int(word) for word in words]


def _model(meta: Metadata, model_id_from: str) -> str:
    """Gives the name under which the pod's model is served; empty = as the engine says."""
    kind, _, key = model_id_from.partition(":")
    if kind == "namespace":
        return meta.namespace
    where = {"label": meta.labels, "annotation": meta.annotations}.get(kind) or {}
    name = where.get(key, "")
    return name if len(name) <= LONGEST_NAME and name.isprintable() else ""
