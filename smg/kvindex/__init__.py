"""What is known of the engines' KV caches, in shared memory: which prompts' beginnings each holds, and which engine a routing key has.

`smg.kvindex.feed` and `smg.kvindex.follow` are apart, for they import grpc, which the process that forks the others must not.
"""

__all__ = ["PrefixIndex", "Prompt", "Sticky"]

from smg.kvindex.index import PrefixIndex, Prompt, Sticky
