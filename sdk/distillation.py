"""`distill`: verified rollouts of one policy as a supervised data set for another."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from mcp_bridge import Handlers
from mcp_bridge.extras import require_extra
from mcp_bridge.guard import warn_of
from mcp_bridge.records import Tool
from mcp_bridge.safe_text import listed

from .alarms import is_canary
from .connecting import connect
from .errors import ConfigError, RunFolderError, require_number
from .evaluation.conditions import is_success
from .evaluation.measurement import measure
from .evaluation.report import CONDITIONS
from .policies.model_source import (
    ModelSource,
    check_model_source,
    default_strict,
    model_label,
    open_agent,
    weights_identity,
)
from .policies.tool_prompt import shown_tools
from .progress import Progress, Silent
from .records import CUT_OFF, Rollout, Task
from .rollouts.limits import Limits
from .rollouts.run_context import RunContext
from .tasks import load_tasks
from .traces.atomic_files import require_space, require_writable, write_bytes
from .traces.identity import handlers_identity, tasks_identity, tools_identity
from .traces.run_folder import RunFolder
from .users.played_users import open_users
from .verifiers import VerifierLike, check_verifier, verifier_identity

if TYPE_CHECKING:
    from datasets import Dataset

    from mcp_bridge import Toolset


@dataclass
class Selection:
    """The rollouts that were kept, and how many were not, and why."""

    kept: list[Rollout] = field(default_factory=list)
    unscored: int = 0
    not_verified: int = 0
    """Below the threshold, or of a canary task, whose reward nobody can earn honestly."""
    not_json: int = 0
    """Verified, but with text or numbers that JSON has not, and tokenizers and data sets with it: half a surrogate
    pair, or `nan` in the arguments of a call. A model can write both."""
    cut_off: int = 0
    """Verified, but a limit ended them in their last message: it is half, or has calls that nobody made."""
    unread: int = 0
    """Verified, but the model wrote a call that could not be read, and such a call must not be taught."""
    several: int = 0
    """Verified, but led as several conversations, such as those of sub-agents or after a compaction: together they are
    none that anybody had."""
    duplicates: int = 0
    beyond_per_task: int = 0

    @property
    def seen(self) -> int:
        left_out = self.unscored + self.not_verified + self.not_json + self.cut_off
        left_out += self.unread + self.several + self.duplicates + self.beyond_per_task
        return len(self.kept) + left_out


def select(rollouts: Iterable[Rollout], *, threshold: float, per_task: int) -> Selection:
    """Rollouts that reached `threshold`, no two alike, at most `per_task` of one task: the shortest of them.

    Two rollouts are alike when the same was asked, called with the same arguments, and answered.
    """
    selection = Selection()
    by_task: dict[str, dict[str, Rollout]] = {}
    for rollout in rollouts:
        if not rollout.scored or rollout.verdict is None:
            selection.unscored += 1
        elif not is_success(rollout, threshold) or is_canary(rollout):
            selection.not_verified += 1
        elif not _fits_json(rollout):
            selection.not_json += 1
        elif rollout.stop_reason in (*CUT_OFF, "call_limit") and rollout.messages[-1].role == "assistant":
            selection.cut_off += 1
        elif any(call.error is not None for message in rollout.messages for call in message.tool_calls):
            selection.unread += 1
        elif rollout.conversations > 1:
            selection.several += 1
        else:
            distinct = by_task.setdefault(rollout.task.id, {})
            key = content_key(rollout)
            if key in distinct:
                selection.duplicates += 1
            else:
                distinct[key] = rollout
    for distinct in by_task.values():
        shortest = sorted(
            distinct.values(),
            key=lambda rollout: (rollout.turns, sum(len(m.content) for m in rollout.messages if m.role == "assistant")),
        )
        selection.kept += shortest[:per_task]
        selection.beyond_per_task += max(0, len(shortest) - per_task)
    return selection


def content_key(rollout: Rollout) -> str:
    """The same for rollouts that would teach the same: spaces, call ids and tool results do not count."""
    said: list[Any] = []
    for message in rollout.messages:
        if message.role != "tool":
            calls = [[call.name, call.arguments] for call in message.tool_calls]
            said.append([message.role, " ".join(message.content.split()), calls])
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def example(rollout: Rollout, tools: Sequence[Tool], *, licence: str, run: str, number: int = 1) -> dict[str, Any]:
    """One line of the data set: TRL's conversational format, with where it comes from. `number`: of the examples of the
    same task; further ones are tasks of their own, of the same family, when the file is trained on.

    `tools` is JSON text, as TRL reads it: a table of schemas of different shapes would get every field of each. So is
    `task`, by which the example can be trained on here, too: see `sdk.tasks.load_tasks`.
    """
    versions = [version for row in rollout.rows for version in row.versions if version >= 0]
    task = rollout.task
    if number > 1:
        task = task.model_copy(update={"id": f"{task.id}/{number}"})
    learnt = list(rollout.messages)
    while learnt and learnt[-1].role == "user":  # a user's last words, which nobody answered
        learnt.pop()
    return {
        "messages": [_plain(message.as_openai()) for message in learnt],
        "tools": json.dumps([tool.as_openai() for tool in tools], ensure_ascii=False),
        "license": licence,
        "task": task.model_copy(update={"demonstration": []}).model_dump_json(),
        "origin": {
            "run": run,
            "rollout": rollout.id,
            "task": rollout.task.id,
            "policy": rollout.policy,
            "tool_prompt": rollout.tool_prompt,
            "weights_version": max(versions) if versions else None,
            "score": rollout.verdict.score if rollout.verdict is not None else None,
        },
    }


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments as an object, which chat templates want, where OpenAI's format has them as text."""
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return message


