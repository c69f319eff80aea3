"""Models, health, tokenize and detokenize, and the table of routes."""

import asyncio

import msgspec
import pytest

from smg.api.health import health, readiness
from smg.api.models import list_models, retrieve_model
from smg.api.routes import ROUTES, UNBUILT, RouteTable, not_built
from smg.api.tokenize import detokenize, tokenize
from smg.errors import InvalidValue, MethodNotAllowed, ModelNotFound, NoEngine, NotFound, Unimplemented
from smg.worker import EngineState
from tests.api.fake import answer, call, request, services

MODEL = {
    "id": "org/m", "object": "model", "created": 7, "owned_by": "smg", "root": "org/m", "aliases": ["alias"],
    "context_length": 4096, "max_model_len": 4096,
}  # fmt: skip


def test_models():
    assert answer(list_models, b"") == {"object": "list", "data": [MODEL]}


@pytest.mark.parametrize("name", ["org/m", "alias"])
def test_one_model(name):
    data, _ = call(retrieve_model, b"", params={"model": name})
    assert msgspec.json.decode(data) == MODEL


def test_an_unknown_model():
    with pytest.raises(ModelNotFound):
        call(retrieve_model, b"", params={"model": "nope"})


def test_no_model_yet(monkeypatch):
    made = services()
    monkeypatch.setattr(made.models, "cards", list, raising=False)
    with pytest.raises(NoEngine):
        call(list_models, b"", made)


def readiness_of(made):
    reply = asyncio.run(readiness(request(b""), made))
    return reply.status, msgspec.json.decode(reply.body)


def test_readiness():
    made = services()
    made.view.states = {0: EngineState.READY, 1: EngineState.NOT_READY}
    assert readiness_of(made) == (200, {"status": "ready", "healthy_workers": 1, "total_workers": 2})
    made.view.states = {1: EngineState.NOT_READY}
    status, fields = readiness_of(made)
    assert (status, fields["healthy_workers"], fields["reason"]) == (503, 0, "no healthy worker")
    made.view.states = {0: EngineState.READY}
    made.draining = True
    assert readiness_of(made)[0] == 503
    assert asyncio.run(health(request(b""), made)).status == 200


def test_tokenize_a_text():
    assert answer(tokenize, {"model": "m", "prompt": "hé"}) == {"tokens": [104, 195, 169], "count": 3, "char_count": 2}


def test_tokenize_texts():
    assert answer(tokenize, {"prompt": ["a", "bc"]}) == {"tokens": [[97], [98, 99]], "count": [1, 2], "char_count": [1, 2]}


def test_tokenize_messages_gives_the_rendered_prompt():
    tool = {"type": "function", "function": {"name": "f"}}
    made = answer(tokenize, {"messages": [{"role": "user", "content": "x"}], "tools": [tool], "add_generation_prompt": False})
    assert "'role': 'user'" in made["prompt"]
    assert "'name': 'f'" in made["prompt"]
    assert "add_generation_prompt=False" in made["prompt"]
    assert made["count"] == len(made["tokens"])


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": []}, {"prompt": []}, {"messages": []}])
def test_tokenize_mistakes(body):
    with pytest.raises(InvalidValue):
        call(tokenize, body)


def test_detokenize():
    assert answer(detokenize, {"tokens": [104, 105]}) == {"text": "hi"}
    assert answer(detokenize, {"tokens": [[104], [105, 33]]}) == {"text": ["h", "i!"]}
    assert answer(detokenize, {"tokens": []}) == {"text": ""}


@pytest.mark.parametrize("tokens", [[256], [-1], [1, [2]], "x", None])
def test_detokenize_mistakes(tokens):
    with pytest.raises(InvalidValue):
        call(detokenize, {"tokens": tokens})


def test_routes():
    table = RouteTable()
    for route in ROUTES:
        name = route.path.partition("{")[2].rstrip("}")
        found, params = table.find(route.method, route.path.replace(f"{{{name}}}", "org/m"))
        assert found is route
        assert params == ({name: "org/m"} if name else {})
    assert table.find("HEAD", "/health")[0].path == "/health"
    assert table.methods("/health") == ["GET", "HEAD", "OPTIONS"]


def test_paths_that_are_not_built_say_so():
    table = RouteTable()
    for method, path in UNBUILT:
        assert table.find(method, path.replace("{rest}", "x/y"))[0].handler is not_built
    with pytest.raises(Unimplemented):
        call(not_built, b"")


@pytest.mark.parametrize("path", ["/", "/nope", "/v1/models/", "/v1/chat/completions/", "/V1/models", "/health/x"])
def test_other_paths_are_not_found(path):
    with pytest.raises(NotFound):
        RouteTable().find("GET", path)


def test_other_methods_are_not_allowed():
    with pytest.raises(MethodNotAllowed, match="use POST"):
        RouteTable().find("GET", "/v1/chat/completions")


def test_paths_that_manage_the_gateway_are_marked():
    for method, path in (
        ("GET", "/workers"),
        ("POST", "/workers"),
        ("PUT", "/workers/x"),
        ("PATCH", "/workers/x"),
        ("DELETE", "/workers/x"),
    ):
        assert RouteTable().find(method, path)[0].managing
    assert not RouteTable().find("POST", "/v1/chat/completions")[0].managing
