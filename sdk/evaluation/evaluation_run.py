"""`evaluate` and `rollout`: policies measured with tools, without training, by a plan of conditions and comparisons."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio.to_thread

from mcp_bridge import Handlers, Toolset
from mcp_bridge.errors import kind_of
from mcp_bridge.guard import warn_of

from ..agents import agent_facts, agent_identity, host_of, program_of
from ..connecting import connect
from ..errors import ConfigError, require_number
from ..policies.model_source import (
    ModelSource,
    check_model_source,
    default_strict,
    default_tool_prompt,
    model_label,
    open_agent,
    require_shown,
    require_strict,
    weights_identity,
)
from ..policies.protocol import Sampling
from ..policies.tool_prompt import TOOL_PROMPTS, describe_shown
from ..progress import Progress, Silent
from ..records import PROMPT_NAMES, Rollout, Task, ToolPrompt
from ..rollouts.engine import RolloutEngine
from ..rollouts.episode import Job
from ..rollouts.limits import Limits
from ..rollouts.run_context import RunContext
from ..tasks import load_tasks
from ..traces.identity import digest, handlers_identity, tasks_identity, tools_identity
from ..traces.run_folder import RunFolder
from ..users.fidelity import UserJudge
from ..users.played_users import open_users, users_identity
from ..verifiers import VerifierLike, check_verifier, verifier_identity
from .conditions import FAMILY, Price, read_prices, require_cluster
from .faults import FaultJudge, find_faults, judged_faults
from .measurement import (
    measure,
    outside_faults,
    outside_rollouts,
    plain_verdicts,
    read_verdicts,
    require_other_names,
    warn_of_unknown,
)
from .report import Report, build_report, call_facts, guard_facts, note_conditions, run_facts

if TYPE_CHECKING:
    from ..agents.agent_programs import AgentProgram, AgentSource


SINGLE_STAGE = "evaluation"


@dataclass(frozen=True)
class Condition:
    """One policy with so much of the tools in its prompt."""

    policy: str
    """What the user calls the policy, also in prices."""
    name: str | None
    """None for the only condition of an evaluation that shows full schemas: the agent says its own name once it is
    open."""
    source: ModelSource
    tool_prompt: ToolPrompt
    strict_tools: bool
    """Whether its calls are held to the tools and their schemas."""
    stage: str
    """Where the run folder keeps its rollouts."""


@dataclass(frozen=True)
class Plan:
    """The conditions in the order in which they are measured, those of one policy one after the other."""

    conditions: list[Condition]
    pairs: list[tuple[str, str]] | None
    """Names to compare; None where there is one condition."""

    @property
    def policies(self) -> dict[str, list[Condition]]:
        """The conditions of each policy."""
        grouped: dict[str, list[Condition]] = {}
        for condition in self.conditions:
            grouped.setdefault(condition.policy, []).append(condition)
        return grouped

    @property
    def identity(self) -> dict[str, Any]:
        """What the run folder knows it by."""
        if self.pairs is None:
            only = self.conditions[0]
            less = {} if only.tool_prompt == "full" else {"tool_prompt": only.tool_prompt}
            return {"evaluate": model_label(only.source), **less, **self.strictness}
        conditions = [[c.name, c.tool_prompt, model_label(c.source)] for c in self.conditions]
        return {"evaluate": conditions, **self.strictness}

    @property
    def strictness(self) -> dict[str, Any]:
        """`strict_tools`: True, or the names of the policies that are held so; nothing where none is."""
        held = [policy for policy, conditions in self.policies.items() if conditions[0].strict_tools]
        return {"strict_tools": True if len(held) == len(self.policies) else held} if held else {}


def make_plan(
    model: ModelSource,
    models: Mapping[str, ModelSource] | Sequence[ModelSource] | None,
    baseline: str | None,
    tool_prompts: ToolPrompt | Sequence[ToolPrompt] | None,
    outside: Collection[str] = (),
    strict_tools: bool | None = None,
) -> Plan:
    """Check what the user names, and order it. `tool_prompts` and `strict_tools`: what each was trained and measured
    with where None. `outside`: the names of verdicts that were made elsewhere, with which `_pairs` compares.

    Raises `ConfigError`, and `ModelError` for a model's folder that is damaged.
    """
    asked = _lengths(tool_prompts) if tool_prompts is not None else None
    if models is None:
        check_model_source(model)
        named: dict[str, ModelSource] = {_label(model): model}
    else:
        named = _named(model, models)
    if baseline is not None and baseline not in {*named, *outside}:
        raise ConfigError(f"`baseline` is {baseline!r}, which is not evaluated; the names are {', '.join(named)}")
    lengths = {policy: asked or [default_tool_prompt(source)] for policy, source in named.items()}
    if strict_tools:
        for source in named.values():
            require_strict(source)
    strict = {policy: default_strict(one) if strict_tools is None else strict_tools for policy, one in named.items()}
    if models is None and len(lengths[_label(model)]) == 1:
        if baseline is not None and not outside:
            raise ConfigError(f"baseline {baseline!r} does nothing with one policy; give several as models")
        policy, (length,) = _label(model), lengths[_label(model)]
        name = None if length == "full" else _condition_name(policy, length, [length])
        return Plan([Condition(policy, name, model, length, strict[policy], SINGLE_STAGE)], None)
    names = {
        (policy, length): _condition_name(policy, length, lengths[policy])
        for policy in named
        for length in lengths[policy]
    }
    conditions = [
        Condition(policy, name, named[policy], length, strict[policy], f"{SINGLE_STAGE}_{place:02d}_{_slug(name)}")
        for place, ((policy, length), name) in enumerate(names.items(), start=1)
    ]
    first = baseline if baseline in named else next(iter(named))
    longest = {policy: names[policy, lengths[policy][0]] for policy in named}
    pairs = [(longest[first], longest[policy]) for policy in named if policy != first]
    pairs += [(longest[policy], names[policy, length]) for policy in named for length in lengths[policy][1:]]
    return Plan(conditions, pairs)


def tasks_of_split(tasks: Sequence[Task], split: str | None) -> list[Task]:
    """The tasks tagged with that split, all where None. Raises `ConfigError` where there is none."""
    if split is None:
        return list(tasks)
    chosen = [task for task in tasks if task.tags.get("split") == split]
    if not chosen:
        known = sorted({task.tags["split"] for task in tasks if "split" in task.tags})
        raise ConfigError(
            f"`split` is {split!r}, but none of {len(tasks)} tasks has tags['split'] == {split!r}; the tasks have "
            f"{', '.join(known) or 'no such tag'}"
        )
    return chosen


def _lengths(tool_prompts: Any) -> list[ToolPrompt]:
    lengths: list[Any] = [tool_prompts] if isinstance(tool_prompts, str) else list(tool_prompts)
    if not lengths or len(set(lengths)) != len(lengths) or (unknown := [n for n in lengths if n not in TOOL_PROMPTS]):
        problem = f"{unknown[0]!r} is not one" if lengths and len(set(lengths)) == len(lengths) else "each once"
        raise ConfigError(f"tool_prompts is {tool_prompts!r}: {problem}; give one or more of {', '.join(TOOL_PROMPTS)}")
    return lengths


def _named(model: ModelSource, models: Mapping[str, ModelSource] | Sequence[ModelSource]) -> dict[str, ModelSource]:
    if model is not None:
        raise ConfigError("both model and models are given; give one policy as model, or several as models")
    if isinstance(models, str | Path) or not isinstance(models, Mapping | Sequence) or not models:
        raise ConfigError(
            f"models is {'empty' if not models else 'a ' + type(models).__name__}; give a mapping of names to models, "
            "or a list of models"
        )
    for source in models.values() if isinstance(models, Mapping) else models:
        check_model_source(source)
    if isinstance(models, Mapping):
        bad = [name for name in models if not isinstance(name, str) or not name.strip()]
        if bad:
            raise ConfigError(f"models has the name {bad[0]!r}; a name is a text that is not empty")
        return dict(models)
    named: dict[str, ModelSource] = {}
    for source in models:
        if (label := _label(source)) in named:
            raise ConfigError(f"two of models are called {label!r}; give a mapping with names of your own")
        named[label] = source
    return named


def _label(source: ModelSource) -> str:
    """A short name: of a folder its own, of an endpoint the model's."""
    label = model_label(source)
    if label is None:
        return "embedded"
    if isinstance(source, tuple | Mapping):
        return label.rpartition("#")[2]
    return Path(label).name if isinstance(source, Path) or Path(label).is_dir() else label