def _fits_json(rollout: Rollout) -> bool:
    task = rollout.task.model_dump(exclude={"demonstration"})  # without it, as an example has it
    written = [task, *(message.model_dump() for message in rollout.messages)]
    try:
        rollout.task.model_dump_json(exclude={"demonstration"})
        json.dumps(written, allow_nan=False, ensure_ascii=False, default=str, skipkeys=True).encode()
    except (ValueError, RecursionError):  # a `UnicodeEncodeError` is a ValueError
        return False
    return True


STAGES = ("grpo", "evaluation")
"""Where a run's rollouts are taken from unless said otherwise. Those of a training run's measurements are not among
them: they are of held-out tasks, and who trains on these can no longer measure on them."""


@dataclass(frozen=True)
class DistilledData:
    """The data set that was written. Example: `SFTTrainer(train_dataset=data.dataset(), ...)`"""

    path: Path
    selection: Selection

    def __str__(self) -> str:
        s = self.selection
        return (
            f"{len(s.kept)} examples of {s.seen} rollouts in {self.path}; left out: {s.not_verified} not verified, "
            f"{s.unscored} unscored, {s.not_json} that JSON cannot hold, {s.cut_off} that a limit cut off, "
            f"{s.unread} with a call that cannot be read, {s.several} of several conversations, "
            f"{s.duplicates} duplicates, {s.beyond_per_task} beyond those wanted of a task"
        )

    def _repr_markdown_(self) -> str:
        return listed(str(self))

    def dataset(self) -> Dataset:
        """As TRL's `SFTTrainer` takes it."""
        require_extra("train", "DistilledData.dataset", ConfigError)
        from datasets import Dataset

        # Not splitlines(): that also breaks at characters such as U+2028, which JSON allows inside strings.
        lines = self.path.read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in lines if line]
        # As JSON columns: tables of one shape would fill every call with the arguments of all tools.
        return Dataset.from_list(rows, on_mixed_types="use_json")


