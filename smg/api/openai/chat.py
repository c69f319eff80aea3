"""`POST /v1/chat/completions`: body → Job → pipeline → chunks or one answer."""

import asyncio
from functools import partial

from smg.api.base import Reply, Request, Services, StreamReply, Write
from smg.api.decode import parsed
from smg.api.openai.answer import answer_id, open_head
from smg.api.openai.chat_request import Settings
from smg.api.openai.chat_stream import ChatStream
from smg.api.openai.chat_whole import ChatWhole
from smg.types.job import Job

__all__ = ["chat_completions"]


async def chat_completions(http: Request, services: Services) -> Reply | StreamReply:
    """Answers one request."""
    answer = answer_id(http, "chatcmpl-")
    timeout_s = services.config.server.request_timeout_s

    def read(body: bytes) -> tuple[Settings, Job]:
        return services.chats.read(body, http, answer=answer, timeout_s=timeout_s)

    settings, job = await parsed(await http.body(), read)
    kind = "chat.completion.chunk" if job.stream else "chat.completion"
    head = open_head(job.model, services, answer=answer, kind=kind)
    if job.stream:
        return StreamReply(pump=partial(_stream, job, services, ChatStream(head, settings.switches)), surface="openai")
    whole = ChatWhole(head, settings.switches)
    await services.pipeline.whole(job, take=whole.feed)
    return Reply(body=await asyncio.to_thread(whole.body) if whole.is_large else whole.body())


async def _stream(job: Job, services: Services, stream: ChatStream, write: Write) -> bytes:
    return await services.pipeline.stream(job, renderer=stream, write=write) + stream.end()