def _condition_name(policy: str, length: ToolPrompt, lengths: Sequence[ToolPrompt]) -> str:
    return policy if list(lengths) == ["full"] else f"{policy}, {PROMPT_NAMES[length]}"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "policy"


async def evaluate_async(
    tools: Any,
    prompts: Any,
    verifier: VerifierLike,
    *,
    model: ModelSource = None,
    models: Mapping[str, ModelSource] | Sequence[ModelSource] | None = None,
    baseline: str | None = None,
    verdicts: Mapping[str, str | Path] | None = None,
    tool_prompts: ToolPrompt | Sequence[ToolPrompt] | None = None,
    samples: int = 1,
    split: Literal["train", "validation", "heldout"] | None = None,
    prices: Mapping[str, Price | tuple[float, float]] | None = None,
    cluster_by: str = FAMILY,
    fault_judge: FaultJudge | None = None,
    output_dir: str | Path | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    agent: AgentSource | None = None,
    user_model: ModelSource = None,
    user_judge: UserJudge | None = None,
    handlers: Handlers | None = None,
    connect_timeout_s: float = 120.0,
    concurrency: int = 64,
    temperature: float = 0.0,
    strict_tools: bool | None = None,
    seed: int = 0,
    success_threshold: float = 1.0,
    progress: Progress | None = None,
) -> Report:
    """Measure policies on all of `prompts`: one rollout each, greedy unless `temperature` is above 0.

    `model`: see `sdk.policies.model_source.ModelSource`. `models`: several, by name or in a list; each is compared with
    `baseline`, the first where None. `verdicts`: files of verdicts that were made elsewhere, by name; the first is the
    baseline where no other is named. `tool_prompts`: how much of the tools the prompt shows, each a condition of its
    own; None: what each model was trained with. `samples`: rollouts for each task, for pass@k and pass^k. `split`: only
    tasks with that `split` tag. `prices`: by name, per million tokens in and out. `cluster_by`: `family` or a tag,
    whose tasks count as one for intervals. `fault_judge`: see `sdk.evaluation.faults`. `agent`: an agent of
    your own that plays the rollouts, see `docs/agents.md`. `user_model`: plays the users of all tasks, and `user_judge`
    looks at them, see `docs/users.md`. `handlers`: who answers what servers ask during calls.
    `connect_timeout_s`: how long a server may take to start. `strict_tools`: the calls that a model begins become calls
    of its tools, with arguments that their schemas allow, as for clients that set `strict: true`; None: of models that
    their training measured so. All of them, with their defaults, are in `docs/evaluation.md`.

    With `output_dir`, every rollout and the report are kept, and a run that was cut off goes on. Raises what
    `sdk.train` raises, before work is lost. Live destructive tools are not refused, as in training, but named in a
    warning: the tasks are yours.
    """
    check_verifier(verifier)
    program = program_of(agent)
    plan = make_plan(model, models, baseline, tool_prompts, verdicts or (), strict_tools)
    elsewhere = read_verdicts(verdicts, {*plan.policies, *(one.name for one in plan.conditions if one.name)})
    progress = progress or Silent()
    require_number("success_threshold", success_threshold)
    require_number("concurrency", concurrency, least=1, whole=True)
    require_number("seed", seed, whole=True)
    _require_samples(plan, samples, temperature)
    priced = read_prices(prices, list(plan.policies))
    every = load_tasks(prompts)
    warn_of_unknown(elsewhere, every)
    tasks = tasks_of_split(every, split)
    outside = outside_rollouts(elsewhere, tasks)
    require_cluster(cluster_by, tasks)
    _check_fault_judge(fault_judge)
    for conditions in plan.policies.values():
        await anyio.to_thread.run_sync(require_shown, conditions[0].source, [c.tool_prompt for c in conditions])
    for condition in plan.conditions:
        if tool_prompts is None and condition.tool_prompt != "full":
            shown = PROMPT_NAMES[condition.tool_prompt]
            progress.say(f"{condition.policy}: its prompts show {shown} of the tools, as in its training")
    bounds = Limits.of(limits)
    connecting = connect(
        tools, call_timeout_s=bounds.call_timeout_s, connect_timeout_s=connect_timeout_s, handlers=handlers
    )
    async with (
        connecting as source,
        host_of(program) as host,
        open_users(tasks, source.tools, user_model=user_model, judge=user_judge, rows=concurrency) as users,
    ):
        bounds.check(source.tools)
        warn_of(source.live_destructive)
        sources = [condition.source for condition in plan.conditions]
        models = [*sources, user_model]
        weights = {} if output_dir is None else await anyio.to_thread.run_sync(weights_identity, *models)
        # The folder is opened after the tools, which take part in what the run is; bad tools leave none behind.
        identity = {
            **plan.identity,
            "tasks": tasks_identity(tasks),
            "tools": tools_identity(source.specs, source.tools),
            "verifier": verifier_identity(verifier),
            "limits": bounds.model_dump(),
            **handlers_identity(handlers),
            **agent_identity(program),
            **users_identity(user_model, user_judge),
            **({"samples": samples} if samples > 1 else {}),
            **weights,
            **({"verdicts": digest(plain_verdicts(elsewhere))} if elsewhere else {}),
            "temperature": temperature,
            "seed": seed,
        }
        kept = nullcontext() if output_dir is None else RunFolder.create_or_resume(Path(output_dir), identity)
        with kept as folder:
            if folder is not None:
                folder.record_tools(source.tools)
            context = RunContext(
                tools=source,
                verifier=verifier,
                limits=bounds,
                concurrency=concurrency,
                folder=folder,
                progress=progress,
                success_threshold=success_threshold,
                seed=seed,
                host=host,
                users=users,
            )
            measured = await _measured(plan, tasks, context, outside, samples=samples, temperature=temperature)
            rollouts = {**outside, **measured}
            pairs = _pairs(plan, list(outside), list(measured), baseline)
            faults = {name: outside_faults(of_condition, success_threshold) for name, of_condition in outside.items()}
            for name, of_condition in measured.items():
                found = find_faults(of_condition, threshold=success_threshold, tools=source.tools)
                faults[name] = found if fault_judge is None else await judged_faults(fault_judge, of_condition, found)
            policies = dict(zip(measured, (c.policy for c in plan.conditions), strict=True))
            report = build_report(
                rollouts,
                run=_facts(folder, identity, source, plan, measured, program),
                success_threshold=success_threshold,
                cluster_by=cluster_by,
                pairs=pairs,
                prices={name: priced[policy] for name, policy in policies.items() if policy in priced},
                faults=faults,
            )
            if folder is not None:
                stages = dict(zip(measured, (c.stage for c in plan.conditions), strict=True))
                noted = plain_verdicts(elsewhere)
                note_conditions(folder, stages, source.tools, policies=policies, pairs=pairs, verdicts=noted)
                report.draw(folder.path)
                report.write(folder.path)
    return report