async def distill_async(
    run: str | Path | None = None,
    *,
    tools: Any,
    to: str | Path,
    licence: str,
    prompts: Any = None,
    verifier: VerifierLike | None = None,
    model: ModelSource = None,
    stage: str | None = None,
    samples: int = 4,
    temperature: float = 1.0,
    strict_tools: bool | None = None,
    threshold: float = 1.0,
    per_task: int = 1,
    limits: Limits | Mapping[str, Any] | None = None,
    handlers: Handlers | None = None,
    connect_timeout_s: float = 120.0,
    concurrency: int = 64,
    seed: int = 0,
    progress: Progress | None = None,
) -> DistilledData:
    """Write verified rollouts as a supervised data set (JSON lines in TRL's conversational format).

    Either of a finished `run` (its folder; `stage` names which rollouts, by default those of GRPO or of an
    evaluation), or new ones: `prompts`, `verifier` and a `model` (a `ModelSource` of `sdk.policies.model_source`) that
    plays each task `samples` times. `tools` are the ones the rollouts were made with. `strict_tools`: of new rollouts,
    see `sdk.evaluate`.

    `licence`: under which the examples may be used; written into each. `threshold`: the least score. `per_task`: at
    most so many distinct examples of one task, the shortest. New rollouts are kept beside `to`, in a run folder of its
    name with `.work` after it: the same call goes on from there where it was cut off, or had nothing to write.

    Raises `ConfigError` where the arguments do not fit together, the tools are others than the run's, or nothing is
    left to write; `to` is then not touched.
    """
    path = Path(to)
    playing = {
        "samples": samples,
        "temperature": temperature,
        "strict_tools": strict_tools,
        "concurrency": concurrency,
        "seed": seed,
    }
    _check_source(run, prompts, verifier, model, stage, playing)
    _check_wanted(licence, samples, per_task, threshold, path)
    bounds = Limits.of(limits)
    async with connect(
        tools, call_timeout_s=bounds.call_timeout_s, connect_timeout_s=connect_timeout_s, handlers=handlers
    ) as source:
        if run is not None:
            rollouts, name = _of_run(Path(run), stage, source)
        else:
            check_model_source(model)
            strict = default_strict(model) if strict_tools is None else strict_tools
            warn_of(source.live_destructive)
            name = model_label(model) or "the embedded model"
            assert verifier is not None  # `_check_source`
            context = RunContext(
                tools=source,
                verifier=verifier,
                limits=bounds,
                concurrency=concurrency,
                progress=progress or Silent(),
                success_threshold=threshold,
                seed=seed,
            )
            rollouts = await _play(load_tasks(prompts), model, context, handlers, path, samples, temperature, strict)
        shown = source.tools
    selection = select(rollouts, threshold=threshold, per_task=per_task)
    if not selection.kept:
        fixes = {  # by how often it is the reason
            selection.not_json: "Leave NaN and half surrogate pairs out of the tasks, or take another policy.",
            selection.unread: "Take a policy whose calls can be read.",
            selection.unscored: "Correct the verifier or the tool that leaves rollouts unscored.",
            selection.cut_off: "Raise max_turn_tokens and max_tokens of the limits.",
            selection.several: "Let the agent keep one conversation, without sub-agents and without compaction.",
            selection.not_verified: "Lower `threshold`, or take a policy that solves some of the tasks.",
        }
        raise ConfigError(
            f"none of {selection.seen} rollouts can be used: {selection.not_verified} are below {threshold:g}, "
            f"{selection.unscored} are unscored, {selection.not_json} hold what JSON cannot, {selection.cut_off} end "
            f"in a message that a limit cut off, {selection.unread} have a call that cannot be read, "
            f"{selection.several} are several conversations. {fixes[max(fixes)]}"
        )
    lines, of_task = [], Counter[str]()
    for rollout in selection.kept:
        # Who learns from the example is shown the same of the tools as the policy was.
        seen = shown_tools(rollout.tools_of(shown), rollout.tool_prompt)
        of_task[rollout.task.id] += 1
        number = of_task[rollout.task.id]
        lines.append(json.dumps(example(rollout, seen, licence=licence, run=name, number=number), ensure_ascii=False))
    data = "".join(f"{line}\n" for line in lines).encode()
    require_space(path.parent, len(data))
    write_bytes(path, data)  # whole: a file that is there is not written over
    return DistilledData(path, selection)


_DEFAULTS = {"samples": 4, "temperature": 1.0, "strict_tools": None, "concurrency": 64, "seed": 0}
"""Of what only new rollouts need."""


