"""Every parameter of a request, as it arrives at an engine of each protocol: honoured, or refused by name."""

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from smg.sim.processes import Child, free_port, gateway_command, sim_command, wait_http
from tests.e2e.conftest import PROTOCOLS, SIM_FLAGS
from tests.e2e.fleet import TAG, Fleet
from tests.e2e.recorder import Recorder, recorder

CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/v1/tokenize"
IDS = {"trtllm": "input_token_ids"}
SAMPLING = {"trtllm": "sampling_config"}
SHARED = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "frequency_penalty": 0.25,
    "presence_penalty": -0.5,
}
# Parameter → its name at the engine, where the protocol has it at all.
NAMES: dict[str, dict[str, str]] = {
    "vllm": {"max_tokens": "max_tokens", "min_tokens": "min_tokens", "n": "n", "seed": "seed", "logit_bias": "logit_bias"},
    "sglang": {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "n": "n", "logit_bias": "logit_bias"},
    "trtllm": {"max_tokens": "max_tokens", "min_tokens": "min_tokens", "n": "num_return_sequences", "seed": "seed"},
    "mlx": {"max_tokens": "max_tokens", "seed": "seed", "logit_bias": "logit_bias"},
    "tokenspeed": {
        "max_tokens": "max_new_tokens",
        "min_tokens": "min_new_tokens",
        "n": "n",
        "seed": "sampling_seed",
        "logit_bias": "logit_bias",
    },
}
VALUES: dict[str, Any] = {"max_tokens": 9, "min_tokens": 2, "n": 2, "seed": 12345, "logit_bias": {"5": 3, "7": -100}}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class Watched:
    """A gateway whose engine is behind a recorder."""

    def __init__(self, protocol: str, http: httpx.Client, engine: Recorder) -> None:
        self.protocol, self.http, self.engine = protocol, http, engine
        self.model = http.get("/v1/models").json()["data"][0]["id"]

    def chat(self, *, text: str = "Hi", **fields: Any) -> dict[str, Any]:
        """Gives what the engine got for a chat, sampling parameters and all on one level."""
        self.http.post(CHAT, json=self.body(text, **fields)).raise_for_status()
        return self.taken()

    def body(self, text: str, **fields: Any) -> dict[str, Any]:
        return {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": 2, **fields}

    def taken(self) -> dict[str, Any]:
        [request] = self.engine.taken()
        return {**request, **request.get("output_config", {}), **request[SAMPLING.get(self.protocol, "sampling_params")]}

    def ids(self, request: dict[str, Any]) -> list[int]:
        ids: list[int] = request["tokenized"][IDS.get(self.protocol, "input_ids")]
        return ids


@pytest.fixture(scope="module", params=PROTOCOLS)
def watched(request: pytest.FixtureRequest, module_fleet: Fleet) -> Iterator[Watched]:
    protocol, tagged, port = request.param, {TAG: module_fleet.tag}, free_port()
    command = sim_command(protocol=protocol, flags=("--status-port", "0", "--speed", "0", *SIM_FLAGS))
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(Child(protocol, command=command, environment=tagged))
        engine = stack.enter_context(recorder(protocol, child.wait_ready(within_s=30)))
        command = gateway_command(port=port, engines=[engine.url], flags=("--workers", "1"))
        gateway = stack.enter_context(Child("gateway", command=command, environment=tagged))
        wait_http(gateway, url=f"http://127.0.0.1:{port}/readiness", within_s=30)
        yield Watched(protocol, stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False)), engine)


def test_sampling(watched: Watched) -> None:
    got = watched.chat(**SHARED)
    assert {name: pytest.approx(got[name]) for name in SHARED} == SHARED


@pytest.mark.parametrize("name", VALUES)
def test_parameter_is_passed_on_or_refused(watched: Watched, name: str) -> None:
    fields = {"temperature": 0.5, "max_tokens": 9, name: VALUES[name]}
    known = NAMES[watched.protocol].get(name)
    if known is None and name != "seed":  # a seed is a wish, by OpenAI's reference
        reply = watched.http.post(CHAT, json=watched.body("Hi", **fields))
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == name
        assert watched.protocol in reply.json()["error"]["message"]
        assert not watched.engine.taken()
        return
    got = watched.chat(**fields)
    if known is not None:
        value = got[known]
        assert (int(value) if isinstance(value, str) else value) == VALUES[name]


def test_stops(watched: Watched) -> None:
    eos = watched.chat()["stop_token_ids"]
    assert watched.chat(stop_token_ids=[11, 12])["stop_token_ids"] == [11, 12, *eos]
    ignored = watched.chat(stop_token_ids=[11], ignore_eos=True)
    assert ignored["ignore_eos"] is True
    assert ignored["stop_token_ids"] == [11]
    assert "stop" not in watched.chat(stop=["zzz"]), "stop strings are matched here, alike for all engines"


@pytest.mark.parametrize("count", [0, 3])
def test_logprobs(watched: Watched, count: int) -> None:
    got = watched.chat(logprobs=True, top_logprobs=count)
    names = {"sglang": "top_logprobs_num", "tokenspeed": "top_logprobs_num"}
    least = 1 if watched.protocol == "mlx" else 0
    assert got.get(names.get(watched.protocol, "logprobs"), 0) == max(count, least)
    if watched.protocol in names:
        assert got["return_logprob"] is True


CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Grüße <|im_end|> 🙂"}]},
    {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    {"messages": [{"role": "user", "content": "Weather in Köln?"}], "tools": [WEATHER]},
    {"messages": [{"role": "user", "content": "Think"}], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [{"role": "user", "content": "Say"}, {"role": "assistant", "content": "I sa"}], "continue_final_message": True},
    {"messages": [{"role": "user", "content": "Say"}], "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": "long " * 3000}]},
]


@pytest.mark.parametrize("number", range(len(CHATS)))
def test_engine_gets_the_ids_that_tokenize_tells(watched: Watched, number: int) -> None:
    fields = CHATS[number]
    told = watched.http.post(TOKENIZE, json={"model": watched.model, **fields}).raise_for_status().json()
    got = watched.chat(**fields)
    assert watched.ids(got) == told["tokens"]
    back = watched.http.post("/v1/detokenize", json={"model": watched.model, "tokens": told["tokens"], "skip_special_tokens": False})
    assert back.json()["text"] == told["prompt"]


def test_template_options_change_the_prompt(watched: Watched) -> None:
    prompts = [watched.ids(watched.chat(**fields)) for fields in CHATS[2:6]]
    assert len({tuple(ids) for ids in prompts}) == len(prompts)
    plain = watched.ids(watched.chat(text="Think"))
    assert plain != watched.ids(watched.chat(text="Think", chat_template_kwargs={"enable_thinking": False}))


@pytest.mark.parametrize("prompt", [[1000, 1001, 1002], [[1000, 1001], [7]], ["Once", "Twice upon"], "Once"])
def test_prompt_forms(watched: Watched, prompt: Any) -> None:
    reply = watched.http.post(COMPLETIONS, json={"model": watched.model, "prompt": prompt, "max_tokens": 2}).raise_for_status().json()
    requests = watched.engine.taken()
    got = sorted(request["tokenized"][IDS.get(watched.protocol, "input_ids")] for request in requests)
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    if isinstance(prompt, str) or isinstance(prompt[0], str):
        told = watched.http.post(TOKENIZE, json={"model": watched.model, "prompt": prompt}).json()["tokens"]
    else:
        told = prompt
    assert got == (sorted(told) if several else [told])
    assert len(reply["choices"]) == len(got)
    assert reply["usage"]["prompt_tokens"] == sum(map(len, got))