def _pairs(
    plan: Plan, outside: Sequence[str], measured: Sequence[str], baseline: str | None
) -> list[tuple[str, str]] | None:
    """The comparisons of the plan, and those with the verdicts from elsewhere."""
    if not outside:
        return plan.pairs
    longest = dict(zip((c.policy for c in reversed(plan.conditions)), reversed(measured), strict=True))
    first = longest.get(baseline, baseline) if baseline is not None else outside[0]
    others = [name for name in (*outside, *reversed(longest.values())) if name != first]
    shorter = [pair for pair in plan.pairs or [] if pair[1] not in longest.values()]
    return [*((first, name) for name in others), *shorter]


def _require_samples(plan: Plan, samples: int, temperature: float) -> None:
    """Raises `ConfigError` for samples that cannot differ."""
    require_number("samples", samples, least=1, whole=True)
    require_number("temperature", temperature, least=0)
    local = [c.policy for c in plan.conditions if c.source is None or isinstance(c.source, str | Path)]
    if samples > 1 and temperature == 0 and local:
        raise ConfigError(
            f"samples is {samples}, but at temperature 0 the model {local[0]!r} answers the same every time; "
            "set temperature, such as 1.0"
        )


async def _measured(
    plan: Plan,
    tasks: Sequence[Task],
    context: RunContext,
    outside: Mapping[str, Any],
    *,
    samples: int,
    temperature: float,
) -> dict[str, list[Rollout]]:
    """Rollouts by the name of their condition. One policy is open at a time: none waits for another's machine. Raises
    `ConfigError` for a name that verdicts from `outside` have, too."""
    rollouts: dict[str, list[Rollout]] = {}
    for conditions in plan.policies.values():
        strict = conditions[0].strict_tools
        async with open_agent(conditions[0].source, rows=context.concurrency, strict_tools=strict) as agent:
            for condition in conditions:
                require_other_names(outside, {condition.name or agent.name})
                found = rollouts[condition.name or agent.name] = await measure(
                    context.engine(agent),
                    tasks,
                    context,
                    stage=condition.stage,
                    title=condition.name or condition.stage,
                    temperature=temperature,
                    samples=samples,
                    tool_prompt=condition.tool_prompt,
                    strict_tools=strict,
                )
                less = [rollout for rollout in found if rollout.tool_prompt != condition.tool_prompt]
                if less:
                    context.progress.say(
                        f"{condition.policy}: its endpoint's prompts showed {describe_shown(less)} of the tools, "
                        f"where {PROMPT_NAMES[condition.tool_prompt]} were sent"
                    )
    return rollouts


