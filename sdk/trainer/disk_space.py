"""How much a training run writes, known before the model is loaded."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

from .config import TrainConfig
from .processes import by_deepspeed

EMBEDDED_BYTES = 540_000_000
"""The embedded model's weights in float32."""

CHECKPOINT_COPIES = 3
"""Copies of the weights' size in a checkpoint of GRPO: the weights and Adam's two moments."""

KEPT_COPIES = 4
"""Beside the checkpoints: the model kept after the warm start, after GRPO and, where it is chosen on validation tasks,
from one of them; and the final one. The untrained one, too, where one is chosen."""

LATEST_KEPT = 2
"""Checkpoints; there is one more while it is written."""

MOST_CANDIDATES = 5
"""Checkpoints, evenly over the run, that are kept beside the latest ones where one is to be chosen."""

DEEPSPEED_COPIES = 2
"""More in a checkpoint under DeepSpeed: the engine's weights and the optimiser's beside the model's."""

_FLOAT32 = 4
_WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def bytes_still_needed(model: str | Path | None, folder: Path, config: TrainConfig) -> int:
    """What a run of `model` will write into `folder` beyond what is there; 0 for a model that is not on this disk."""
    wanted = _copies(config) * weight_bytes(model)
    if not wanted or not folder.is_dir():
        return wanted
    written = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return max(0, wanted - written)


def _copies(config: TrainConfig) -> int:
    """Copies of the weights on the disk at the fullest moment."""
    chooses = bool(config.validation)
    if config.lora_rank:
        return KEPT_COPIES + chooses  # checkpoints of adapters are small beside them
    each = CHECKPOINT_COPIES + DEEPSPEED_COPIES * by_deepspeed() + (config.kl_coefficient > 0)  # the reference
    most = LATEST_KEPT + MOST_CANDIDATES * chooses
    written = min(ceil(config.grpo_steps / config.checkpoint_every), most + 1) if chooses else 0
    return chooses + max((LATEST_KEPT + 1) * each + 1, max(LATEST_KEPT, written) * each + KEPT_COPIES)


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
