"""Whatever JSON comes in, a handler answers or raises an SmgError in our own words: no other exception, no library's text."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from smg.api.openai.chat import chat_completions
from smg.api.openai.completions import completions
from smg.api.tokenize import detokenize, tokenize
from smg.errors import SmgError
from smg.types.openai.chat import ChatRequest
from smg.types.openai.completions import CompletionRequest
from smg.types.openai.tokenize import DetokenizeRequest, TokenizeRequest
from tests.api.fake import call

scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=5))
values = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3))
)
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "x"])
parts = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "x"])}, optional={"text": values})
contents = st.one_of(values, st.lists(parts, max_size=2))
calls = st.fixed_dictionaries({}, optional={"function": st.fixed_dictionaries({}, optional={"name": values, "arguments": values})})
messages = st.fixed_dictionaries({}, optional={"role": roles, "content": contents, "tool_calls": st.lists(calls, max_size=2)})
HANDLERS = {chat_completions: ChatRequest, completions: CompletionRequest, tokenize: TokenizeRequest, detokenize: DetokenizeRequest}
SANE = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "tokens": [1]}


@st.composite
def requests(draw):
    handler = draw(st.sampled_from(list(HANDLERS)))
    names = [field.name for field in msgspec.structs.fields(HANDLERS[handler])]
    body = {name: value for name, value in SANE.items() if name in names and not (handler is tokenize and name == "prompt")}
    body |= draw(st.dictionaries(st.sampled_from(names), values, max_size=3))
    if "messages" in names and draw(st.booleans()):
        body["messages"] = draw(st.lists(messages, max_size=3))
    return handler, body


def outcome(handler, body):
    """The error that a handler raised on purpose, or None."""
    try:
        call(handler, body)
    except SmgError as error:
        return error
    return None


@given(requests())
def test_any_request(made):
    error = outcome(*made)
    if error is not None:
        assert error.status in (400, 404, 501)
        assert error.message
        assert not any(word in error.message for word in ("Expected", "`", "$", "msgspec", "<class", "0x"))