def _check_fault_judge(judge: Any) -> None:
    if judge is not None and not callable(getattr(judge, "judge", None)):
        raise ConfigError(
            f"fault_judge is {kind_of(judge)}; give an object with an async judge(rollout, found), "
            "such as sdk.judging.fault_judge((url, model name))"
        )


def _facts(
    folder: RunFolder | None,
    identity: Mapping[str, Any],
    source: Toolset,
    plan: Plan,
    rollouts: Mapping[str, Sequence[Rollout]],
    program: AgentProgram | None,
) -> dict[str, Any]:
    name = ", ".join(plan.policies) if plan.pairs is not None else next(iter(rollouts))
    # As recorded in the rollouts with a reply: behind an endpoint a model may be shown less than was sent.
    shown = {
        one: describe_shown([r for r in rollouts[one] if r.turns]) or PROMPT_NAMES[c.tool_prompt]
        for one, c in zip(rollouts, plan.conditions, strict=True)
    }
    facts = run_facts(folder.info if folder is not None else None, identity) | guard_facts(source)
    every = [rollout for of_condition in rollouts.values() for rollout in of_condition]
    return {
        "model": name,
        "tool_prompt": shown,
        **plan.strictness,
        **facts,
        **call_facts(every),
        **agent_facts(program, every),
    }


