"""Plan stage: fills in every default, and puts a job into one engine request that fits any protocol."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from smg.engine import EngineRequest, ModelInfo, ResolvedSampling
from smg.errors import ContextExceeded
from smg.pipeline.models import ServedModel
from smg.pipeline.prompt import Prompt
from smg.types.job import Constraint, Job, Sampling

__all__ = ["engine_request", "resolve_sampling"]


class EngineDefaults(Struct, frozen=True):
    """The sampling defaults that an engine sends as JSON; other keys are ignored."""

    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET
    min_p: float | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET


def engine_request(job: Job, *, model: ServedModel, prompt: Prompt, info: ModelInfo, constraint: Constraint | None) -> EngineRequest:
    """Gives the request for any engine of the model. Stop strings stay here: the stream machine matches them the same for all engines."""
    sampling = resolve_sampling(job, model=model, prompt=prompt, info=info)
    eos = () if sampling.ignore_eos else model.eos_token_ids
    return EngineRequest(
        request_id=job.request_id,
        prompt_ids=prompt.ids,
        prompt_text="",
        sampling=sampling,
        stop_token_ids=tuple(dict.fromkeys((*job.stops.token_ids, *eos))),
        include_stop_in_output=job.stops.include_in_output,
        skip_special_tokens=job.skip_special_tokens,
        logprobs=job.logprobs.output,
        prompt_logprobs=job.logprobs.prompt,
        constraint=constraint,
        reasoning_first=prompt.thinking and constraint is not None,
        # A whole answer in one message costs engine and gateway least; a stop string must be seen while it is made.
        stream=job.stream or bool(job.stops.strings),
        priority=job.routing.priority,
    )


def resolve_sampling(job: Job, *, model: ServedModel, prompt: Prompt, info: ModelInfo) -> ResolvedSampling:
    """The client's values first, then the model's generation_config, then what the engine says, then neutral ones.

    Raises ContextExceeded when prompt and max_tokens do not fit together; without max_tokens the rest of the context is asked for.
    """
    asked, neutral = job.sampling, ResolvedSampling()
    sources: tuple[Sampling | EngineDefaults, ...] = (asked, model.folder.sampling_defaults, _engine_defaults(info))

    def first(name: str) -> object:
        values = (getattr(source, name) for source in sources)
        return next((value for value in values if value is not UNSET), getattr(neutral, name))

    filled = {name: first(name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    return ResolvedSampling(
        **filled,  # type: ignore[arg-type]  # each field's type is the same in every source
        frequency_penalty=0.0 if asked.frequency_penalty is UNSET else asked.frequency_penalty,
        presence_penalty=0.0 if asked.presence_penalty is UNSET else asked.presence_penalty,
        seed=None if asked.seed is UNSET else asked.seed,
        logit_bias=asked.logit_bias,
        max_tokens=_max_tokens(asked, room=model.context_length - len(prompt.ids) if model.context_length else None),
        min_tokens=asked.min_tokens,
        ignore_eos=asked.ignore_eos,
        n=asked.n,
    )


def _max_tokens(asked: Sampling, *, room: int | None) -> int | None:
    if asked.max_tokens is UNSET:
        return room
    if room is not None and asked.max_tokens > room:
        raise ContextExceeded(f"max_tokens is {asked.max_tokens}, but the prompt leaves room for {room} tokens", param="max_tokens")
    return asked.max_tokens


def _engine_defaults(info: ModelInfo) -> EngineDefaults:
    if not info.default_sampling_json:
        return EngineDefaults()
    try:
        return msgspec.json.decode(info.default_sampling_json, type=EngineDefaults)
    except msgspec.DecodeError:
        return EngineDefaults()
