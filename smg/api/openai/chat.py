"""`POST /v1/chat/completions`: body → Job → pipeline → chunks or one answer."""

import asyncio
from contextlib import aclosing
from functools import partial

from smg.api.base import Pump, Reply, Request, Services, StreamReply, Write
from smg.api.decode import parsed
from smg.api.openai.answer import answer_id, open_head
from smg.api.openai.chat_stream import ChatStream
from smg.api.openai.chat_whole import ChatWhole
from smg.api.openai.validate import HEADER, OutputCheck, output_check
from smg.errors import ClientGone
from smg.types.job import Job

__all__ = ["chat_completions"]


async def chat_completions(http: Request, services: Services) -> Reply | StreamReply:
    """Answers one request."""
    answer = answer_id(http, "chatcmpl-")
    timeout_s = services.config.server.request_timeout_s

    read = partial(services.chats.read, http=http, answer=answer, timeout_s=timeout_s)
    settings, job = await parsed(await http.body(), read)
    kind = "chat.completion.chunk" if job.stream else "chat.completion"
    head = open_head(job.model, services, answer=answer, kind=kind)
    asked = http.headers.get(HEADER)
    check = await output_check(job, asked=asked) if asked else None
    if job.stream:
        stream = ChatStream(head, settings.switches)
        if check is None:
            pump: Pump = partial(services.pipeline.stream, job, renderer=stream)
        else:
            pump = partial(_stream_checked, job, services, stream, check)
        return StreamReply(pump=pump, surface="openai")
    whole = ChatWhole(head, settings.switches)
    if check is None:
        await services.pipeline.whole(job, take=whole.feed, take_text=whole.take if settings.switches.reasoning else None)
    else:
        async with aclosing(check.watch(services.pipeline.run(job))) as batches:
            async for events in batches:
                whole.feed(events)
    return Reply(body=await asyncio.to_thread(whole.body) if whole.is_large else whole.body())


async def _stream_checked(job: Job, services: Services, stream: ChatStream, check: OutputCheck, write: Write) -> bytes:
    async with aclosing(check.watch(services.pipeline.run(job))) as batches:
        async for events in batches:
            chunk = stream.feed(events)
            if chunk and not write(chunk):
                raise ClientGone("the client left")
    return stream.end()
