"""A model as a GGUF file, for llama.cpp: its weights as they were saved, its tokenizer, template and sampling."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mcp_bridge.extras import require_extra

from ..errors import ModelError
from ..policies.protocol import Sampling

ARCHITECTURES = ("LlamaForCausalLM",)

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}
_SPLITS: dict[str, list[dict[str, Any]]] = {"gpt-2": [_BYTES], "smollm": [_DIGITS, _BYTES]}
"""llama.cpp's name of a rule that splits text into words, and the rule in a `tokenizer.json`."""


def write_gguf(folder: Path, file: Path, *, name: str, sampling: Sampling, template: str) -> None:
    """Write the model in `folder` to `file`. Raises `ModelError` for a model of a kind that is not written yet, which
    names what is."""
    require_extra("quickstart", "a GGUF file", ModelError)
    config = json.loads((folder / "config.json").read_text())
    if problem := _unwritten(config):
        raise ModelError(
            f"{name!r} cannot be written as a GGUF file: {problem}. Written are {', '.join(ARCHITECTURES)} with rotary "
            "positions that are not scaled and without biases; for others use convert_hf_to_gguf.py of llama.cpp with "
            "the folder of --to vllm"
        )
    import gguf

    writer = gguf.GGUFWriter(file, "llama", use_temp_file=True)
    try:
        heads, width = config["num_attention_heads"], config["hidden_size"]
        kv_heads = config.get("num_key_value_heads") or heads
        head_width = config.get("head_dim") or width // heads
        rope = config.get("rope_parameters") or {}
        writer.add_name(name)
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(width)
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(heads)
        writer.add_head_count_kv(kv_heads)
        writer.add_key_length(head_width)
        writer.add_value_length(head_width)
        writer.add_rope_dimension_count(head_width)
        writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta", 10000.0))
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_vocab_size(config["vocab_size"])
        writer.add_sampling_temp(sampling.temperature)
        writer.add_sampling_top_p(sampling.top_p)
        _add_tokenizer(writer, folder, config, name)
        writer.add_chat_template(template)
        _add_weights(writer, folder, config["num_hidden_layers"], heads=heads, kv_heads=kv_heads)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _unwritten(config: dict[str, Any]) -> str | None:
    architecture = (config.get("architectures") or ["unknown"])[0]
    if architecture not in ARCHITECTURES:
        return f"its architecture is {architecture}"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
        return f"its rotary positions are scaled ({kind})"
    biased = [name for name in ("attention_bias", "mlp_bias") if config.get(name)]
    return f"it has biases ({biased[0]})" if biased else None


def _add_tokenizer(writer: Any, folder: Path, config: dict[str, Any], name: str) -> None:
    import gguf
    from transformers import AutoTokenizer

    written = json.loads((folder / "tokenizer.json").read_text())
    model = written["model"]
    splitter = written["pre_tokenizer"] or {}
    rules = [
        {key: value for key, value in rule.items() if key != "trim_offsets"}
        for rule in splitter.get("pretokenizers", [splitter])
    ]
    known = next((word for word, wanted in _SPLITS.items() if wanted == rules), None)
    if model["type"] != "BPE" or model.get("ignore_merges") or written["normalizer"] is not None or known is None:
        kind = f"{model['type']}, words by {', '.join(rule.get('type', 'nothing') for rule in rules)}"
        raise ModelError(
            f"{name!r} cannot be written as a GGUF file: its tokenizer ({kind}) is none of those written yet, "
            f"byte-level BPE with the words of {' or '.join(_SPLITS)}; use convert_hf_to_gguf.py of llama.cpp with the "
            "folder of --to vllm"
        )
    tokens = [f"[PAD{number}]" for number in range(config["vocab_size"])]
    kinds = [gguf.TokenType.UNUSED] * len(tokens)
    for token, number in model["vocab"].items():
        tokens[number], kinds[number] = token, gguf.TokenType.NORMAL
    for added in written["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(known)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for add, number in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if number is not None:
            add(number)
    writer.add_add_bos_token(tokenizer("a").input_ids[0] == tokenizer.bos_token_id)
    writer.add_add_space_prefix(False)


def _add_weights(writer: Any, folder: Path, layers: int, *, heads: int, kv_heads: int) -> None:
    """Matrices in their own numbers, vectors in float32, which llama.cpp wants."""
    import gguf

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    kinds = {"float32": gguf.GGMLQuantizationType.F32, "float16": gguf.GGMLQuantizationType.F16}
    for name, tensor in _tensors(folder):
        kind = str(tensor.dtype).removeprefix("torch.")
        written = names.get_name(name, try_suffixes=(".weight",))
        if written is None:
            raise ModelError(f"the weight {name} has no place in a GGUF file of a Llama model; save the model again")
        values = tensor.float().numpy()
        if name.endswith("q_proj.weight"):
            values = _turned(values, heads)
        elif name.endswith("k_proj.weight"):
            values = _turned(values, kv_heads)
        wanted = kinds.get(kind, gguf.GGMLQuantizationType.BF16) if values.ndim > 1 else kinds["float32"]
        writer.add_tensor(written, gguf.quantize(values, wanted), raw_dtype=wanted)


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is not a mapping
                yield name, weights.get_tensor(name)


def _turned(weight: Any, heads: int) -> Any:
    """Rows in the order of llama.cpp's rotary positions: pairs beside each other, where transformers has two halves."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
