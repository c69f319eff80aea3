"""Two files of the original's, in YAML (JSON is YAML too): priority classes with tenants' highest class, and tenants' rate limits.

Read by `smg.config.check` and, in each data worker, by `smg.middleware`.
"""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from smg.errors import ConfigError

__all__ = [
    "CLASSES",
    "ClassName",
    "ModelRule",
    "PriorityClass",
    "PriorityClasses",
    "RateLimit",
    "TenantLimit",
    "TenantLimits",
    "read_priority_classes",
    "read_tenant_limits",
]

ClassName: TypeAlias = Literal["system", "interactive", "default", "bulk"]
# The highest first: a class's place is its rank in shared memory.
CLASSES: tuple[ClassName, ...] = ("system", "interactive", "default", "bulk")

Room = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0)]
PerMinute = Annotated[int, Meta(ge=1, le=10**9)]


class PriorityClass(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a class changes of its defaults; None = nothing. Kept for it are `reserved` seats, or that share of all, whichever is more."""

    reserved: Room | None = None
    reserved_share: Annotated[float, Meta(ge=0, le=1)] | None = None
    queue_size: Room | None = None
    queue_timeout_secs: Seconds | None = None
    starvation_threshold_secs: Seconds | None = None
    can_preempt: bool | None = None


class TenantPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The highest class that a tenant's requests may have."""

    max_class: ClassName


class PriorityClasses(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of `--priority-scheduler-config`."""

    classes: dict[ClassName, PriorityClass] = {}
    tenant_policies: dict[str, TenantPolicy] = {}


class RateLimit(Struct, frozen=True, kw_only=True):
    """What may be used in a minute, at once or bit by bit; None = any."""

    tokens_per_minute: PerMinute | None = None
    requests_per_minute: PerMinute | None = None


class Matcher(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which models a rule is for."""

    type: Literal["exact", "prefix"]
    value: str


class ModelRule(RateLimit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A further limit for some models."""

    rule_id: str
    matcher: Matcher

    def fits(self, model: str) -> bool:
        """True when the rule is for that model."""
        return model == self.matcher.value if self.matcher.type == "exact" else model.startswith(self.matcher.value)


class TenantLimit(RateLimit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a tenant. The first rule that fits a model is used besides them."""

    tenant_key: str = ""
    model_rules: tuple[ModelRule, ...] = ()


class TenantLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of `--tenant-rate-limit-config`. Who is not among `tenants` has `default_policy`, each for themselves."""

    default_policy: TenantLimit = TenantLimit()
    tenants: tuple[TenantLimit, ...] = ()


def read_priority_classes(path: str) -> PriorityClasses:
    """Gives the file's content; no path, no changes. Raises ConfigError that says what is wrong with it."""
    return _read(path, PriorityClasses) if path else PriorityClasses()


def read_tenant_limits(path: str) -> TenantLimits:
    """Gives the file's content. Raises ConfigError that says what is wrong with it, also when a tenant is named twice or not at all."""
    limits = _read(path, TenantLimits)
    keys = [tenant.tenant_key for tenant in limits.tenants]
    if "" in keys:
        raise ConfigError([f"{path}: an entry of tenants has no tenant_key"])
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ConfigError([f"{path}: the tenant {twice!r} is there twice"])
    return limits


File = TypeVar("File", PriorityClasses, TenantLimits)


def _read(path: str, kind: type[File]) -> File:
    import yaml  # only who names such a file pays for it

    try:
        tree = yaml.safe_load(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from error
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: {' '.join(str(error).split())}"]) from error
    try:
        return msgspec.convert({} if tree is None else tree, kind)
    except msgspec.ValidationError as error:
        raise ConfigError([f"{path}: {error}"]) from error