async def rollout_async(
    tools: Any,
    prompt: Any,
    *,
    model: ModelSource = None,
    verifier: VerifierLike | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    agent: AgentSource | None = None,
    user_model: ModelSource = None,
    handlers: Handlers | None = None,
    connect_timeout_s: float = 120.0,
    temperature: float = 0.0,
    strict_tools: bool | None = None,
    seed: int = 0,
) -> Rollout:
    """One conversation, to look at. `prompt`: a string, a mapping or a `Task`. Scored if a verifier is given.

    `agent`: an agent of your own that has the conversation, see `docs/agents.md`. `user_model`: plays the task's user,
    see `docs/users.md`. `handlers`: who answers what servers ask during calls. `connect_timeout_s`: how long a server
    may take to start. `strict_tools`: see `evaluate`.
    """
    if verifier is not None:
        check_verifier(verifier)
    require_number("temperature", temperature, least=0)
    require_number("seed", seed, whole=True)
    program = program_of(agent)
    tasks = load_tasks([prompt])
    bounds = Limits.of(limits)
    async with connect(
        tools, call_timeout_s=bounds.call_timeout_s, connect_timeout_s=connect_timeout_s, handlers=handlers
    ) as source:
        bounds.check(source.tools)
        warn_of(source.live_destructive)
        strict = default_strict(model) if strict_tools is None else strict_tools
        async with (
            open_users(tasks, source.tools, user_model=user_model, rows=1) as users,
            open_agent(model, rows=1, strict_tools=strict) as policy,
            host_of(program) as host,
        ):
            engine = RolloutEngine(
                agent=policy, source=source, verifier=verifier, limits=bounds, host=host, users=users
            )
            most = bounds.max_turn_tokens
            sampling = Sampling(temperature=temperature, max_tokens=most, strict_tools=strict)
            job = Job(id=f"rollout/{tasks[0].id}", task=tasks[0], seed=seed)
            return (await engine.run([job], sampling=sampling))[0]
