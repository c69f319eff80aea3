"""Field tables of the Generate messages, for the native decoder: a protocol's descriptor in, the table's plain data out.

What a field means is told by its name; everything else is skipped, as protobuf does with unknown fields. The reference is each driver's
`decode`: a test feeds both.
"""

from google.protobuf.descriptor import Descriptor

__all__ = ["MEANINGS", "field_table"]

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
