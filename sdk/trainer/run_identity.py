"""The identity of a training run: what distinguishes it from other runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from mcp_bridge import Handlers, Toolset
from mcp_bridge.errors import kind_of

from ..errors import ConfigError
from ..judging.verdicts import audit_call
from ..policies.model_source import require_place_of
from ..policies.models.loading import folder_here
from ..policies.vllm.vllm_options import VllmOptions
from ..records import Task
from ..traces.identity import fingerprint, handlers_identity, plain_config, tasks_identity, tools_identity
from ..traces.run_folder import RunFolder
from ..verifiers import VerifierLike, verifier_identity
from .auditor import AUDIT
from .config import TrainConfig
from .groups import STAGE
from .processes import by_deepspeed, mixed_precision

# ---------------------------------------------------------------------------------------------------------------------
# How much a training run writes, known before the model is loaded.

EMBEDDED_BYTES = 540_000_000
"""The embedded model's weights in float32."""

CHECKPOINT_COPIES = 3
"""Copies of the weights' size in a checkpoint of GRPO: the weights and Adam's two moments."""

KEPT_COPIES = 2
"""Beside the checkpoints: the model kept after GRPO, and the final one. One more after the warm start, and two where
one is chosen on validation tasks: the untrained and the chosen one."""

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
    if _only_reports(folder, config):
        return 0
    written = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return max(0, wanted - written)


def _only_reports(folder: Path, config: TrainConfig) -> bool:
    """Whether the run there is finished, and not to be trained longer: it has removed the checkpoints that it needed
    room for, and writes none again."""
    if not (folder / "run.json").is_file():
        return False
    with RunFolder.open_to_read(folder) as run:
        made = (run.stage(STAGE) or {"steps": 0})["steps"]
        return run.stage("report") is not None and run.model_dir.is_dir() and made >= config.grpo.max_steps


def _copies(config: TrainConfig) -> int:
    """Copies of the weights on the disk at the fullest moment."""
    chooses = bool(config.evaluation.validation)
    kept = KEPT_COPIES + (config.warm_start.max_steps != 0) + 2 * chooses
    if config.lora.r:
        return kept  # checkpoints of adapters are small beside them
    each = CHECKPOINT_COPIES + DEEPSPEED_COPIES * by_deepspeed() + (config.grpo.beta > 0)  # the reference
    most = LATEST_KEPT + MOST_CANDIDATES * chooses
    written = min(ceil(config.grpo.max_steps / config.grpo.save_steps), most + 1) if chooses else 0
    moments = 2 * config.batching.offload_optimizer
    return moments + max((LATEST_KEPT + 1) * each + 1 + chooses, max(LATEST_KEPT, written) * each + kept)


def candidate_steps(config: TrainConfig) -> int:
    """After every so many steps there is a checkpoint that is kept to choose from."""
    checkpoints = ceil(config.grpo.max_steps / config.grpo.save_steps)
    return config.grpo.save_steps * max(1, ceil((checkpoints - 1) / MOST_CANDIDATES))


def weight_bytes(model: str | Path | None) -> int:
    """The weights in float32, in which they are trained; 0 where the model is not on this disk."""
    if model is None:
        return EMBEDDED_BYTES
    found = folder_here(model)
    if found is None:
        return 0
    # A folder may hold the weights in both formats, of which one is loaded.
    stored = max(sum(file.stat().st_size for file in found.glob(kind)) for kind in ("*.safetensors", "*.bin"))
    return stored * _FLOAT32 // _WIDTHS.get(_stored_type(found), _FLOAT32)


def _stored_type(folder: Path) -> str:
    try:
        config: Any = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):  # loading it raises an error
        return ""
    return str(config.get("dtype") or config.get("torch_dtype") or "") if isinstance(config, dict) else ""


# ---------------------------------------------------------------------------------------------------------------------

_WHERE_VLLM_IS = VllmOptions.model_fields.keys() - {"publish", "in_flight"}
"""A run may go on with other servers. Their environment may hold keys, which belong into no file."""
_MEMORY_ALONE = {"gradient_checkpointing", "offload_optimizer"}
"""The steps are the same with and without them: a run that memory did not suffice for may go on with them."""
_RUNS = Path("runs")
_NAME_LENGTH = 12
"""Characters of a fingerprint that name a folder."""


def check_model_name(model: Any) -> None:
    """Raises `ConfigError` for a model that cannot be trained, and `ModelError` for a path that leads nowhere. Of other
    values the error shows none: a key may be among them."""
    if model is not None and not isinstance(model, str | Path):
        raise ConfigError(
            f"model is {kind_of(model)}; to train, give a folder, a hub name or None for the embedded model "
            "(an endpoint can only be evaluated)"
        )
    require_place_of(model)


def train_identity(
    options: TrainConfig,
    *,
    model: str | Path | None,
    verifier: VerifierLike,
    train: Sequence[Task],
    heldout: Sequence[Task],
    tools: Toolset,
    validation: Sequence[Task] = (),
    handlers: Handlers | None = None,
) -> dict[str, Any]:
    """The config of a training run's folder."""
    audits = {"verifiers": {AUDIT: verifier_identity(audit_call())}} if options.audits.per_step else {}
    chooses = {"validation_tasks": tasks_identity(validation)} if validation else {}
    return {
        "train": _stored(options),
        "mixed_precision": mixed_precision(options),
        "model": str(model) if model is not None else None,
        "verifier": verifier_identity(verifier),
        **audits,
        "tools": tools_identity(tools.specs, tools.tools),
        "train_tasks": tasks_identity(train),
        "heldout_tasks": tasks_identity(heldout),
        **chooses,
        **handlers_identity(handlers),
    }


def run_folder_path(output_dir: str | Path | None, identity: dict[str, Any]) -> Path:
    """`output_dir`; where it is None `runs/<fingerprint>`."""
    return Path(output_dir) if output_dir is not None else _RUNS / fingerprint(plain_config(identity))[:_NAME_LENGTH]


def _stored(options: TrainConfig) -> dict[str, Any]:
    return options.model_dump(mode="json", exclude={"vllm": _WHERE_VLLM_IS, "batching": _MEMORY_ALONE})
