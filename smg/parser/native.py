"""The native parsers, made from the same data as those in Python, which are their specification. Called by `smg.parser.build`.

Families come in as `ReasoningSpec` and `ToolSpec`; each pair is turned once into tables that serve every request, and a parser with them
is made for each choice. A test compares both kinds over every family.
"""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from typing import Any, cast

from smg import _ext
from smg._ext import Collector, Family, Grammar, Shapes
from smg.parser.base import Call, CallArguments, Text, Thought
from smg.parser.functionary import FUNCTIONARY_MARKS
from smg.parser.harmony import HARMONY_MARKS, destination, is_header_word, recipients, said_before
from smg.parser.inkling import INKLING_MARKS, INKLING_READER
from smg.parser.muse import MUSE_MARKS
from smg.parser.reasoning.spec import ReasoningSpec
from smg.parser.tool.grammar.bare_arguments import BareArguments, bare_arguments
from smg.parser.tool.grammar.choice import Choice
from smg.parser.tool.grammar.json_calls import JsonCalls, JsonFormat, unwrapped
from smg.parser.tool.grammar.literal import Literal
from smg.parser.tool.grammar.named_json import Field, NamedFormat, NamedJson
from smg.parser.tool.grammar.nested import NestedCalls
from smg.parser.tool.grammar.pythonic import PythonicCalls
from smg.parser.tool.grammar.schema import as_json, inner_of, kinds_in
from smg.parser.tool.grammar.tagged import CDATA, STATES, TaggedCalls, TaggedFormat, head_key, head_name, state_marks
from smg.parser.tool.grammar.transduced import LiteralCalls
from smg.parser.tool.grammar.value import decoded
from smg.parser.tool.reader import MakeReader, Reader, without_marks
from smg.parser.tool.spec import TOOLS, ToolSpec
from smg.types.json import JsonObject

__all__ = ["native_parser"]

# What a parser is made with for one choice, besides its family.
Options = Mapping[str, Any]

SHAPES = Shapes(Text, Thought, Call, CallArguments)
MUSE_TOOL = "muse_glimmer"
# The name of the tool is not the family's, but the request's.
NAMED = ToolSpec(reader=bare_arguments(""), bare="{")


def native_parser(
    think: ReasoningSpec | None,
    calls: ToolSpec | None,
    *,
    schemas: dict[str, JsonObject],
    in_think: bool = False,
    named: str | None = None,
    parallel: bool = True,
) -> Collector:
    """Gives a parser of these families. `named`: `calls` only makes ids, for the output is the arguments of that tool."""
    options: dict[str, Any] = {
        "shapes": SHAPES,
        "schemas": schemas,
        "new_id": calls.new_id if calls else None,
        "single": calls is not None and not parallel,
        "forced": named or "",
    }
    tool = NAMED if named else calls
    channels = (think.channels if think else "") or (tool.channels if tool else "")
    if not channels:
        return _ext.Splitter(family_of(think, tool), in_think=in_think, **options)
    options["new_id"] = None
    return CHANNELS[channels](options, think is not None, tool is not None, in_think)


@lru_cache(maxsize=256)
def family_of(think: ReasoningSpec | None, calls: ToolSpec | None) -> Family:
    """Gives the tables of two families together."""
    think, calls = think or ReasoningSpec(), calls or ToolSpec()
    return Family(
        starts=think.starts,
        ends=think.ends,
        also_ends=think.also_ends,
        layout=think.layout,
        opens=calls.opens,
        strays=calls.strays,
        drops=calls.drops,
        bare=calls.bare,
        grammar=grammar_of(calls.reader) if calls.reader else None,
        spaces=think.spaces,
        cited=think.citations or calls.citations,
    )


# Families whose whole output has a format of its own. Each takes the options, and whether thoughts and calls are wanted, and how it begins.


@cache
def marks_of(marks: tuple[str, ...]) -> _ext.MarkSet:
    """Gives the table of these marks."""
    return _ext.MarkSet(marks)


@cache
def harmony_marks() -> _ext.HarmonyMarks:
    """Gives what reads harmony's headers."""
    return _ext.HarmonyMarks(
        HARMONY_MARKS, destination=destination, said_before=said_before, recipients=recipients, is_header_word=is_header_word
    )


def harmony(options: Options, thoughts: bool, calls: bool, in_think: bool) -> Collector:
    """See `smg.parser.harmony`."""
    return _ext.Harmony(harmony_marks(), thoughts=thoughts, calls=calls, in_think=in_think, **options)


def inkling(options: Options, thoughts: bool, calls: bool, in_think: bool) -> Collector:
    """See `smg.parser.inkling`."""
    grammar = grammar_of(INKLING_READER)
    return _ext.Inkling(marks_of(INKLING_MARKS), grammar, thoughts=thoughts, calls=calls, in_think=in_think, **options)


