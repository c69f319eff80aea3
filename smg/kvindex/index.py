"""Which body of the prefix index and of the sticky keys is used: the native one, or with SMG_NO_EXT its twin."""

from typing import TYPE_CHECKING

from smg._ext import NO_EXT, NativePrefixIndex, NativeSticky, Prompt
from smg.kvindex.plain import PlainPrefixIndex
from smg.kvindex.plain_sticky import PlainSticky

__all__ = ["PrefixIndex", "Prompt", "Sticky"]

if TYPE_CHECKING:
    PrefixIndex = NativePrefixIndex
    Sticky = NativeSticky
else:
    PrefixIndex = PlainPrefixIndex if NO_EXT else NativePrefixIndex
    Sticky = PlainSticky if NO_EXT else NativeSticky
