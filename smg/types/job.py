"""The neutral inner language on the way in: every surface parses its request into a `Job`; the pipeline knows nothing else."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from smg.types.json import JsonObject

__all__ = [
    "TARGET_HEADER",
    "ChatInput",
    "Constraint",
    "Content",
    "Job",
    "Logprobs",
    "Routing",
    "Sampling",
    "Stops",
    "TextInput",
    "TokenInput",
]

TARGET_HEADER = "x-smg-target-worker"

# Bytes that say as much as an input, in two parts, and are equal only where the inputs are equal.
Content: TypeAlias = tuple[bytes, bytes]

ConstraintKind: TypeAlias = Literal["json_object", "json_schema", "regex", "grammar", "structural_tag", "choice"]


class ChatInput(Struct, frozen=True, kw_only=True):
    """Messages to be rendered by the model's chat template. Objects are the client's own, checked at the border and kept whole."""

    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | str = "auto"  # any other text: the name of the one tool to call
    parallel_tool_calls: bool = True
    documents: tuple[JsonObject, ...] = ()
    template_kwargs: JsonObject = {}
    chat_template: str | None = None  # template text or the name of one of the model's named templates
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    separate_reasoning: bool = True
    stream_reasoning: bool = True


class TextInput(Struct, frozen=True, kw_only=True):
    """A prompt to be tokenized as it is."""

    text: str
    add_special_tokens: bool = True


class TokenInput(Struct, frozen=True, kw_only=True):
    """A prompt that is already token ids."""

    ids: tuple[int, ...]


class Sampling(Struct, frozen=True, kw_only=True):
    """Sampling parameters; UNSET where the client said nothing, so that the model's own defaults can fill in."""

    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET  # -1 = off
    min_p: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    logit_bias: Mapping[int, float] = {}
    max_tokens: int | UnsetType = UNSET
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1


class Stops(Struct, frozen=True, kw_only=True):
    """Where the output ends besides EOS."""

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    include_in_output: bool = False


class Logprobs(Struct, frozen=True, kw_only=True):
    """Which log probabilities are wanted: `top` alternatives a token (0 = the token alone); None = none."""

    output: int | None = None
    prompt: int | None = None


class Constraint(Struct, frozen=True, kw_only=True):
    """A grammar that the engine holds the output to. `value`: schema, pattern, EBNF or tag JSON; for `choice` a JSON list of texts.

    `param`: the client's parameter that asked for it, where that is not the one usual for the kind.
    """

    kind: ConstraintKind
    value: str = ""
    param: str = ""


class Routing(Struct, frozen=True, kw_only=True):
    """What the client or the operator's proxy says about where the request should go."""

    target_worker: str | None = None
    key: str | None = None
    user: str | None = None
    priority: int = 0


class Job(Struct, frozen=True, kw_only=True):
    """One generation, as any surface asks for it. `deadline_s` is on the clock of `time.monotonic`.

    `content` says as much as `input`; None where a surface has no such bytes.
    """

    request_id: str
    surface: str
    model: str
    input: ChatInput | TextInput | TokenInput
    sampling: Sampling = Sampling()
    stops: Stops = Stops()
    logprobs: Logprobs = Logprobs()
    constraint: Constraint | None = None
    routing: Routing = Routing()
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    stream: bool = False
    deadline_s: float = float("inf")
    content: Content | None = None
