"""What engines say of themselves over HTTP, in the shapes of vLLM, SGLang, llama.cpp and others."""

import asyncio

import pytest

from smg.engine import EngineOptions, EngineRequest, HttpEngine, Load, ModelInfo, ServerInfo, detect, open_engine
from smg.engine.http.address import HttpAddress, read_address
from smg.engine.http.facts import loads_of_metrics, model_info_of, owner_of, ranks_in_metrics, server_info_of, version_of
from smg.errors import ConfigError, EngineError, EngineProtocol, EngineTimeout, EngineUnavailable, Unimplemented
from tests.engine.http.upstream import Asked, answer, upstream

VLLM = b'{"object":"list","data":[{"id":"org/m","root":"/models/m","owned_by":"vllm","max_model_len":4096},{"id":"ada","parent":"org/m"}]}'
LLAMA = b'{"models":[{"name":"x"}],"object":"list","data":[{"id":"m.gguf","owned_by":"llamacpp","meta":{"n_ctx_train":32768}}]}'


def test_models() -> None:
    assert model_info_of(VLLM) == ModelInfo(served_name="org/m", model_path="/models/m", context_length=4096, names=("ada",))
    assert model_info_of(LLAMA) == ModelInfo(served_name="m.gguf")
    assert [owner_of(VLLM), owner_of(LLAMA), owner_of(b'{"data":[{"id":"m"}]}')] == ["vllm", "llamacpp", "openai"]


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"data":[]}', b'{"data":[{"id":5}]}', b'{"data":[{"id":"m","max_model_len":-1}]}']
)
def test_what_is_no_list_of_models(body: bytes) -> None:
    with pytest.raises(EngineProtocol):
        model_info_of(body)


def test_what_is_nested_too_deeply() -> None:
    """It was no fault that anybody expected, and ended the control process."""
    deep = b'"x":' + b"[" * 100_000 + b"]" * 100_000
    for read in (model_info_of, owner_of):
        with pytest.raises(EngineProtocol):
            read(b'{"data":[{"id":"m",' + deep + b"}]}")
    assert version_of(b'{"version":"1",' + deep + b"}") == ""
    assert server_info_of(b'{"version":"1",' + deep + b"}") == ServerInfo()


def test_versions() -> None:
    assert [version_of(b'{"version":"0.11.0"}'), version_of(b"x"), version_of(b'{"version":5}')] == ["0.11.0", "", ""]


def test_loads() -> None:
    vllm = '# HELP x\nvllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{model="m",engine="1"} 2.0\n'
    vllm += 'vllm:num_requests_waiting{engine="0"} 1\nvllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
    first = Load(running=3, waiting=1, used_tokens=250_000, max_tokens=1_000_000)
    assert loads_of_metrics(vllm) == [first, Load(rank=1, running=2, used_tokens=500_000, max_tokens=1_000_000)]
    sglang = "sglang:num_running_reqs 4\nsglang:num_queue_reqs 2\nsglang:token_usage 0.5\nsglang:max_total_num_tokens 1000\n"
    sglang += "sglang:gen_throughput 12.5\n"
    assert loads_of_metrics(sglang) == [Load(running=4, waiting=2, used_tokens=500, max_tokens=1000, generated_per_s=12.5)]
    ranked = 'sglang:num_running_reqs{dp_rank="1",tp_rank="0"} 4\nsglang:num_running_reqs{dp_rank="0",tp_rank="0"} 1\n'
    assert [(load.rank, load.running) for load in loads_of_metrics(ranked)] == [(0, 1), (1, 4)]
    assert loads_of_metrics("llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n") == [
        Load(running=1, waiting=2, used_tokens=0, max_tokens=1_000_000)
    ]
    for text in ("", "process_cpu_seconds 1", "vllm:num_requests_running", "a b c\n\x00"):
        assert loads_of_metrics(text) in ([], [Load(max_tokens=1_000_000)])
    assert loads_of_metrics("vllm:num_requests_running NaN\nvllm:num_requests_waiting 1e300\n") == [Load(max_tokens=1_000_000)]


