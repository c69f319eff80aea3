"""Fields of the Generate messages, for native code: a protocol's descriptors in, plain numbers out.

What a field means is told by its name; everything else is skipped, as protobuf does with unknown fields. The reference is each driver's
`decode` and `encode`: tests feed both.
"""

from google.protobuf.descriptor import Descriptor, FieldDescriptor

__all__ = ["MEANINGS", "field_table", "request_numbers"]

# Field name → what the native decoder does with it.
MEANINGS = {
    "chunk": "enter",
    "complete": "enter_complete",
    "token_ids": "ids",
    "output_ids": "ids",
    "output_token_ids": "ids",
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "cached_tokens": "cached_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "index": "choice",
    "sequence_index": "choice",
    "finish_reason": "finish",
    "matched_token_id": "matched_id",
    "matched_stop_token_id": "matched_id",
    "matched_stop_str": "matched_text",
}


def field_table(response: Descriptor) -> list[dict[int, tuple[str, int]]]:
    """Gives one dict a message, the response first: field number → (meaning, index of the message it holds, or 0)."""
    messages = [response]
    table: list[dict[int, tuple[str, int]]] = []
    while len(table) < len(messages):
        fields: dict[int, tuple[str, int]] = {}
        for field in messages[len(table)].fields:
            meaning = MEANINGS.get(field.name)
            entered = field.message_type if meaning in ("enter", "enter_complete") else None
            if meaning is None or (entered is not None and table) or (entered is None and field.message_type is not None):
                continue
            if entered is not None:
                messages.append(entered)
            fields[field.number] = (meaning, len(messages) - 1 if entered is not None else 0)
        table.append(fields)
    return table


# Part of a request → names that its field may have; `text` and `ids` are within the prompt.
REQUEST_PARTS = {"request_id": ("request_id",), "prompt": ("tokenized",)}
PROMPT_PARTS = {"text": ("original_text",), "ids": ("input_ids", "input_token_ids")}


def request_numbers(request: Descriptor) -> dict[str, int]:
    """Gives the field numbers of a request's id and prompt, and of the prompt's text and ids. ValueError when one is not there."""
    whole = {part: _named(request, names) for part, names in REQUEST_PARTS.items()}
    prompt = whole["prompt"].message_type
    if prompt is None:
        raise ValueError(f"the prompt of {request.full_name} is no message")
    inner = {part: _named(prompt, names) for part, names in PROMPT_PARTS.items()}
    if inner["ids"].type != FieldDescriptor.TYPE_UINT32 or not inner["ids"].is_repeated:
        raise ValueError(f"the token ids of {prompt.full_name} are not repeated uint32")
    return {part: field.number for part, field in (whole | inner).items()}


def _named(message: Descriptor, names: tuple[str, ...]) -> FieldDescriptor:
    for name in names:
        if name in message.fields_by_name:
            return message.fields_by_name[name]
    raise ValueError(f"{message.full_name} has no field {' or '.join(names)}")
