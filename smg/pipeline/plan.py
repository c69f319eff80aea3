"""Plan stage: fills in every default, and puts a job into one engine request that fits any protocol."""

from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from smg.engine import EngineRequest, ModelInfo, ResolvedSampling
from smg.errors import ContextExceeded
from smg.pipeline.models import ServedModel
from smg.pipeline.prompt import Prompt
from smg.types.job import Constraint, Job, Sampling

__all__ = ["engine_request", "resolve_sampling"]

Key = TypeVar("Key")
Entry = TypeVar("Entry")

KEPT = 256  # of each of these
# By the identity of a model's defaults, which the entry keeps alive.
_BASES: dict[tuple[int, str], tuple[Sampling, ResolvedSampling]] = {}
# By the identity of what was asked and of its base, which the entry keeps alive: a client's requests have the same parameters each time.
_RESOLVED: dict[tuple[int, int], tuple[Sampling, ResolvedSampling, ResolvedSampling]] = {}


class EngineDefaults(Struct, frozen=True):
    """The sampling defaults that an engine sends as JSON; other keys are ignored."""

    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    min_p: float | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET


def engine_request(
    job: Job, *, model: ServedModel, prompt: Prompt, info: ModelInfo, constraint: Constraint | None, rank: int | None = None
) -> EngineRequest:
    """Gives the request for any engine of the model, or for one data-parallel `rank` of it.

    Stop strings stay here: the stream machine matches them the same for all engines.
    """
    sampling = resolve_sampling(job, model=model, prompt=prompt, info=info)
    eos = () if sampling.ignore_eos else model.eos_token_ids
    return EngineRequest(
        request_id=job.request_id,
        prompt_ids=prompt.ids,
        packed_ids=prompt.packed,
        prompt_text="",
        sampling=sampling,
        stop_token_ids=tuple(dict.fromkeys((*job.stops.token_ids, *eos))) if job.stops.token_ids else eos,
        include_stop_in_output=job.stops.include_in_output,
        skip_special_tokens=job.skip_special_tokens,
        logprobs=job.logprobs.output,
        prompt_logprobs=job.logprobs.prompt,
        constraint=constraint,
        reasoning_first=prompt.thinking and constraint is not None,
        # A whole answer in one message costs engine and gateway least; a stop string must be seen while it is made.
        stream=job.stream or bool(job.stops.strings),
        data_parallel_rank=rank,
        priority=job.routing.priority,
    )


def resolve_sampling(job: Job, *, model: ServedModel, prompt: Prompt, info: ModelInfo) -> ResolvedSampling:
    """The client's values first, then the model's generation_config, then what the engine says, then neutral ones.

    Raises ContextExceeded when prompt and max_tokens do not fit together; without max_tokens the rest of the context is asked for.
    """
    asked, base = job.sampling, _base(model.folder.sampling_defaults, info.default_sampling_json)
    room = model.context_length - len(prompt.ids) if model.context_length else None
    max_tokens = _max_tokens(asked, room=room)
    if asked.max_tokens is UNSET:  # it depends on the prompt
        return _resolved(asked, base, max_tokens)
    known = _RESOLVED.get((id(asked), id(base)))
    if known is None or known[0] is not asked or known[1] is not base:
        known = asked, base, _resolved(asked, base, max_tokens)
        _keep(_RESOLVED, (id(asked), id(base)), known)
    return known[2]


def _resolved(asked: Sampling, base: ResolvedSampling, max_tokens: int | None) -> ResolvedSampling:
    return ResolvedSampling(
        temperature=base.temperature if asked.temperature is UNSET else asked.temperature,
        top_p=base.top_p if asked.top_p is UNSET else asked.top_p,
        top_k=base.top_k if asked.top_k is UNSET else asked.top_k,
        min_p=base.min_p if asked.min_p is UNSET else asked.min_p,
        repetition_penalty=base.repetition_penalty if asked.repetition_penalty is UNSET else asked.repetition_penalty,
        frequency_penalty=0.0 if asked.frequency_penalty is UNSET else asked.frequency_penalty,
        presence_penalty=0.0 if asked.presence_penalty is UNSET else asked.presence_penalty,
        seed=None if asked.seed is UNSET else asked.seed,
        logit_bias=asked.logit_bias,
        max_tokens=max_tokens,
        min_tokens=asked.min_tokens,
        ignore_eos=asked.ignore_eos,
        n=asked.n,
    )


def _base(model: Sampling, engine_json: str) -> ResolvedSampling:
    """What applies where a client says nothing: it changes with the model and the engine, not with the request, so it is kept."""
    known = _BASES.get((id(model), engine_json))
    if known is not None and known[0] is model:
        return known[1]
    sources = (model, _engine_defaults(engine_json))
    filled = {}
    for name in EngineDefaults.__struct_fields__:
        values = [value for source in sources if (value := getattr(source, name)) is not UNSET]
        if values:
            filled[name] = values[0]
    base = ResolvedSampling(**filled)
    _keep(_BASES, (id(model), engine_json), (model, base))
    return base


def _keep(kept: dict[Key, Entry], key: Key, entry: Entry) -> None:
    while len(kept) >= KEPT:
        kept.pop(next(iter(kept)))
    kept[key] = entry


def _max_tokens(asked: Sampling, *, room: int | None) -> int | None:
    if asked.max_tokens is UNSET:
        return room
    if room is not None and asked.max_tokens > room:
        raise ContextExceeded(f"max_tokens is {asked.max_tokens}, but the prompt leaves room for {room} tokens", param="max_tokens")
    return asked.max_tokens


def _engine_defaults(text: str) -> EngineDefaults:
    if not text:
        return EngineDefaults()
    try:
        return msgspec.json.decode(text, type=EngineDefaults)
    except (msgspec.DecodeError, RecursionError):
        return EngineDefaults()
