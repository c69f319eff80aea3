"""`POST /v1/completions`: body → one Job a prompt → pipeline → chunks or one answer."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct, structs

from smg.api.base import Reply, Request, Services, StreamReply, pumped
from smg.api.decode import decode, parsed
from smg.api.openai.answer import answer_id, open_head, wants_usage
from smg.api.openai.completion_answer import CompletionStream, CompletionWhole, total_usage
from smg.api.openai.completion_pieces import CompletionPieces, Piece
from smg.api.openai.constraints import constraint
from smg.api.openai.fields import MAX_TOKENS, check_range, deadline, job_id, model_name, routing, sampling, stops
from smg.api.openai.merge import merged
from smg.api.openai.prompts import prompts
from smg.api.openai.refusals import refuse_unbuilt
from smg.api.openai.validate import HEADER, OutputCheck, output_check
from smg.api.sse import DONE
from smg.errors import InvalidValue
from smg.types.job import Job, Logprobs, TextInput, TokenInput
from smg.types.openai.completions import CompletionRequest

__all__ = ["completions", "parse", "to_jobs"]

DECODER = msgspec.json.Decoder(CompletionRequest)

# OpenAI's default, and the engines' own servers': without it a base model would run to the end of its context.
DEFAULT_MAX_TOKENS = 16
MAX_CHOICES = 4096


class Plan(Struct, frozen=True, kw_only=True):
    """What the answer needs to know besides the jobs."""

    jobs: list[Job]
    shown: int
    echo: bool
    logprobs: bool
    silent: bool
    check: OutputCheck | None = None

    @property
    def generated(self) -> int:
        """Choices that each prompt has at the engine."""
        return self.jobs[0].sampling.n


async def completions(http: Request, services: Services) -> Reply | StreamReply:
    """Answers one request."""
    answer = answer_id(http, "cmpl-")
    timeout_s = services.config.server.request_timeout_s

    def read(body: bytes) -> tuple[CompletionRequest, Plan]:
        request = parse(body)
        return request, to_jobs(request, http, answer=answer, timeout_s=timeout_s)

    request, plan = await parsed(await http.body(), read)
    asked = http.headers.get(HEADER)
    if asked:
        plan = structs.replace(plan, check=await output_check(plan.jobs[0], asked=asked))
    usage = wants_usage(request)
    head = open_head(request.model or "", services, answer=answer, kind="text_completion")
    parts = await _parts(plan, services)
    if request.stream:
        return StreamReply(pump=pumped(_chunks(plan, services, parts, CompletionStream(head, usage=usage), usage=usage)), surface="openai")
    whole = CompletionWhole(head, prompts=len(plan.jobs), generated=plan.generated, shown=plan.shown)
    async with aclosing(_pieces(plan, services, parts)) as batches:
        async for pieces in batches:
            whole.feed(pieces)
    return Reply(body=whole.body(total_usage([part.usage for part in parts], silent=plan.silent)))


async def _chunks(
    plan: Plan, services: Services, parts: list[CompletionPieces], stream: CompletionStream, *, usage: bool
) -> AsyncGenerator[bytes, None]:
    async with aclosing(_pieces(plan, services, parts)) as batches:
        async for pieces in batches:
            if pieces:
                yield stream.chunks(pieces)
    last = stream.usage(total_usage([part.usage for part in parts], silent=plan.silent)) if usage else b""
    yield last + DONE


async def _pieces(plan: Plan, services: Services, parts: list[CompletionPieces]) -> AsyncGenerator[list[Piece], None]:
    streams: list[AsyncIterator[list[object]]] = [services.pipeline.run(job) for job in plan.jobs]  # type: ignore[misc]
    if plan.check is not None:
        streams = [plan.check.again().watch(stream) for stream in streams]  # type: ignore[arg-type, misc]
    async with aclosing(merged(streams)) as batches:  # type: ignore[arg-type]
        async for number, events in batches:
            yield parts[number].feed(events)


async def _parts(plan: Plan, services: Services) -> list[CompletionPieces]:
    """One a prompt. The tokenizer is asked for only where a prompt of ids must be shown as text."""
    tokenizer = None
    if plan.echo and any(isinstance(job.input, TokenInput) for job in plan.jobs):
        tokenizer = (await services.models.get(plan.jobs[0].model)).tokenizer
    skip = plan.jobs[0].skip_special_tokens

    def decode_prompt(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=skip) if tokenizer else ""

    return [
        CompletionPieces(
            choices=plan.generated,
            echo=plan.echo,
            logprobs=plan.logprobs,
            silent=plan.silent,
            decode_prompt=decode_prompt,
            first=i * plan.generated,
        )
        for i in range(len(plan.jobs))
    ]


def parse(body: bytes) -> CompletionRequest:
    """Gives the typed request. Raises InvalidJson, InvalidValue; what needs a look at values is checked by `to_jobs`."""
    return decode(body, DECODER)


def to_jobs(request: CompletionRequest, http: Request, *, answer: str, timeout_s: float) -> Plan:
    """Gives one neutral job a prompt. Raises InvalidValue naming the parameter, Unimplemented for what SMG does not do."""
    refuse_unbuilt(request)
    check_range("logprobs", request.logprobs, low=0, high=20)
    inputs = prompts(request)
    max_tokens = _max_tokens(request)
    asked = sampling(request, max_tokens=max_tokens or 1)
    generated = _best_of(request, shown=asked.n)
    if len(inputs) * generated > MAX_CHOICES:
        raise InvalidValue(f"prompts times choices must not be above {MAX_CHOICES}", param="n")
    base = _job(request, http, answer=answer, timeout_s=timeout_s, source=inputs[0])
    base = structs.replace(base, sampling=structs.replace(asked, n=generated), logprobs=_logprobs(request, ranked=generated > asked.n))
    jobs = [base] if len(inputs) == 1 else [_numbered(base, i, source) for i, source in enumerate(inputs)]
    return Plan(jobs=jobs, shown=asked.n, echo=bool(request.echo), logprobs=request.logprobs is not None, silent=max_tokens == 0)


def _job(request: CompletionRequest, http: Request, *, answer: str, timeout_s: float, source: TextInput | TokenInput) -> Job:
    return Job(
        request_id=job_id(request.rid, request.request_id, http=http, answer=answer),
        surface="openai.completions",
        model=model_name(request),
        input=source,
        stops=stops(request),
        constraint=constraint(request),
        routing=routing(http, user=request.user, priority=request.priority or 0),
        skip_special_tokens=request.skip_special_tokens is not False,
        spaces_between_special_tokens=request.spaces_between_special_tokens is not False,
        stream=bool(request.stream),
        deadline_s=deadline(http, timeout_s=timeout_s),
    )


def _numbered(job: Job, number: int, source: TextInput | TokenInput) -> Job:
    return structs.replace(job, request_id=f"{job.request_id}-{number}", input=source)


def _max_tokens(request: CompletionRequest) -> int:
    check_range("max_tokens", request.max_tokens, low=0, high=MAX_TOKENS)
    if request.max_tokens == 0 and not request.echo:
        raise InvalidValue("max_tokens must be at least 1 unless echo is true", param="max_tokens")
    return DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens


def _best_of(request: CompletionRequest, *, shown: int) -> int:
    best_of = request.best_of
    check_range("best_of", best_of, low=1, high=128)
    if best_of is None or best_of == shown:
        return shown
    if best_of < shown:
        raise InvalidValue("best_of must not be below n", param="best_of")
    if request.stream:
        raise InvalidValue("best_of above n cannot be streamed", param="best_of")
    return best_of


def _logprobs(request: CompletionRequest, *, ranked: bool) -> Logprobs:
    if request.logprobs is None:
        return Logprobs(output=0) if ranked else Logprobs()
    return Logprobs(output=request.logprobs, prompt=request.logprobs if request.echo else None)
