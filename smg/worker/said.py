"""What people say of an engine, in the words of the workers API or the watched file, checked and turned into specs.

Called by `smg.api.workers` and `smg.worker.discovery.file`. Every fault is an InvalidValue that names its field.
"""

import math

from msgspec import UNSET

from smg.config.check import address_fault
from smg.config.choices import BACKENDS, choices_of
from smg.errors import InvalidValue
from smg.registry import nearest
from smg.types.workers import HealthBody, WorkerBody, WorkerPatch
from smg.worker.record import Edit, EngineSpec, HealthEdit, Source

__all__ = ["edit_said", "spec_said"]

LONGEST_TEXT = 2048
MOST_LABELS = 64
LARGEST_PRIORITY = 2**31
SHORTEST_INTERVAL_S = 0.05  # of an engine's checks: what is shorter keeps the control process busy
AUTOMATIC = ("", "unspecified", "auto")
# What is said of a model, kept as labels of its engine.
MODEL_LABELS = ("tokenizer_path", "reasoning_parser", "tool_parser")
# Labels that name a thing of ours: one that is none would fail every request of the model, or be passed over in silence.
NAMING_LABELS = ("policy", "reasoning_parser", "tool_parser")


def spec_said(body: WorkerBody, *, source: Source) -> EngineSpec:
    """Gives the spec of an engine. Raises InvalidValue."""
    if fault := address_fault(body.url):
        raise InvalidValue(f"url: {body.url[:256]!r} {fault}", param="url")
    if body.worker_type == "encode":
        raise InvalidValue("worker_type: encode workers are not supported", param="worker_type")
    runtime = body.runtime_type or body.runtime or ""
    if runtime not in (*AUTOMATIC, *BACKENDS):
        raise InvalidValue(f"runtime_type: {runtime[:64]!r} is not one of {', '.join(BACKENDS)}", param="runtime_type")
    if len(body.models) > 1:
        raise InvalidValue("models: a worker serves one model", param="models")
    port = body.bootstrap_port or 0
    if not 0 <= port <= 65535:
        raise InvalidValue("bootstrap_port: must be in 0..65535", param="bootstrap_port")
    model = body.models[0] if body.models else None
    said = {name: value for name in MODEL_LABELS if model is not None and (value := getattr(model, name))}
    return EngineSpec(
        url=body.url.rstrip("/"),
        source=source,
        backend="auto" if runtime in AUTOMATIC else runtime,
        role=body.worker_type,
        bootstrap_port=port,
        labels=_labels(said | body.labels),
        served_as=_text(model.id if model else body.model_id or "", "models"),
        served_aliases=tuple(_text(alias, "models") for alias in model.aliases[:MOST_LABELS]) if model else (),
        api_key=_header(body.api_key or ""),
        priority=_priority(body.priority),
        cost=_finite(body.cost, "cost"),
        health=_health(body.health),
    )


def edit_said(patch: WorkerPatch) -> Edit:
    """Gives what changes of an engine. Raises InvalidValue."""
    return Edit(
        priority=None if patch.priority is None else _priority(patch.priority),
        cost=None if patch.cost is None else _finite(patch.cost, "cost"),
        labels=None if patch.labels is None else _labels(patch.labels),
        api_key=None if patch.api_key is None else _header(patch.api_key),
        health=None if patch.health is None else _health(patch.health),
    )


def _labels(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    if len(labels) > MOST_LABELS:
        raise InvalidValue(f"labels may have at most {MOST_LABELS} entries", param="labels")
    for label in NAMING_LABELS:
        name = labels.get(label, "")
        if name and name not in (known := choices_of(label)):
            raise InvalidValue(f"{label}: {name[:64]!r} is not known{nearest(name[:64], known)}", param=label)
    return tuple((_text(name, "labels"), _text(value, "labels")) for name, value in labels.items())


def _text(value: str, param: str) -> str:
    if len(value) > LONGEST_TEXT or not value.isprintable():
        raise InvalidValue(f"{param}: a text is longer than {LONGEST_TEXT} characters or cannot be printed", param=param)
    return value


def _header(value: str) -> str:
    if len(value) > LONGEST_TEXT or not value.isascii() or not value.isprintable():
        raise InvalidValue("api_key: has characters that a header cannot carry", param="api_key")
    return value


def _priority(value: int) -> int:
    if not -LARGEST_PRIORITY <= value < LARGEST_PRIORITY:
        raise InvalidValue("priority: must fit 32 bits", param="priority")
    return value


def _finite(value: float, param: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise InvalidValue(f"{param}: must be a finite number, not negative", param=param)
    return value


def _health(body: HealthBody) -> HealthEdit:
    for name in ("timeout_secs", "check_interval_secs", "success_threshold", "failure_threshold"):
        value = getattr(body, name)
        if value is not UNSET and not 0 < value < 1e6:
            raise InvalidValue(f"health.{name}: must be above 0 and below a million", param=f"health.{name}")
    if body.check_interval_secs is not UNSET and body.check_interval_secs < SHORTEST_INTERVAL_S:
        raise InvalidValue(f"health.check_interval_secs: must be {SHORTEST_INTERVAL_S} at least", param="health.check_interval_secs")
    return HealthEdit(
        check_timeout_s=None if body.timeout_secs is UNSET else body.timeout_secs,
        check_interval_s=None if body.check_interval_secs is UNSET else body.check_interval_secs,
        success_threshold=None if body.success_threshold is UNSET else body.success_threshold,
        failure_threshold=None if body.failure_threshold is UNSET else body.failure_threshold,
        disable_check=None if body.disable_health_check is UNSET else body.disable_health_check,
    )
