"""Fields that chat completions and completions share: OpenAI's own and those that vLLM and SGLang added.

Sources: OpenAI API reference (chat/create, completions/create); vLLM `entrypoints/openai` protocol; SGLang
`srt/entrypoints/openai/protocol.py`. A field that is absent and one that is `null` mean the same everywhere, so None stands for both.
Fields unknown to all three are ignored.
"""

from typing import TypeAlias

from msgspec import Struct

__all__ = ["GenerationFields", "JsonSchemaFormat", "RawObject", "ResponseFormat", "SchemaSpec", "StreamOptions", "StructuredOutputs"]

# msgspec cannot resolve the recursive alias of smg.types.json; `object` means any JSON value here.
RawObject: TypeAlias = dict[str, object]


class StreamOptions(Struct, frozen=True, kw_only=True):
    """`include_obfuscation` is accepted and does nothing; `continuous_usage_stats` is vLLM's: usage in every chunk."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class SchemaSpec(Struct, frozen=True, kw_only=True):
    """`response_format.json_schema`."""

    name: str | None = None
    description: str | None = None
    schema: RawObject | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, frozen=True, kw_only=True):
    """`response_format`; `type` decides which of the other fields counts. `structures`/`triggers`/`format` belong to structural_tag."""

    type: str
    json_schema: SchemaSpec | None = None
    structures: list[RawObject] | None = None
    triggers: list[str] | None = None
    format: RawObject | None = None


ResponseFormat: TypeAlias = JsonSchemaFormat


class StructuredOutputs(Struct, frozen=True, kw_only=True):
    """vLLM's `structured_outputs`; one of its constraints may be given."""

    json: str | RawObject | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None


class GenerationFields(Struct, frozen=True, kw_only=True):
    """What both generating endpoints take."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # sampling, OpenAI
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    # sampling, engines
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    # constraints
    response_format: ResponseFormat | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: str | RawObject | None = None
    structural_tag: str | RawObject | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | RawObject | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    # identity and routing
    rid: str | None = None
    request_id: str | None = None
    priority: int | None = None
    user: str | None = None
    # not built; refused when they ask for something, see smg.api.openai.refusals
    allowed_token_ids: object = None
    bad_words: object = None
    bootstrap_host: object = None
    bootstrap_port: object = None
    bootstrap_room: object = None
    cache_salt: object = None
    custom_logit_processor: object = None
    custom_params: object = None
    data_parallel_rank: object = None
    extra_key: object = None
    input_embeds: object = None
    kv_transfer_params: object = None
    logits_processors: object = None
    lora_path: object = None
    mm_processor_kwargs: object = None
    prompt_embeds: object = None
    prompt_logprobs: object = None
    return_hidden_states: object = None
    return_token_ids: object = None
    return_tokens_as_token_ids: object = None
    session_params: object = None
    stop_regex: object = None
    thinking_token_budget: object = None
    truncate_prompt_tokens: object = None
    use_beam_search: object = None
    vllm_xargs: object = None
