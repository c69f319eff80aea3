"""What is known of the engines' KV caches, in shared memory: which prompts' beginnings each holds, and which engine a routing key has."""

__all__ = ["Feed", "Outcome", "PrefixIndex", "Prompt", "Sticky"]

from smg.kvindex.feed import Feed, Outcome
from smg.kvindex.index import PrefixIndex, Prompt, Sticky
