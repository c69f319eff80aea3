"""A Kubernetes API server of our own: it keeps pods, answers lists page by page, and tells watchers of changes as the real one does.

Events are numbered as resource versions; those before `forgotten` are gone: who asks for them gets 410. A test can break any of it.
"""

import asyncio
import json
import ssl
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

__all__ = ["FakeApiServer", "pod"]

JsonDict = dict[str, object]


def pod(name: str, ip: str, *, labels: dict[str, str] | None = None, ready: bool = True, **metadata: object) -> JsonDict:
    """A running pod as the API server writes it, with fields that nobody reads here too."""
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": "gpu",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-29T20:00:00Z",
            "labels": labels if labels is not None else {"app": "engine"},
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}}],
            **metadata,
        },
        "spec": {"containers": [{"name": "engine", "image": "engine:1"}], "nodeName": "node-1"},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastProbeTime": None},
                {"type": "Ready", "status": "True" if ready else "False", "lastProbeTime": None},
            ],
        },
    }


class FakeApiServer:
    """Serves on the loopback. `asked`: the query of every request; `fail(query)` may give a status to answer with instead."""

    def __init__(self, *, page: int = 500, context: ssl.SSLContext | None = None) -> None:
        self.pods: dict[str, JsonDict] = {}
        self.asked: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.tokens: list[str] = []
        self.fail: Callable[[dict[str, str]], int | None] = lambda query: None
        self.forgotten = 0
        self.watching = 0
        self.url = ""
        self._page = page
        self._context = context
        self._version = 100
        self._log: list[tuple[int, str, JsonDict]] = []
        self._moved = asyncio.Condition()
        self._cut = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        scheme = "https" if self._context else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()
        await asyncio.gather(*self._tasks)

    async def put(self, *pods: JsonDict) -> None:
        """Adds or changes pods."""
        for one in pods:
            name = str(one["metadata"]["name"])  # type: ignore[index]
            kind = "MODIFIED" if name in self.pods else "ADDED"
            self.pods[name] = one
            await self._tell(kind, one)

    async def delete(self, name: str) -> None:
        await self._tell("DELETED", self.pods.pop(name))

    async def bookmark(self) -> None:
        await self._tell("BOOKMARK", {"kind": "Pod", "metadata": {}})

    async def error(self, code: int) -> None:
        """A watch that fails in the middle."""
        status = {"kind": "Status", "metadata": {}, "status": "Failure", "message": "too old", "reason": "Expired", "code": code}
        await self._tell("ERROR", status)

    async def cut(self) -> None:
        """Ends every watch, in the middle of a line."""
        async with self._moved:
            self._cut += 1
            self._moved.notify_all()

    async def _tell(self, kind: str, what: JsonDict) -> None:
        async with self._moved:
            self._version += 1
            if kind != "ERROR":
                what["metadata"]["resourceVersion"] = str(self._version)  # type: ignore[index]
            self._log.append((self._version, kind, json.loads(json.dumps(what))))
            self._moved.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            target = head.split(" ")[1]
            query = {name: values[-1] for name, values in parse_qs(urlsplit(target).query).items()}
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            self.asked.append(query)
            self.paths.append(urlsplit(target).path)
            self.tokens.append(headers.get("authorization", ""))
            await self._answer(query, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        status = self.fail(query)
        if status is None and "watch" in query and int(query["resourceVersion"]) < self.forgotten:
            status = 410
        if status is not None:
            body = json.dumps({"kind": "Status", "status": "Failure", "code": status, "message": "refused"}).encode()
            writer.write(f"HTTP/1.1 {status} No\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
        elif "watch" in query:
            await self._watch(query, writer)
        else:
            body = json.dumps(self._list(query)).encode()
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()

    def _list(self, query: dict[str, str]) -> JsonDict:
        found = [one for one in self.pods.values() if _matches(one, query["labelSelector"])]
        start = int(query.get("continue", "0"))
        metadata: JsonDict = {"resourceVersion": str(self._version)}
        if start + self._page < len(found):
            metadata |= {"continue": str(start + self._page), "remainingItemCount": len(found) - start - self._page}
        return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": found[start : start + self._page]}

    async def _watch(self, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        seen, cut, since = int(query["resourceVersion"]), self._cut, self._version

        def moved() -> bool:
            return self._version > seen or self._cut > cut

        self.watching += 1
        try:
            while True:
                upto = self._version
                news = [entry for entry in self._log if entry[0] > seen and self._concerns(entry[1], entry[2], query)]
                for version, kind, what in news:
                    if kind == "ERROR" and version <= since:  # told once
                        continue
                    line = json.dumps({"type": kind, "object": what}).encode() + b"\n"
                    for part in (line[: len(line) // 2], line[len(line) // 2 :]):  # events do not keep to the bounds of chunks
                        writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                        await writer.drain()
                seen = upto
                if self._cut > cut:
                    writer.write(b'a\r\n{"type":"A\r\n')
                    return
                async with self._moved:
                    await self._moved.wait_for(moved)
        finally:
            self.watching -= 1

    @staticmethod
    def _concerns(kind: str, what: JsonDict, query: dict[str, str]) -> bool:
        return kind in ("BOOKMARK", "ERROR") or _matches(what, query["labelSelector"])


def _matches(one: JsonDict, selector: str) -> bool:
    labels = one["metadata"].get("labels") or {}  # type: ignore[attr-defined]
    return all(labels.get(key) == value for key, value in (entry.split("=") for entry in selector.split(",")))