def test_ranks() -> None:
    def told(*ranks: int) -> int:
        return ranks_in_metrics("".join(f'vllm:num_requests_running{{engine="{rank}"}} 0\n' for rank in ranks))

    assert [told(), told(0), told(1, 0, 3, 2), told(4), told(2, 3)] == [1, 1, 4, 1, 1]
    assert ranks_in_metrics('other{engine="0"} 1\nother{engine="1"} 1\n') == 1
    assert server_info_of(b'{"version":"0.5","dp_size":8,"tp_size":8}') == ServerInfo(version="0.5", data_parallel_size=8)
    ports = {b"8999": 8999, b"0": 0, b"null": 0, b'"a"': 0, b"65536": 0}
    assert [server_info_of(b'{"disaggregation_bootstrap_port":' + port + b"}").bootstrap_port for port in ports] == [*ports.values()]
    assert [server_info_of(body).data_parallel_size for body in (b"{}", b"[", b'{"dp_size":0}', b'{"dp_size":null}')] == [1] * 4


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://a:8000", HttpAddress(host="a", port=8000, tls=False, authority="a:8000")),
        ("https://a", HttpAddress(host="a", port=443, tls=True, authority="a")),
        ("http://[::1]:80/x/", HttpAddress(host="::1", port=80, tls=False, authority="[::1]", prefix="/x")),
    ],
)
def test_addresses(url: str, address: HttpAddress) -> None:
    assert read_address(url) == address


@pytest.mark.parametrize("url", ["http://", "ftp://a", "http://a:b", "http://u:p@a", "http://a?b"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError):
        read_address(url)


def ask(pages: dict[str, bytes], call, runtime: str = "vllm", **options: object):
    """Runs `call(engine)` against an engine with these pages; others are 404."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        said = pages.get(asked.path, answer(b"{}", status="404 Not Found"))
        if not said:
            await asyncio.Event().wait()
        writer.write(said)

    async def scene():
        async with upstream(script) as server:
            engine = open_engine(server.url, runtime=runtime, options=EngineOptions(**options))
            assert isinstance(engine, HttpEngine)
            await engine.start()
            try:
                return await call(engine)
            finally:
                await engine.close()

    return asyncio.run(scene())


def test_an_engine_is_asked() -> None:
    pages = {"/v1/models": answer(VLLM), "/version": answer(b'{"version":"1"}'), "/metrics": answer(b"vllm:num_requests_running 1\n")}
    assert ask(pages, lambda engine: engine.model_info()).names == ("ada",)
    assert ask(pages, lambda engine: detect(engine.url)) == "vllm"
    assert ask(pages, lambda engine: engine.server_info()).version == "1"
    assert ask({}, lambda engine: engine.server_info()).version == ""
    pages["/metrics"] = answer(b'vllm:num_requests_running{engine="0"} 1\nvllm:x{engine="1"} 1\n')
    assert ask(pages, lambda engine: engine.server_info()).data_parallel_size == 2
    for path in ("/server_info", "/get_server_info"):
        page = {path: answer(b'{"dp_size":4}')}
        assert ask(page, lambda engine: engine.server_info(), runtime="sglang").data_parallel_size == 4
    assert ask(pages, lambda engine: engine.loads())[0].running == 1


def test_health() -> None:
    assert ask({"/health": answer(b"")}, lambda engine: engine.health()) is True
    assert ask({"/health": answer(b"", status="503 Service Unavailable")}, lambda engine: engine.health()) is False
    assert ask({"/v1/models": answer(VLLM)}, lambda engine: engine.health()) is True, "one that has no such path"
    assert ask({}, lambda engine: engine.health()) is False
    assert ask({"/up": answer(b"")}, lambda engine: engine.health(), health_path="/up") is True


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (answer(b"{}", status="401 Unauthorized"), EngineError),
        (answer(b"{}", status="500 Internal Server Error"), EngineUnavailable),
        (answer(b"{}", status="404 Not Found"), EngineProtocol),
        (b"", EngineTimeout),
        (answer(b" " * (5 << 20)), EngineProtocol),
    ],
)
def test_engines_that_cannot_be_asked(said: bytes, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        ask({"/v1/models": said}, lambda engine: engine.model_info(), unary_timeout_s=0.3 if not said else 5.0)
    assert type(caught.value) is error


def test_what_is_meant_for_other_engines() -> None:
    async def generate(engine: HttpEngine) -> None:
        async for _ in engine.generate(EngineRequest(request_id="r", prompt_ids=[1]), timeout_s=1):
            pass

    for call in (generate, lambda engine: engine.tokenizer_archive(), lambda engine: engine.loads()):
        with pytest.raises((Unimplemented, EngineProtocol)):
            ask({"/metrics": answer(b"x 1\n")}, call)