def functionary(options: Options, thoughts: bool, calls: bool, in_think: bool) -> Collector:
    """See `smg.parser.functionary`."""
    return _ext.Functionary(marks_of(FUNCTIONARY_MARKS), calls=calls, **options)


def muse(options: Options, thoughts: bool, calls: bool, in_think: bool) -> Collector:
    """See `smg.parser.muse`."""
    family = family_of(None, TOOLS.get(MUSE_TOOL) if calls else None)
    return _ext.Muse(family, messages=marks_of(MUSE_MARKS), thoughts=thoughts, began_thinking=in_think, **options)


CHANNELS: dict[str, Callable[[Options, bool, bool, bool], Collector]] = {
    "harmony": harmony,
    "inkling": inkling,
    "functionary": functionary,
    "muse": muse,
}

# Grammars. Each takes what its reader in Python is made with.


@cache
def grammar_of(make: MakeReader) -> Grammar:
    """Gives the native grammar that reads as this maker's readers do."""
    assert isinstance(make, partial)
    return GRAMMARS[cast("type[Reader]", make.func)](**make.keywords)


def json_grammar(form: JsonFormat, marks: tuple[str, ...]) -> Grammar:
    """See `JsonCalls`."""
    return _ext.JsonGrammar(
        closes=form.closes,
        names=form.names,
        arguments=form.arguments,
        id_key=form.id_key,
        keyed=form.keyed,
        separators=form.separators,
        others=form.others,
        decoded=decoded,
        unwrapped=unwrapped,
        marks=marks,
        without_marks=without_marks,
    )


def named_grammar(form: NamedFormat) -> Grammar:
    """See `NamedJson`."""

    def header(parts: list[tuple[str, str]]) -> tuple[str, str | None] | None:
        return form.header([Field(text, mark) for text, mark in parts])

    value = form.value
    literal = value is Literal or (isinstance(value, partial) and value.func is Literal)
    return _ext.NamedGrammar(
        header=header,
        sections=form.sections,
        begins=form.begins,
        inner=form.inner,
        ends=form.ends,
        closes=form.closes,
        literal=literal,
        quote=value.keywords.get("mark", "") if isinstance(value, partial) else "",
        marks=form.marks,
        without_marks=without_marks,
    )


def tagged_grammar(form: TaggedFormat) -> Grammar:
    """See `TaggedCalls`."""
    every = state_marks(form)
    return _ext.TaggedGrammar(
        matchers=tuple(every[state] for state in STATES),
        name_of=partial(head_name, form),
        key_of=partial(head_key, form),
        as_json=as_json,
        call_open=form.call_open,
        call_close=form.call_close,
        parameter_open=form.parameter_open,
        parameter_close=form.parameter_close,
        name_ends=form.name_ends,
        key_end=form.key_end,
        value_open=form.value_open,
        closes=form.closes,
        noise=form.noise,
        cdata=CDATA if form.cdata else "",
        trim=form.trim,
        attributes=bool(form.name_key),
        id_form=form.id_form,
        sectioned=bool(form.closes or form.sections),
        marks=form.marks,
        without_marks=without_marks,
    )


def nested_grammar(mark: str) -> Grammar:
    """See `NestedCalls`."""
    return _ext.NestedGrammar(mark=mark, inner_of=inner_of, kinds_in=kinds_in, as_json=as_json, without_marks=without_marks)


def python_grammar(closes: tuple[str, ...], marks: tuple[str, ...]) -> Grammar:
    """See `PythonicCalls`."""
    return _ext.PythonGrammar(closes=closes, marks=(*marks, *closes), without_marks=without_marks)


def literal_grammar(inner: MakeReader, marks: tuple[str, ...]) -> Grammar:
    """See `LiteralCalls`."""
    return _ext.LiteralGrammar(grammar_of(inner), marks=marks, without_marks=without_marks)


def choice_grammar(decide: Callable[[str], MakeReader | None], marks: tuple[str, ...]) -> Grammar:
    """See `Choice`."""

    def decided(first: str) -> Grammar | None:
        make = decide(first)
        return None if make is None else grammar_of(make)

    return _ext.ChoiceGrammar(decided, marks=marks, without_marks=without_marks)


def bare_grammar(name: str) -> Grammar:
    """See `BareArguments`."""
    return _ext.BareGrammar(without_marks=without_marks)


GRAMMARS: dict[type[Reader], Callable[..., Grammar]] = {
    BareArguments: bare_grammar,
    Choice: choice_grammar,
    JsonCalls: json_grammar,
    LiteralCalls: literal_grammar,
    NamedJson: named_grammar,
    NestedCalls: nested_grammar,
    PythonicCalls: python_grammar,
    TaggedCalls: tagged_grammar,
}
