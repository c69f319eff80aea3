"""Parameters that are known and not built: asking for one answers 501 with its name, instead of an answer that ignores it."""

from smg.errors import Unimplemented

__all__ = ["refuse_unbuilt"]

# Field → what it would have asked for. A value of null, false, an empty list or an empty object asks for nothing.
UNBUILT = {
    "allowed_token_ids": "limiting the vocabulary",
    "audio": "audio output",
    "bad_words": "bad words",
    "bootstrap_host": "disaggregation set by the client",
    "bootstrap_port": "disaggregation set by the client",
    "bootstrap_room": "disaggregation set by the client",
    "cache_salt": "salted prefix caches",
    "custom_logit_processor": "logit processors",
    "custom_params": "logit processors",
    "data_parallel_rank": "choosing a data-parallel rank",
    "extra_key": "keyed prefix caches",
    "input_embeds": "embeddings as input",
    "kv_transfer_params": "disaggregation set by the client",
    "logits_processors": "logit processors",
    "lora_path": "LoRA adapters",
    "mm_processor_kwargs": "multimodal input",
    "moderation": "moderation",
    "prompt_embeds": "embeddings as input",
    "prompt_logprobs": "prompt_logprobs (use echo with logprobs on /v1/completions)",
    "return_hidden_states": "hidden states",
    "return_token_ids": "token ids in the answer",
    "return_tokens_as_token_ids": "token ids in the answer",
    "session_params": "sessions",
    "stop_regex": "stop patterns",
    "suffix": "text after the completion",
    "thinking_token_budget": "a budget for thinking",
    "truncate_prompt_tokens": "truncating the prompt",
    "use_beam_search": "beam search",
    "vllm_xargs": "engine-specific arguments",
    "web_search_options": "web search",
}


ASKING_WHEN_EMPTY = frozenset({"web_search_options"})


def refuse_unbuilt(request: object) -> None:
    """Raises Unimplemented for the first field that asks for something SMG does not do."""
    for name, what in UNBUILT.items():
        value = getattr(request, name, None)
        if value is None or value is False:
            continue
        if value in ("", [], {}) and name not in ASKING_WHEN_EMPTY:
            continue
        raise Unimplemented(f"{name} is not supported: {what} is not built", param=name)
