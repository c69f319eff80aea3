"""The only importer of `smg_ext`. `SMG_NO_EXT=1` asks for the plain-Python twins where a native function has one."""

import os

__all__ = [
    "NO_EXT",
    "Ascii",
    "BareGrammar",
    "BytePairs",
    "Call",
    "Characters",
    "ChatSink",
    "ChoiceGrammar",
    "Collector",
    "Connection",
    "EventShapes",
    "EventSink",
    "Family",
    "FieldTable",
    "Functionary",
    "Grammar",
    "Harmony",
    "HarmonyMarks",
    "Headers",
    "Inbox",
    "Inkling",
    "JsonGrammar",
    "LiteralGrammar",
    "Machine",
    "MarkSet",
    "Marks",
    "Muse",
    "NamedGrammar",
    "NativeBuckets",
    "NativeCounter",
    "NativeHistogram",
    "NativeLoads",
    "NativePrefixIndex",
    "NativeSeats",
    "NativeShm",
    "NativeSticky",
    "NativeStream",
    "NestedGrammar",
    "Prompt",
    "PythonGrammar",
    "RequestLayout",
    "Shapes",
    "Sink",
    "Splits",
    "Splitter",
    "StopStrings",
    "Table",
    "TaggedGrammar",
    "ThoughtMarks",
    "Vocabulary",
    "native_least_of",
    "packed_ids",
    "value_span",
]

NO_EXT = os.environ.get("SMG_NO_EXT", "") not in ("", "0")

from smg_ext.blocks import Functionary, Inkling  # noqa: E402
from smg_ext.body import value_span  # noqa: E402
from smg_ext.bpe import BytePairs  # noqa: E402
from smg_ext.bpe_ascii import Ascii  # noqa: E402
from smg_ext.bpe_characters import Characters  # noqa: E402
from smg_ext.bpe_marks import Marks  # noqa: E402
from smg_ext.bpe_splits import Splits  # noqa: E402
from smg_ext.bpe_vocabulary import Table  # noqa: E402
from smg_ext.buckets import Buckets as NativeBuckets  # noqa: E402
from smg_ext.channels import Harmony, HarmonyMarks, Muse  # noqa: E402
from smg_ext.collector import Collector, Shapes  # noqa: E402
from smg_ext.events import EventShapes, EventSink  # noqa: E402
from smg_ext.grammar import BareGrammar, ChoiceGrammar, Grammar  # noqa: E402
from smg_ext.grammar_json import JsonGrammar  # noqa: E402
from smg_ext.grammar_named import NamedGrammar  # noqa: E402
from smg_ext.grammar_nested import NestedGrammar  # noqa: E402
from smg_ext.grammar_python import LiteralGrammar, PythonGrammar  # noqa: E402
from smg_ext.grammar_tagged import TaggedGrammar  # noqa: E402
from smg_ext.headers import Headers  # noqa: E402
from smg_ext.loads import Loads as NativeLoads  # noqa: E402
from smg_ext.loads import least_of as native_least_of  # noqa: E402
from smg_ext.machine import Machine  # noqa: E402
from smg_ext.marks import MarkSet  # noqa: E402
from smg_ext.plane import Call, Connection  # noqa: E402  re-exports
from smg_ext.prefix import PrefixIndex as NativePrefixIndex  # noqa: E402
from smg_ext.prompt import Prompt  # noqa: E402
from smg_ext.request import RequestLayout, packed_ids  # noqa: E402
from smg_ext.response import ResponseStream as NativeStream  # noqa: E402
from smg_ext.seats import Seats as NativeSeats  # noqa: E402
from smg_ext.series import Counter as NativeCounter  # noqa: E402
from smg_ext.series import Histogram as NativeHistogram  # noqa: E402
from smg_ext.shm import Shm as NativeShm  # noqa: E402
from smg_ext.sink import Inbox, Sink  # noqa: E402
from smg_ext.splitter import Family, Splitter  # noqa: E402
from smg_ext.sticky import Sticky as NativeSticky  # noqa: E402
from smg_ext.stream import ChatSink  # noqa: E402
from smg_ext.text import StopStrings, Vocabulary  # noqa: E402
from smg_ext.thoughts import ThoughtMarks  # noqa: E402
from smg_ext.wire import FieldTable  # noqa: E402
