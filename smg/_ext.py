"""The only importer of `smg_ext`. `SMG_NO_EXT=1` asks for the plain-Python twins where a native function has one."""

import os

__all__ = [
    "NO_EXT",
    "Call",
    "ChatSink",
    "Connection",
    "EventSink",
    "FieldTable",
    "Headers",
    "Inbox",
    "Machine",
    "NativeBuckets",
    "NativePrefixIndex",
    "NativeSeats",
    "NativeShm",
    "NativeSticky",
    "NativeStream",
    "Prompt",
    "RequestLayout",
    "Sink",
    "StopStrings",
    "ThoughtMarks",
    "Vocabulary",
    "packed_ids",
    "value_span",
]

NO_EXT = os.environ.get("SMG_NO_EXT", "") not in ("", "0")

from smg_ext.body import value_span  # noqa: E402
from smg_ext.buckets import Buckets as NativeBuckets  # noqa: E402
from smg_ext.events import EventSink  # noqa: E402
from smg_ext.headers import Headers  # noqa: E402
from smg_ext.machine import Machine  # noqa: E402
from smg_ext.plane import Call, Connection  # noqa: E402  re-exports
from smg_ext.prefix import PrefixIndex as NativePrefixIndex  # noqa: E402
from smg_ext.prompt import Prompt  # noqa: E402
from smg_ext.request import RequestLayout, packed_ids  # noqa: E402
from smg_ext.response import ResponseStream as NativeStream  # noqa: E402
from smg_ext.seats import Seats as NativeSeats  # noqa: E402
from smg_ext.shm import Shm as NativeShm  # noqa: E402
from smg_ext.sink import Inbox, Sink  # noqa: E402
from smg_ext.sticky import Sticky as NativeSticky  # noqa: E402
from smg_ext.stream import ChatSink  # noqa: E402
from smg_ext.text import StopStrings, Vocabulary  # noqa: E402
from smg_ext.thoughts import ThoughtMarks  # noqa: E402
from smg_ext.wire import FieldTable  # noqa: E402
