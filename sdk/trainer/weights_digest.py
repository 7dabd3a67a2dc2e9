"""The digest of the weights in training: that which `sdk.evidence.weight_digests` computes of their files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from ..evidence.weight_digests import Tensor, tensors_digest

_THREADS = min(4, os.cpu_count() or 1)
_DTYPES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"},
    **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"},
    **{torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"},
}


def weights_digest(model: Any) -> dict[str, Any]:
    """`of` ("weights", or "adapter" where only an adapter is trained), `sha256`, and how many `tensors` and `bytes`.

    Every tensor is hashed, one beside the other, in threads. The model must not change meanwhile.
    """
    adapter = isinstance(model, PeftModel)
    state = get_peft_model_state_dict(model, save_embedding_layers=False) if adapter else _as_saved(model)
    with ThreadPoolExecutor(_THREADS) as threads:
        tensors = list(threads.map(_tensor, state.items()))
    return {
        "of": "adapter" if adapter else "weights",
        "sha256": tensors_digest(tensors),
        "tensors": len(tensors),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in state.values()),
    }


def _as_saved(model: Any) -> Mapping[str, torch.Tensor]:
    """By the names in a saved file: without heads that are tied to the embedding, as transformers writes them."""
    state = remove_tied_weights_from_state_dict(dict(model.state_dict()), model)
    saved: Mapping[str, torch.Tensor] = revert_weight_conversion(model, state)
    return saved


def _tensor(item: tuple[str, torch.Tensor]) -> Tensor:
    name, tensor = item
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return name, _DTYPES[tensor.dtype], tuple(tensor.shape), hashlib.sha256(memoryview(flat.numpy())).hexdigest()
