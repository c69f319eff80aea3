"""An engine that is asked over OpenAI's HTTP API, as vLLM and SGLang also offer it: chat and text completions, models, tokenize, metrics.

No parser runs here: reasoning and tool calls stay in the text, as with an engine that was started without parser flags. `return_token_ids`
(vLLM's extension) gives the ids. Faults: rst resets the connection, goaway closes it, error is a status or an error event, end ends the
stream without its last events.
"""

import asyncio
import time
import uuid
from typing import Annotated, cast

import msgspec
from msgspec import Meta, Raw, Struct

from smg.sim.chat import TextStream, render_chat
from smg.sim.handover import Fetches, handed, parameters_transfer
from smg.sim.http import HttpRequest, HttpServer, Reply
from smg.sim.output import Scores
from smg.sim.protocol.base import VERSION, Engine
from smg.sim.protocol.openai_pair import PairFields, legs_of, rank_of
from smg.sim.request import Call, Finish, Output, Refused, Submission
from smg.sim.script import Fault
from smg.types.json import Json, JsonObject

__all__ = ["Servicer", "add_to_server"]

STATUS_OF = {
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
    "UNIMPLEMENTED": 501,
}


class StreamOptions(Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool = False


class Body(PairFields, frozen=True):
    """A completion request, of either kind; what is not known is ignored, as engines do."""

    model: str = ""
    messages: Raw = Raw(b"null")
    prompt: str | list[int] | None = None
    tools: Raw = Raw(b"null")
    chat_template_kwargs: Raw = Raw(b"{}")
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: bool | int | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False


class Servicer:
    """The routes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.scheduler = engine.scheduler
        self._fetches = Fetches(engine.scheduler)

    async def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Answers one request."""
        route = (request.method, request.path)
        if route in (("POST", "/v1/chat/completions"), ("POST", "/v1/completions")):
            await self._complete(request, reply)
        elif route == ("GET", "/health"):
            await reply.send(b"", status=200 if self.engine.healthy() else 503)
        elif route == ("GET", "/v1/models"):
            await reply.send(msgspec.json.encode({"object": "list", "data": [self._card()]}))
        elif route == ("GET", "/version"):
            await reply.send(msgspec.json.encode({"version": VERSION}))
        elif route == ("GET", "/get_server_info") and self.engine.options.owned_by == "sglang":
            said = {"version": VERSION, "dp_size": self.engine.options.dp_size, "disaggregation_bootstrap_port": self.engine.status_port}
            await reply.send(msgspec.json.encode(said))
        elif route == ("GET", "/metrics"):
            await reply.send(self._metrics().encode(), content_type="text/plain; version=0.0.4")
        elif route == ("POST", "/tokenize"):
            await self._tokenize(request, reply)
        else:
            await _refuse(reply, "not found", status=404)

    async def _complete(self, request: HttpRequest, reply: Reply) -> None:
        chat = request.path.endswith("/chat/completions")
        try:
            body = msgspec.json.decode(request.body, type=Body)
            call = self.scheduler.submit(self._submission(body, headers=request.headers))
        except msgspec.DecodeError as error:
            await _refuse(reply, str(error), status=400)
            return
        except Refused as refused:
            self._fetches.give_up(parameters_transfer(body.kv_transfer_params or {}))
            await _refuse(reply, refused.message, status=STATUS_OF.get(refused.status, 500))
            return
        fetch = self._fetches.start(call)
        answer = _Answer(self.engine, call, body, chat=chat)
        try:
            await self._serve(answer, reply)
        except (asyncio.CancelledError, ConnectionResetError):
            self.scheduler.of(call).cancel(call)
            raise
        finally:
            self.scheduler.of(call).drop(call)
            self._fetches.end(call, fetch)

    async def _serve(self, answer: "_Answer", reply: Reply) -> None:
        call, streamed = answer.call, answer.body.stream
        unfinished = call.submission.n
        while unfinished:
            output = await call.read()
            if output.fault is not None:
                await self._strike(output.fault, reply)
                return
            unfinished -= output.finish is not None
            events = answer.add(output)
            if not unfinished and call.submission.pin is not None and self.engine.options.owned_by == "sglang":
                await self.scheduler.of(call).pins.taken(call.submission.pin)  # SGLang's prefill is over when its cache has been fetched
            if streamed:
                if not reply.started:
                    await reply.start()
                for event in events:
                    await reply.write(_event(event))
        if not streamed:
            await reply.send(msgspec.json.encode(answer.whole()))
            return
        if answer.body.stream_options is not None and answer.body.stream_options.include_usage:
            await reply.write(_event({**answer.head(), "choices": [], "usage": answer.usage()}))
        await reply.write(b"data: [DONE]\n\n")
        await reply.end()

    async def _strike(self, fault: Fault, reply: Reply) -> None:
        """Does to the connection what a fault is."""
        if fault.kind == "rst":
            reply.reset()
        elif fault.kind == "goaway":
            reply.close()
        elif fault.kind == "die":
            self.engine.die()
        elif fault.kind == "end":
            await (reply.end() if reply.started else reply.send(b"{}"))
        elif reply.started:
            await reply.write(_event({"error": {"message": fault.said, "type": "server_error", "code": 500}}))
            await reply.end()
        else:
            code = int(fault.code) if fault.code.isdigit() else STATUS_OF.get(fault.code, 500)
            await _refuse(reply, fault.said, status=code)

    def _submission(self, body: Body, *, headers: dict[str, str]) -> Submission:
        """Makes the engine's request of a body."""
        if body.model not in ("", self.engine.model.name):
            raise Refused(f"The model `{body.model}` does not exist.", status="NOT_FOUND")
        wanted = body.max_completion_tokens or body.max_tokens
        name = f"{headers.get('x-request-id') or 'cmpl'}-{uuid.uuid4().hex}"
        pin, transfer = legs_of(self.engine.options, body, request_id=name)
        top = body.logprobs if isinstance(body.logprobs, int) and not isinstance(body.logprobs, bool) else body.top_logprobs
        return Submission(
            request_id=name,
            prompt_ids=self._prompt(body),
            n=body.n,
            max_tokens=1 if pin is not None else wanted,
            min_tokens=body.min_tokens,
            ignore_eos=body.ignore_eos,
            stop=_stops(body),
            stop_token_ids=tuple(body.stop_token_ids or ()),
            logprobs=None if body.logprobs is None or body.logprobs is False else top,
            pin=pin,
            pin_ends_by_abort=self.engine.options.owned_by == "sglang",
            transfer=transfer,
            rank=rank_of(self.engine.options, body, headers=headers),
        )

    def _prompt(self, body: Body) -> list[int]:
        """Gives the prompt's ids, whichever way it was given."""
        if isinstance(body.prompt, list):
            return body.prompt
        if isinstance(body.prompt, str):
            return self.engine.model.encode(body.prompt)
        messages, tools, kwargs = (_json(raw) for raw in (body.messages, body.tools, body.chat_template_kwargs))
        if not messages:
            raise Refused("neither messages nor prompt is set")
        if not isinstance(kwargs, dict):
            raise Refused("chat_template_kwargs is not an object")
        return self.engine.model.encode(render_chat(self.engine.model, messages=messages, tools=tools, kwargs=kwargs))

    async def _tokenize(self, request: HttpRequest, reply: Reply) -> None:
        try:
            ids = self._prompt(msgspec.json.decode(request.body, type=Body))
        except (msgspec.DecodeError, Refused) as error:
            await _refuse(reply, str(error), status=400)
            return
        limit = self.engine.model.context_length
        await reply.send(msgspec.json.encode({"count": len(ids), "max_model_len": limit, "tokens": ids}))

    def _card(self) -> JsonObject:
        model = self.engine.model
        return {
            "id": model.name,
            "object": "model",
            "created": 0,
            "owned_by": self.engine.options.owned_by,
            "root": str(model.folder),
            "max_model_len": model.context_length,
        }

    def _metrics(self) -> str:
        """As vLLM names and labels its ranks."""
        blocks, lines = self.engine.options.kv_blocks, []
        for number, rank in enumerate(self.scheduler.ranks):
            counters = rank.counters
            values = {
                "vllm:num_requests_running": counters.running,
                "vllm:num_requests_waiting": counters.waiting,
                "vllm:kv_cache_usage_perc": counters.blocks_used / blocks,
                "vllm:prompt_tokens_total": counters.prompt_tokens,
                "vllm:generation_tokens_total": counters.tokens,
                "vllm:prefix_cache_hits_total": counters.cached_tokens,
            }
            labels = f'engine="{number}",model_name="{self.engine.model.name}"'
            lines += [f"{metric}{{{labels}}} {value}\n" for metric, value in values.items()]
        return "".join(lines)


def add_to_server(servicer: Servicer, server: HttpServer) -> None:
    """Registers the routes."""
    server.handler = servicer.handle


class _Choice:
    """One choice so far."""

    def __init__(self, stream: TextStream) -> None:
        self.stream = stream
        self.text = ""
        self.ids: list[int] = []
        self.logprobs: list[JsonObject] = []
        self.finish: Finish | None = None
        self.matched: str | int | None = None


class _Answer:
    """Builds the answer to one request, whole and in events."""

    def __init__(self, engine: Engine, call: Call, body: Body, *, chat: bool) -> None:
        self.call = call
        self.body = body
        self._model = engine.model
        self._engine, self._options = engine, engine.options
        self._chat = chat
        self._created = int(time.time())
        skip, keep = body.skip_special_tokens, body.include_stop_str_in_output
        self._choices = [
            _Choice(TextStream(engine.model, stop=_stops(body), keep_stop=keep, skip_special_tokens=skip)) for _ in range(body.n)
        ]

    def add(self, output: Output) -> list[JsonObject]:
        """Takes one output; gives the events for it."""
        choice = self._choices[output.choice]
        first = not choice.ids
        choice.ids += output.ids
        scored = [self._scored(token, score) for token, score in zip(output.ids, output.scores, strict=False)]
        choice.logprobs += scored
        if output.finish is None:
            text = choice.stream.feed(output.ids)
        else:
            text = choice.stream.finish(output.ids, matched=output.matched)
            choice.finish, choice.matched = output.finish, None if output.matched_eos else output.matched
        choice.text += text
        entry: JsonObject = {"index": output.choice, "logprobs": _logprobs(scored), "finish_reason": choice.finish}
        if self._chat:
            entry["delta"] = {"role": "assistant", "content": text} if first else {"content": text}
        else:
            entry["text"] = text
        if self.body.return_token_ids:
            entry["token_ids"] = list(output.ids)
        if choice.finish:
            entry["stop_reason"] = choice.matched
        return [{**self.head(), "choices": [entry]}]

    def whole(self) -> JsonObject:
        """Gives the answer that is not streamed."""
        entries: list[Json] = []
        for index, choice in enumerate(self._choices):
            entry: JsonObject = {"index": index, "logprobs": _logprobs(choice.logprobs), "finish_reason": choice.finish}
            entry["stop_reason"] = choice.matched
            if self._chat:
                entry["message"] = {"role": "assistant", "content": choice.text}
            else:
                entry["text"] = choice.text
            if self.body.return_token_ids:
                entry["token_ids"] = list(choice.ids)
            entries.append(entry)
        kind = "chat.completion" if self._chat else "text_completion"
        answer: JsonObject = {**self.head(), "object": kind, "choices": entries, "usage": self.usage()}
        if self.call.submission.pin is not None and self._options.owned_by == "vllm":
            answer["kv_transfer_params"] = handed(self.call, engine_id="sim", host=self._options.host, port=self._engine.status_port)
        return answer

    def head(self) -> JsonObject:
        """Gives the fields that every event has."""
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {"id": self.call.submission.request_id, "object": kind, "created": self._created, "model": self._model.name}

    def usage(self) -> JsonObject:
        """Gives the token counts."""
        prompt, made = len(self.call.submission.prompt_ids), sum(len(choice.ids) for choice in self._choices)
        details: JsonObject = {"cached_tokens": self.call.cached_tokens}
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made, "prompt_tokens_details": details}

    def _scored(self, token: int, score: Scores) -> JsonObject:
        value, others, values = score
        top: list[Json] = [self._named(other, low) for other, low in zip(others, values, strict=True)]
        return {**self._named(token, value), "top_logprobs": top}

    def _named(self, token: int, value: float) -> JsonObject:
        text = self._model.decode([token], skip_special_tokens=False)
        return {"token": text, "logprob": value, "bytes": list(text.encode())}


def _stops(body: Body) -> tuple[str, ...]:
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def _json(raw: Raw) -> Json:
    return cast(Json, msgspec.json.decode(raw))


def _logprobs(scored: list[JsonObject]) -> Json:
    content: list[Json] = list(scored)
    return {"content": content} if content else None


def _event(value: JsonObject) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


async def _refuse(reply: Reply, message: str, *, status: int) -> None:
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    await reply.send(msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}}), status=status)
