"""toolbake: turn your own tools into a model's skills.

`train`, `evaluate` and `rollout` have async twins (`train_async`, ...), which are the real ones; `serve` starts an
OpenAI-compatible endpoint. Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agents import AgentEndpoint
    from .blocking import certify, check_tasks, distill, evaluate, rollout, solve, synthesize, train
    from .certification import certify_async
    from .distillation import DistilledData, distill_async
    from .errors import ConfigError, ModelError, RunFolderError, ToolbakeError, VerifierError
    from .evaluation.evaluation_run import evaluate_async, rollout_async
    from .evaluation.report import Report
    from .probing.certificate import Certificate
    from .records import Fact, Message, Rollout, Task, ToolCall, User, Verdict
    from .rollouts.limits import Limits
    from .serving import serve
    from .synthesis.held_back import HeldBackTasks, hold_back
    from .synthesis.solution import solve_async
    from .synthesis.synthesis_run import SynthesizedTasks, synthesize_async
    from .synthesis.task_checks import CheckedTasks, check_tasks_async
    from .trainer.config import TrainConfig
    from .trainer.pipeline import TrainResult, train_async

__all__ = [
    "AgentEndpoint",
    "Certificate",
    "CheckedTasks",
    "ConfigError",
    "DistilledData",
    "Fact",
    "HeldBackTasks",
    "Limits",
    "Message",
    "ModelError",
    "Report",
    "Rollout",
    "RunFolderError",
    "SynthesizedTasks",
    "Task",
    "ToolCall",
    "ToolbakeError",
    "TrainConfig",
    "TrainResult",
    "User",
    "Verdict",
    "VerifierError",
    "certify",
    "certify_async",
    "check_tasks",
    "check_tasks_async",
    "distill",
    "distill_async",
    "evaluate",
    "evaluate_async",
    "hold_back",
    "rollout",
    "rollout_async",
    "serve",
    "solve",
    "solve_async",
    "synthesize",
    "synthesize_async",
    "train",
    "train_async",
]

_HOMES = {
    **dict.fromkeys(("train", "evaluate", "rollout", "certify", "distill"), ".blocking"),
    **dict.fromkeys(("solve", "synthesize", "check_tasks"), ".blocking"),
    **dict.fromkeys(("ConfigError", "ModelError", "RunFolderError", "ToolbakeError", "VerifierError"), ".errors"),
    **dict.fromkeys(("Fact", "Message", "Rollout", "Task", "ToolCall", "User", "Verdict"), ".records"),
    **dict.fromkeys(("TrainResult", "train_async"), ".trainer.pipeline"),
    **dict.fromkeys(("evaluate_async", "rollout_async"), ".evaluation.evaluation_run"),
    **dict.fromkeys(("DistilledData", "distill_async"), ".distillation"),
    "Certificate": ".probing.certificate",
    "certify_async": ".certification",
    "AgentEndpoint": ".agents",
    "Limits": ".rollouts.limits",
    "Report": ".evaluation.report",
    "TrainConfig": ".trainer.config",
    "serve": ".serving",
    **dict.fromkeys(("CheckedTasks", "check_tasks_async"), ".synthesis.task_checks"),
    **dict.fromkeys(("HeldBackTasks", "hold_back"), ".synthesis.held_back"),
    "solve_async": ".synthesis.solution",
    **dict.fromkeys(("SynthesizedTasks", "synthesize_async"), ".synthesis.synthesis_run"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sdk' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
