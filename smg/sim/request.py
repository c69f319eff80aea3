"""What passes between a protocol and the scheduler: a `Submission` goes in, `Output`s come back through a `Call`."""

import asyncio
from collections import deque
from typing import Literal, TypeAlias

from msgspec import Struct

from smg.sim.blocks import BlockTable
from smg.sim.output import Scores, TokenSource
from smg.sim.script import Fault, Script

__all__ = ["Call", "Finish", "Output", "Refused", "Sequence", "Submission", "Transfer"]

Finish: TypeAlias = Literal["stop", "length", "abort"]


class Refused(Exception):
    """The engine does not take the request. `status` is the name of a gRPC status."""

    def __init__(self, message: str, *, status: str = "INVALID_ARGUMENT") -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Transfer(Struct, frozen=True, kw_only=True):
    """KV that a prefill engine holds under `name`; its address may be unknown (""). `required`: without it the request fails."""

    host: str
    port: int
    name: str
    required: bool


class Submission(Struct, frozen=True, kw_only=True):
    """One Generate call in no protocol's words. `logprobs`/`prompt_logprobs`: alternatives a token, None = none.

    `pin`: keep the prompt's blocks under this name when the request has ended, for the decode side; `pin_ends_by_abort`: an Abort of the
    request gives them up. `transfer`: where the prompt's KV comes from; the request waits for it outside the queue. `keep_stop`: a matched
    stop token is part of the output, where engines differ in that. `rank`: the data-parallel rank that shall compute it, None = any.
    """

    request_id: str
    prompt_ids: list[int]
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    keep_stop: bool = False
    pin: str | None = None
    pin_ends_by_abort: bool = False
    transfer: Transfer | None = None
    rank: int | None = None


class Output(Struct, frozen=True, kw_only=True):
    """One step of one choice, or (fault set) the end of the whole call. `made` counts the choice's tokens so far, these included."""

    choice: int = 0
    ids: list[int] = []
    scores: list[Scores] = []
    made: int = 0
    finish: Finish | None = None
    matched: str | int | None = None
    matched_eos: bool = False
    fault: Fault | None = None


class Sequence:
    """One choice while it lives. `ids` are the prompt's and the generated ones, of which the last `uncomputed` wait for a step of the batch
    that computes them; `not_before_s` holds its next token back.
    """

    __slots__ = ("call", "finished", "ids", "index", "not_before_s", "source", "table", "uncomputed")

    def __init__(self, call: "Call", *, index: int, source: TokenSource) -> None:
        self.call = call
        self.index = index
        self.source = source
        self.ids = list(call.submission.prompt_ids)
        self.table: BlockTable | None = None
        self.uncomputed = 0
        self.finished = False
        self.not_before_s = 0.0


class Call:
    """One request while it lives. The protocol reads `outputs` with `read`; the scheduler writes with `put`."""

    def __init__(self, submission: Submission, *, script: Script) -> None:
        self.submission = submission
        self.script = script
        self.sequences: list[Sequence] = []
        self.outputs: deque[Output] = deque()
        self.cached_tokens = 0
        self.rank = 0
        self.frozen = False
        self.remote_prompt = False
        self.struck = False
        self.ended = False
        self.admitted = asyncio.Event()
        self._written = asyncio.Event()

    def put(self, output: Output) -> None:
        """Hands one output to the reader."""
        self.outputs.append(output)
        self._written.set()

    async def read(self) -> Output:
        """Gives the next output, waiting for it without a limit of its own: an engine waits as long as its client."""
        while not self.outputs:
            self._written.clear()
            await self._written.wait()
        return self.outputs.popleft()
