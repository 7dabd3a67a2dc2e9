"""What makes a training run this one and no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_bridge.records import Tool
from mcp_bridge.sessions.handlers import Handlers

from ..errors import ConfigError, RunFolderError
from ..policies.vllm.options import VllmOptions
from ..records import Task
from ..traces.digests import handlers_identity, tasks_identity, tools_identity
from ..traces.identity import fingerprint, plain_config, same_run
from ..traces.opening import read_info
from ..verifiers import VerifierLike, verifier_identity
from .auditing import AUDIT, audit_verifier
from .config import TrainConfig
from .processes import mixed_precision

_WHERE_VLLM_IS = VllmOptions.model_fields.keys() - {"publish", "in_flight"}
"""A run may go on with other servers. Their environment may hold keys, which belong into no file."""
_WITHOUT = {"validation": 0, "micro_batches": 1, "learning_rate_rise": 0, "learning_rate_fall": 0}
"""What runs did that knew no such option, where its default is something else."""
_RUNS = Path("runs")
_NAME_LENGTH = 12
"""Characters of a fingerprint that name a folder."""


def check_model_name(model: Any) -> None:
    """Raises `ConfigError` for a model that cannot be trained. The error shows no value: a key may be among them."""
    if model is not None and not isinstance(model, str | Path):
        raise ConfigError(
            f"model is a {type(model).__name__}; to train, give a folder, a hub name or None for the embedded model "
            "(an endpoint can only be evaluated)"
        )


def train_identity(
    options: TrainConfig,
    *,
    model: str | Path | None,
    verifier: VerifierLike,
    train: Sequence[Task],
    heldout: Sequence[Task],
    source: Any,
    tools: Iterable[Tool],
    validation: Sequence[Task] = (),
    handlers: Handlers | None = None,
) -> dict[str, Any]:
    """The config of a training run's folder. `source`: the tools as the user gave them; `tools`: what it has."""
    audits = {"verifiers": {AUDIT: verifier_identity(audit_verifier(options))}} if options.audits_per_step else {}
    chooses = {"validation_tasks": tasks_identity(validation)} if validation else {}
    return {
        "train": _stored(options),
        "mixed_precision": mixed_precision(options),
        "model": str(model) if model is not None else None,
        "verifier": verifier_identity(verifier),
        **audits,
        "tools": tools_identity(source, tools),
        "train_tasks": tasks_identity(train),
        "heldout_tasks": tasks_identity(heldout),
        **chooses,
        **handlers_identity(handlers),
    }


def train_defaults(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What the parts of `identity` are in a folder of an earlier version that lacks them.

    A run that an earlier version began goes on where a later one has more options, as long as nobody sets them to
    something else than that version did; and in the precision that it is launched with now, since none was written
    down.
    """
    return {"train": _stored(TrainConfig()) | _WITHOUT, "mixed_precision": identity["mixed_precision"]}


def run_folder_path(output_dir: str | Path | None, identity: dict[str, Any]) -> Path:
    """`output_dir`; where it is None `runs/<fingerprint>`, or the folder there in which an earlier version, with fewer
    options, began this run."""
    if output_dir is not None:
        return Path(output_dir)
    now = plain_config(identity)
    path = _RUNS / fingerprint(now)[:_NAME_LENGTH]
    if path.exists():
        return path
    for file in sorted(_RUNS.glob(f"{'[0-9a-f]' * _NAME_LENGTH}/run.json")):
        try:
            if same_run(read_info(file.parent), now, train_defaults(now)):
                return file.parent
        except RunFolderError:  # damaged, or a later version's: not ours to judge
            continue
    return path


def _stored(options: TrainConfig) -> dict[str, Any]:
    return options.model_dump(mode="json", exclude={"vllm": _WHERE_VLLM_IS})
