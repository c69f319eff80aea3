"""Which parsers read a job's output, and what of the output they must see. Made by `smg.pipeline.run`, one `Parsing` a job."""

import re
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct, structs

from smg._ext import Collector, ThoughtMarks
from smg.parser import REASONING, Parser, build, marks
from smg.pipeline.forced import forced_call
from smg.pipeline.models import ServedModel
from smg.tokenizer import Tokenizer
from smg.types.job import ChatInput, Constraint, Job
from smg.types.json import JsonObject

__all__ = ["Parsing", "parsing_of"]

# A mark made of several special tokens: when the output ends inside it, what came of it is not text.
TOKEN = re.compile(r"<[^<>]+>")


class Parsing(Struct, frozen=True, kw_only=True):
    """Parsers by name, and what binds the engine. `named`: the tool whose bare arguments the output is. `parallel`: or many calls.

    read           somebody reads the output: it is not just text
    thought_marks  those of the thinking block, where the native machine can take it out of the text
    by_machine     nobody but the machine need read it: it is text, or text and thoughts that the machine splits
    """

    reasoning: str | None = None
    tool: str | None = None
    tools: tuple[JsonObject, ...] = ()
    stream_reasoning: bool = True
    named: str | None = None
    parallel: bool = True
    constraint: Constraint | None = None
    read: bool = False
    thought_marks: ThoughtMarks | None = None
    by_machine: bool = False

    def __post_init__(self) -> None:
        read = self.reasoning is not None or self.tool is not None
        marks = None if self.reasoning is None or self.tool is not None else _thought_marks(self.reasoning)
        structs.force_setattr(self, "read", read)
        structs.force_setattr(self, "thought_marks", marks)
        structs.force_setattr(self, "by_machine", not read or marks is not None)

    def parser(self, *, in_think: bool, native: bool) -> Parser | None:
        """Gives a new parser, native or the one in Python that is its specification; None where the output is text."""
        if not self.read:
            return None
        return build(
            reasoning=self.reasoning,
            tool=self.tool,
            tools=self.tools,
            in_think=in_think,
            named=self.named,
            parallel=self.parallel,
            native=native,
        )

    def native_parsers(self, choices: int, *, in_think: bool) -> tuple[Collector, ...]:
        """Gives what the native machine reads the choices with; nothing where the output is text, or the machine has `thought_marks`."""
        if self.thought_marks is not None:
            return ()
        made = (self.parser(in_think=in_think, native=True) for _ in range(choices))
        return tuple(parser for parser in made if isinstance(parser, Collector))

    @property
    def by_token(self) -> bool:
        """True when it matters which token did what: those of thoughts are counted, or a second call ends the answer."""
        return self.reasoning is not None or not self.parallel

    def kept(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Gives the special ids that the parsers look for, which are text for them."""
        return _kept(tokenizer, self.reasoning, self.tool) if self.read else frozenset()


@lru_cache(maxsize=64)
def _thought_marks(reasoning: str) -> ThoughtMarks | None:
    """Families that are no more than their marks: of what else a family can have, the native machine knows nothing."""
    spec = REASONING.get(reasoning) if reasoning in REASONING else None
    if spec is None or not spec.starts or not spec.ends:
        return None
    marks_only = type(spec)(starts=spec.starts, ends=spec.ends, also_ends=spec.also_ends, layout=spec.layout, assumed=spec.assumed)
    every = (*spec.starts, *spec.ends, *spec.also_ends, *spec.layout)
    if spec != marks_only or any(TOKEN.search(mark[:-1]) for mark in every):
        return None
    return ThoughtMarks(starts=spec.starts, ends=spec.ends, also_ends=spec.also_ends, layout=spec.layout)


@lru_cache(maxsize=64)
def _of_text(reasoning: str | None, stream_reasoning: bool, parallel: bool) -> Parsing:
    return Parsing(reasoning=reasoning, stream_reasoning=stream_reasoning, parallel=parallel)


@lru_cache(maxsize=64)
def _kept(tokenizer: Tokenizer, reasoning: str | None, tool: str | None) -> frozenset[int]:
    ids = (tokenizer.token_id(mark) for mark in marks(reasoning, tool))
    return frozenset(token_id for token_id in ids if token_id is not None)


def parsing_of(job: Job, model: ServedModel, *, tags: bool = False) -> Parsing:
    """No parser for plain completions, no tool parser without tools, no reasoning parser for who wants the text as it is.

    `tags`: a forced call may be held to structural tags, which every engine of the model takes.
    """
    if not isinstance(job.input, ChatInput):
        return Parsing(constraint=job.constraint)
    chat = job.input
    if not chat.tools:  # nothing to call, and most often nothing but what other requests of the model have, too
        reasoning = model.reasoning_parser if chat.separate_reasoning else None
        shared = _of_text(reasoning, chat.stream_reasoning, chat.parallel_tool_calls)
        return shared if job.constraint is None else structs.replace(shared, constraint=job.constraint)
    forced = forced_call(chat, tool_parser=model.tool_parser, tags=tags)
    tool = forced.tool if forced else model.tool_parser
    tools: Sequence[JsonObject] = () if chat.tool_choice == "none" or tool is None else chat.tools
    return Parsing(
        reasoning=model.reasoning_parser if chat.separate_reasoning else None,
        tool=tool if tools else None,
        tools=tuple(tools),
        stream_reasoning=chat.stream_reasoning,
        named=forced.named if forced else None,
        parallel=chat.parallel_tool_calls,
        constraint=forced.constraint if forced else job.constraint,
    )
