"""The simulated engine's heart, a continuous-batching loop: `Call`s come in, their outputs go out step by step. Used by every protocol.

One step: prompts that were begun go on, waiting sequences join the batch while there is room, the cost model says how long the GPU works,
then every sequence of the batch whose prompt is computed and which is due makes one token. A prompt that is longer than what is left of a
step is cut, as in vLLM (`max_num_batched_tokens`, of which answers take a token each there) and in SGLang with `enable_mixed_chunk`
(`chunked_prefill_size`; without it answers wait until all prompts are computed).
"""

import asyncio
import contextlib
import time
from collections import deque

import msgspec

from smg.sim.blocks import BlockPool
from smg.sim.cost import CostModel
from smg.sim.counters import Counters
from smg.sim.kvlog import KvLog
from smg.sim.model import SimModel
from smg.sim.options import SimOptions
from smg.sim.output import TokenSource, plan_output, score_token
from smg.sim.request import Call, Finish, Output, Refused, Sequence, Submission
from smg.sim.script import Fault, Script, ScriptError, parse_marker
from smg.sim.transfer import PinBoard

__all__ = ["Scheduler"]

MOST_UNREAD = 1024  # outputs that a slow client may leave unread before its call stops making tokens


class Scheduler:
    """Owns the batch, the queue and the KV cache of one engine. `start` and `close` frame its life, within one event loop."""

    def __init__(self, options: SimOptions, *, model: SimModel, script: Script, fault: Fault | None = None) -> None:
        self.options = options
        self.model = model
        self.counters = Counters()
        self.pool = BlockPool(options.kv_blocks, block_size=options.block_size, caching=options.prefix_cache)
        self.log = KvLog(keep=options.kv_replay, drop_every=options.kv_drop_every)
        self.pins = PinBoard(self.pool, lease_s=options.kv_lease_s, on_release=self._rouse)
        self.cost = CostModel.from_options(options)
        self.script = script
        self.fault = fault
        self.calls: dict[str, Call] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the loop."""
        self._task = asyncio.create_task(self._run(), name="sim-scheduler")

    async def close(self) -> None:
        """Stops the loop; calls that are open get nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def submit(self, submission: Submission) -> Call:
        """Takes a request. Raises Refused when it cannot be served as it is."""
        try:
            self._check(submission)
            call = Call(submission, script=self._script_of(submission))
            call.sequences = [self._sequence(call, index=index) for index in range(submission.n)]
        except ScriptError as error:
            self.counters.refused += 1
            raise Refused(f"sim marker: {error}") from error
        except Refused:
            self.counters.refused += 1
            raise
        self.counters.started += 1
        self.calls[submission.request_id] = call
        if submission.transfer is None:
            self.enqueue(call)
        return call

    def enqueue(self, call: Call, *, remote_prompt: bool = False) -> None:
        """Puts a call into the queue, once its transfer has ended. `remote_prompt`: its prompt need not be computed."""
        if call.ended:
            return
        call.remote_prompt = remote_prompt
        self._waiting.extend(call.sequences)
        self._rouse()

    def fail(self, call: Call, fault: Fault) -> None:
        """Ends a call by a fault that is not scripted."""
        if not call.ended:
            self._strike(call, fault)

    def abort(self, request_id: str) -> bool:
        """Obeys an Abort call: every unfinished choice ends with `abort`. False when the request is not known or has ended."""
        call = self.calls.get(request_id)
        self.counters.add_abort(request_id, cause="rpc", known=call is not None)
        self.pins.abandon(request_id)
        if call is None:
            return False
        open_ones = [sequence for sequence in call.sequences if not sequence.finished]
        self._end(call)
        for sequence in open_ones:
            call.put(Output(choice=sequence.index, made=sequence.source.made, finish="abort"))
        return True

    def cancel(self, call: Call) -> None:
        """Is told that the client cancelled the call. Work for it stops. A call that a fault broke is not the client's doing."""
        if call.struck:
            return
        self.counters.add_abort(call.submission.request_id, cause="cancel", known=not call.ended)
        self.pins.abandon(call.submission.request_id)
        self._end(call)

    def drop(self, call: Call) -> None:
        """Ends a call for the engine's own reasons; nothing happens when it has ended."""
        if not call.ended:
            self.counters.faulted += 1
        self._end(call)

    async def flush_cache(self, timeout_s: float) -> bool:
        """Empties the prefix cache, waiting up to `timeout_s` for the engine to be idle. False when it was not."""
        deadline = time.monotonic() + timeout_s
        while not self.pool.clear():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.01)
        self.publish()
        return True

    def publish(self) -> None:
        """Sends the pool's events to subscribers and brings the counters up to date."""
        self.log.append(self.pool.drain_events())
        counters = self.counters
        if counters.waiting != len(self._waiting):
            counters.waiting_uncached_tokens = sum(len(sequence.ids) for sequence in self._waiting)
        counters.running, counters.waiting = len(self._running), len(self._waiting)
        counters.blocks_used, counters.blocks_pinned = self.pool.used, self.pins.blocks

    def _rouse(self) -> None:
        """Is told that blocks came free outside a step."""
        self.publish()
        self._wake.set()

    def _check(self, submission: Submission) -> None:
        """Raises Refused when the request can never run here."""
        length = len(submission.prompt_ids)
        if not length:
            raise Refused("the prompt is empty")
        if submission.request_id in self.calls:
            raise Refused(f"request id {submission.request_id!r} is in use", status="ALREADY_EXISTS")
        if length >= self.model.context_length:
            raise Refused(f"the prompt has {length} tokens, the context is {self.model.context_length}")
        if self.pool.needed(length + 1) > self.pool.count:
            raise Refused(f"the prompt needs more than the cache's {self.pool.count} blocks", status="RESOURCE_EXHAUSTED")
        if max(submission.prompt_ids) >= self.model.vocab_size:
            raise Refused(f"token id {max(submission.prompt_ids)} is outside the vocabulary of {self.model.vocab_size}")
        if submission.max_tokens is not None and submission.max_tokens < 1:
            raise Refused("max_tokens must be at least 1")
        if self.options.max_waiting and len(self._waiting) + submission.n > self.options.max_waiting:
            raise Refused("the queue is full", status="RESOURCE_EXHAUSTED")

    def _script_of(self, submission: Submission) -> Script:
        """Gives the request's script: the engine's own, changed by a marker in the prompt where that is allowed."""
        script = self.script
        if self.fault is not None and (self.counters.started + 1) % self.options.fault_every == 0:
            script = _with_fault(script, self.fault)
        if not self.options.allow_scripts:
            return script
        text = self.model.decode(submission.prompt_ids[-20000:], skip_special_tokens=False)
        return parse_marker(text, base=script) if "[[sim:" in text else script

    def _sequence(self, call: Call, *, index: int) -> Sequence:
        plan = plan_output(call.script, prompt_ids=call.submission.prompt_ids, choice=index, model=self.model)
        fill = self.model.encode(".")[0]
        return Sequence(call, index=index, source=TokenSource(plan, script=call.script, eos=self.model.eos_ids[0], fill=fill))

    async def _run(self) -> None:
        while True:
            self.pins.expire(time.monotonic())
            prompts = self._take_prompts()
            now = time.monotonic()
            due = [sequence for sequence in self._running if _is_due(sequence, now=now)]
            self.publish()
            if not due and not prompts:
                await self._idle(now)
                continue
            context = sum(len(sequence.ids) for sequence in due)
            await asyncio.sleep(self.cost.mixed_s(prompts, len(due), context=context))
            for sequence in due:
                if not sequence.finished and sequence.table is not None:
                    self._advance(sequence)
            self.publish()

    async def _idle(self, now: float) -> None:
        """Waits for a request, an abort, or the moment that a sequence waits for. Unread outputs are looked at again soon."""
        self._wake.clear()
        times = [sequence.not_before_s - now for sequence in self._running if sequence.not_before_s > now]
        if any(len(sequence.call.outputs) >= MOST_UNREAD for sequence in self._running):
            times.append(0.01)
        if self.pins.next_expiry_s is not None:
            times.append(self.pins.next_expiry_s - now)
        # Not wait_for, which may swallow a cancellation in Python 3.11: https://github.com/python/cpython/issues/86296
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(times) if times else None):
                await self._wake.wait()

    def _take_prompts(self) -> int:
        """Gives the prompt tokens that the step computes: of prompts that were begun, then of those that leave the queue for the batch."""
        most = left = self.options.max_prefill_tokens
        for sequence in self._running:
            if sequence.uncomputed and not sequence.call.frozen:
                left -= self._compute(sequence, most=left)
        while left and self._waiting and len(self._running) < self.options.max_running and self._admit(self._waiting[0]):
            left -= self._compute(self._waiting.popleft(), most=left)
        return most - left

    def _admit(self, sequence: Sequence) -> bool:
        """Puts a waiting sequence into the batch, with blocks for its whole prompt; False when there are too few."""
        table = self.pool.open(sequence.ids)
        if table is None:
            return False
        sequence.table = table
        call = sequence.call
        if not call.admitted.is_set():
            call.admitted.set()
            call.cached_tokens = table.cached_tokens
            self.counters.prompt_tokens += len(call.submission.prompt_ids)
            self.counters.cached_tokens += table.cached_tokens
        sequence.uncomputed = 0 if call.remote_prompt else len(sequence.ids) - table.cached_tokens
        delay_ms = call.script.ttft_ms if not sequence.source.made else 0.0
        sequence.not_before_s = time.monotonic() + delay_ms / 1e3 if delay_ms else 0.0
        self._running.append(sequence)
        return True

    def _compute(self, sequence: Sequence, *, most: int) -> int:
        """Takes up to `most` of a sequence's uncomputed tokens into the step; gives how many.

        Their blocks can be found at once, by sequences that join in the same step too, as in vLLM (`KVCacheManager.allocate_slots`).
        """
        assert sequence.table is not None
        count = min(sequence.uncomputed, most)
        sequence.uncomputed -= count
        self.pool.store(sequence.table, sequence.ids, computed=len(sequence.ids) - sequence.uncomputed)
        return count

    def _advance(self, sequence: Sequence) -> None:
        """Makes one token of a sequence, unless its script's fault is due."""
        call, submission, source = sequence.call, sequence.call.submission, sequence.source
        fault = call.script.fault
        if fault is not None and fault.kind != "late" and sequence.index == 0 and source.made >= fault.at:
            self._strike(call, fault)
            return
        token = source.next(eos_allowed=not submission.ignore_eos and source.made >= submission.min_tokens)
        sequence.ids.append(token)
        self.counters.tokens += 1
        finish, matched, is_eos = self._ending(sequence, token)
        if finish is None and not self._grow(sequence):
            finish = "length"
        scores = []
        if submission.logprobs is not None:
            vocab, seed = self.model.vocab_size, self.options.seed
            scores = [score_token(token, position=source.made, count=submission.logprobs, vocab_size=vocab, seed=seed)]
        output = Output(
            choice=sequence.index, ids=[token], scores=scores, made=source.made, finish=finish, matched=matched, matched_eos=is_eos
        )
        if finish is not None:
            self._finish(sequence)
        call.put(output)
        self._pace(sequence)

    def _pace(self, sequence: Sequence) -> None:
        """Holds the next token back as the script says."""
        script = sequence.call.script
        wait_s = script.itl_ms / 1e3 + (script.slow - 1.0) * self.cost.step_s(len(self._running))
        sequence.not_before_s = time.monotonic() + wait_s if wait_s > 0 else 0.0

    def _ending(self, sequence: Sequence, token: int) -> tuple[Finish | None, str | int | None, bool]:
        """Says whether the choice ends with this token: how, what matched, and whether that was EOS."""
        submission, made = sequence.call.submission, sequence.source.made
        if made > submission.min_tokens or not submission.min_tokens:
            if token in self.model.eos_ids and not submission.ignore_eos:
                return "stop", token, True
            if token in submission.stop_token_ids:
                return "stop", token, False
            for stop in submission.stop:
                tail = sequence.ids[-min(made, len(stop.encode()) + 1) :]
                if stop in self.model.decode(tail, skip_special_tokens=False):
                    return "stop", stop, False
        if submission.max_tokens is not None and made >= submission.max_tokens:
            return "length", None, False
        return ("length" if len(sequence.ids) >= self.model.context_length else None), None, False

    def _grow(self, sequence: Sequence) -> bool:
        """Gives the sequence room for its ids, at the cost of the youngest other one; False when it is alone and the cache is full."""
        assert sequence.table is not None
        while not self.pool.extend(sequence.table, sequence.ids):
            others = [other for other in self._running if other is not sequence and other.table is not None]
            if not others:
                return False
            victim = others[-1]
            assert victim.table is not None
            self.pool.close(victim.table)
            victim.table = None
            victim.call.remote_prompt = False  # what was fetched is gone with the blocks
            self._running.remove(victim)
            self._waiting.appendleft(victim)
            self.counters.preempted += 1
        return True

    def _strike(self, call: Call, fault: Fault) -> None:
        """Lets the fault happen. A hang keeps the call and its blocks; every other fault ends it here, and the protocol does the rest."""
        if fault.kind == "hang":
            call.frozen = True
            return
        call.struck = True
        self.drop(call)
        call.put(Output(fault=fault))

    def _finish(self, sequence: Sequence) -> None:
        """Ends a choice, and the call with its last one."""
        call = sequence.call
        if call.submission.pin is not None and sequence.index == 0 and sequence.table is not None:
            owner = call.submission.request_id if call.submission.pin_ends_by_abort else ""
            self.pins.pin(call.submission.pin, sequence.table, tokens=len(call.submission.prompt_ids), owner=owner)
            sequence.table = None
        self._release(sequence)
        if all(other.finished for other in call.sequences):
            self.counters.finished += 1
            self._end(call)

    def _end(self, call: Call) -> None:
        """Takes every trace of a call away. May be called again."""
        if call.ended:
            return
        call.ended = True
        for sequence in call.sequences:
            self._release(sequence)
        self.calls.pop(call.submission.request_id, None)
        self.publish()
        self._wake.set()

    def _release(self, sequence: Sequence) -> None:
        if sequence.finished:
            return
        sequence.finished = True
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        if sequence.table is not None:
            self.pool.close(sequence.table)
            sequence.table = None


def _is_due(sequence: Sequence, *, now: float) -> bool:
    call = sequence.call
    return not call.frozen and not sequence.uncomputed and sequence.not_before_s <= now and len(call.outputs) < MOST_UNREAD


def _with_fault(script: Script, fault: Fault) -> Script:
    """Gives the script with the fault; a late first token is a longer ttft_ms."""
    if fault.kind == "late":
        return msgspec.structs.replace(script, ttft_ms=script.ttft_ms + float(fault.code or 1000))
    return msgspec.structs.replace(script, fault=fault)