def _check_source(
    run: str | Path | None,
    prompts: Any,
    verifier: VerifierLike | None,
    model: ModelSource,
    stage: str | None,
    playing: Mapping[str, float | None],
) -> None:
    if (run is None) == (prompts is None):
        raise ConfigError("give the folder of a finished `run`, or `prompts` to play: exactly one of them")
    if run is None:
        if verifier is None:
            raise ConfigError("new rollouts need a `verifier`; only what it passes is taught")
        check_verifier(verifier)
        if stage is not None:
            raise ConfigError(f"`stage` is {stage!r} and does nothing without a `run`; leave it out")
    elif verifier is not None:
        raise ConfigError("`verifier` does nothing beside `run`, whose rollouts have their verdicts; leave it out")
    elif model is not None:
        raise ConfigError("`model` does nothing beside `run`, whose rollouts are there already; leave it out")
    elif idle := [name for name, value in playing.items() if value != _DEFAULTS[name]]:
        told = f"`{idle[0]}` is {playing[idle[0]]!r} and does nothing beside `run`, whose rollouts are there"
        raise ConfigError(f"{told}; leave it out")


def _check_wanted(licence: str, samples: int, per_task: int, threshold: float, path: Path) -> None:
    if not licence.strip():
        raise ConfigError('`licence` is empty; name what the examples may be used under, for example "apache-2.0"')
    for name, value in (("samples", samples), ("per_task", per_task)):
        require_number(name, value, least=1, whole=True)
    require_number("threshold", threshold)
    require_writable(path)
    if path.exists():
        raise ConfigError(f"{path} exists already; give another path, or remove it first")


async def _play(
    tasks: Sequence[Task],
    model: ModelSource,
    context: RunContext,
    handlers: Handlers | None,
    path: Path,
    samples: int,
    temperature: float,
    strict: bool,
) -> list[Rollout]:
    """New rollouts for the file at `path`; those that were played for it before are read."""
    source, verifier = context.tools, context.verifier
    identity = {
        "distill": model_label(model),
        **await anyio.to_thread.run_sync(weights_identity, model),
        "tasks": tasks_identity(tasks),
        "tools": tools_identity(source.specs, source.tools),
        "verifier": verifier_identity(verifier),
        "limits": context.limits.model_dump(),
        **handlers_identity(handlers),
        "samples": samples,
        "temperature": temperature,
        "seed": context.seed,
        **({"strict_tools": True} if strict else {}),
    }
    async with (
        open_agent(model, rows=context.concurrency, strict_tools=strict) as agent,
        open_users(tasks, source.tools, rows=context.concurrency) as users,
    ):
        with _work_folder(path, identity) as folder:
            folder.record_tools(source.tools)
            context = replace(context, folder=folder, users=users)
            return await measure(
                context.engine(agent),
                tasks,
                context,
                stage="distill",
                title="distilling",
                temperature=temperature,
                strict_tools=strict,
                samples=samples,
            )


def _work_folder(path: Path, identity: Mapping[str, Any]) -> RunFolder:
    """What is played for the file at `path`, beside it. Raises `RunFolderError`."""
    work = path.with_name(f"{path.name}.work")
    try:
        return RunFolder.create_or_resume(work, identity)
    except RunFolderError as error:
        raise RunFolderError(
            f"{error}. {work.name} keeps what is played for {path.name}; to play all anew, remove it, or give another "
            "`to`"
        ) from error


def _of_run(run: Path, stage: str | None, source: Toolset) -> tuple[list[Rollout], str]:
    """The rollouts of a stage, and the run's fingerprint."""
    with RunFolder.open_to_read(run) as folder:
        there = folder.rollout_stages()
        chosen = stage or next((name for name in STAGES if name in there), None)
        if chosen is None or chosen not in there:
            missing = repr(chosen) if chosen else " or ".join(map(repr, STAGES))
            raise ConfigError(
                f"{run} has no rollouts of the stage {missing}; name one of its own as `stage`: {', '.join(there)}"
            )
        noted = folder.stage(CONDITIONS)
        if noted is not None:
            same, what = _shown(map(Tool.model_validate, noted["tools"])) == _shown(source.tools), ""
        else:  # the run is not finished: all that is known is a digest
            made_with = folder.config.get("tools", {}).get("digest")
            same = made_with in (None, tools_identity(source.specs, source.tools)["digest"])
            what = ", or the code of functions"
        if not same:
            raise ConfigError(
                f"the tools given are not those of {run}: names, descriptions or schemas{what} differ. Give the same "
                "tools, so that the examples show what the policy saw."
            )
        return folder.read_rollouts(chosen), folder.fingerprint


def _shown(tools: Iterable[Tool]) -> dict[str, Any]:
    """What a policy can see of tools, in whatever order they are."""
    return {tool.name: tool.as_openai() for tool in tools}
