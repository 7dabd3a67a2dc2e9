"""How much a training run writes, known before the model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .processes import by_deepspeed

EMBEDDED_BYTES = 540_000_000
"""The embedded model's weights in float32."""

COPIES = 10
"""Copies of the weights on the disk at the fullest moment: two checkpoints of GRPO with Adam's two moments (2 x 3),
the model kept after the warm start and after GRPO, the final model, and the one being written."""

_FLOAT32 = 4
_WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


DEEPSPEED_COPIES = 4
"""More under DeepSpeed: two checkpoints, each with the engine's weights and the optimiser's beside the model's."""

LORA_COPIES = 4
"""The model after the warm start and after GRPO, the final one, and the one being written; checkpoints of adapters are
small beside them."""


def bytes_still_needed(model: str | Path | None, folder: Path, *, lora: bool = False) -> int:
    """What a run of `model` will write into `folder` beyond what is there; 0 for a model that is not on this disk."""
    wanted = (LORA_COPIES if lora else COPIES + DEEPSPEED_COPIES * by_deepspeed()) * weight_bytes(model)
    if not wanted or not folder.is_dir():
        return wanted
    written = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return max(0, wanted - written)


def weight_bytes(model: str | Path | None) -> int:
    """The weights in float32, in which they are trained; 0 where the model is not on this disk."""
    if model is None:
        return EMBEDDED_BYTES
    folder = Path(model).expanduser()
    found = folder if folder.is_dir() else _downloaded(str(model))
    if found is None:
        return 0
    # A folder may hold the weights in both formats, of which one is loaded.
    stored = max(sum(file.stat().st_size for file in found.glob(kind)) for kind in ("*.safetensors", "*.bin"))
    return stored * _FLOAT32 // _WIDTHS.get(_stored_type(found), _FLOAT32)


def _downloaded(name: str) -> Path | None:
    """The folder of a model from the hub that is on this machine already."""
    from transformers.utils import cached_file

    try:
        config = cached_file(name, "config.json", local_files_only=True)
    except OSError:  # not here, or no name of the hub; loading it will download it or say so
        return None
    return Path(config).parent if config is not None else None


def _stored_type(folder: Path) -> str:
    try:
        config: Any = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):  # loading it will say so
        return ""
    return str(config.get("dtype") or config.get("torch_dtype") or "") if isinstance(config, dict) else ""
