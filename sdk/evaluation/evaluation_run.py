"""`evaluate` and `rollout`: policies and tools, without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio.to_thread

from mcp_bridge import Handlers, Toolset
from mcp_bridge.guard.destructive import warn_of

from ..connecting import connect
from ..errors import ConfigError
from ..policies.model_source import ModelSource, open_agent
from ..policies.protocol import Sampling
from ..policies.shown_tools import require_shown
from ..policies.tool_prompt import PROMPT_NAMES, describe_shown
from ..progress import Progress, Silent
from ..records import Rollout, Task, ToolPrompt
from ..rollouts.engine import RolloutEngine
from ..rollouts.episode import Job
from ..rollouts.limits import Limits
from ..tasks import load_tasks
from ..traces.digests import handlers_identity, tasks_identity, tools_identity
from ..traces.run_folder import RunFolder
from ..verifiers import VerifierLike, check_verifier, verifier_identity
from .conditions import FAMILY, require_cluster, require_threshold
from .costs import Price, read_prices
from .errors import Embedder, FaultJudge, find_faults, judged_faults
from .measuring import measure
from .planning import Condition, Plan, make_plan, tasks_of_split
from .report import Report, build_report
from .run_facts import call_facts, guard_facts, run_facts
from .run_reports import keep_conditions


async def evaluate_async(
    tools: Any,
    prompts: Any,
    verifier: VerifierLike,
    *,
    model: ModelSource = None,
    models: Mapping[str, ModelSource] | Sequence[ModelSource] | None = None,
    baseline: str | None = None,
    tool_prompts: ToolPrompt | Sequence[ToolPrompt] | None = None,
    samples: int = 1,
    split: Literal["train", "validation", "heldout"] | None = None,
    prices: Mapping[str, Price | tuple[float, float]] | None = None,
    cluster_by: str = FAMILY,
    fault_judge: FaultJudge | None = None,
    embed: Embedder | None = None,
    output_dir: str | Path | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    handlers: Handlers | None = None,
    connect_timeout_s: float = 20.0,
    concurrency: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
    success_threshold: float = 1.0,
    progress: Progress | None = None,
) -> Report:
    """Measure policies on all of `prompts`: one rollout each, greedy unless `temperature` says otherwise.

    `model`: see `sdk.policies.model_source.ModelSource`. `models`: several, by name or in a list; each is compared with
    `baseline`, the first where None. `tool_prompts`: how much of the tools the prompt shows, each a condition of its
    own; None: what each model was trained with. `samples`: rollouts for each task, for pass@k and pass^k. `split`: only
    tasks with that `split` tag. `prices`: by name, per million tokens in and out. `cluster_by`: `family` or a tag,
    whose tasks count as one for intervals. `fault_judge` and `embed`: see `sdk.evaluation.errors`. `handlers`: who
    answers what servers ask during calls. `connect_timeout_s`: how long a server may take to start. All of them, with
    their defaults, are in `docs/evaluation.md`.

    With `output_dir`, every rollout and the report are kept, and a run that was cut off goes on. Raises what
    `sdk.train` raises, before work is lost. Live destructive tools are not refused, as in training, but named in a
    warning: the tasks are yours.
    """
    check_verifier(verifier)
    plan = make_plan(model, models, baseline, tool_prompts)
    how = _Measurement(samples, temperature, seed, success_threshold, concurrency, progress or Silent())
    how.check(plan)
    what = _Reporting(_prices(prices, plan), cluster_by, success_threshold, fault_judge, embed)
    tasks = tasks_of_split(load_tasks(prompts), split)
    what.check(tasks)
    await how.settle_what_is_shown(plan, asked=tool_prompts is not None)
    bounds = Limits.of(limits)
    async with connect(
        tools, call_timeout_s=bounds.call_timeout_s, connect_timeout_s=connect_timeout_s, handlers=handlers
    ) as source:
        warn_of(source.live_destructive)
        # The folder is opened after the tools, which take part in what the run is; bad tools leave none behind.
        identity = {**plan.identity, **_identity(tasks, tools, source, verifier, bounds, handlers), **how.identity}
        with _opened(output_dir, identity, source) as folder:
            engine = partial(RolloutEngine, source=source, verifier=verifier, limits=bounds, concurrency=concurrency)
            rollouts = await how.measure_all(plan, tasks, engine, folder)
            report = await what.report(plan, rollouts, _facts(folder, identity, source, plan, rollouts), source)
            if folder is not None:
                keep_conditions(folder, plan, list(rollouts), source.tools)
                report.draw(folder.path)
                report.write(folder.path)
    return report


@dataclass(frozen=True)
class _Measurement:
    """How each condition is measured."""

    samples: int
    temperature: float
    seed: int
    threshold: float
    concurrency: int
    progress: Progress

    def check(self, plan: Plan) -> None:
        """Raises `ConfigError` for samples that cannot differ, and for a threshold that is no number."""
        require_threshold(self.threshold)
        if self.samples < 1:
            raise ConfigError(f"samples is {self.samples}; give 1 or more rollouts for each task")
        local = [c.policy for c in plan.conditions if c.source is None or isinstance(c.source, str | Path)]
        if self.samples > 1 and self.temperature == 0 and local:
            raise ConfigError(
                f"samples is {self.samples}, but at temperature 0 the model {local[0]!r} says the same every time; "
                "set temperature, such as 1.0"
            )

    async def settle_what_is_shown(self, plan: Plan, *, asked: bool) -> None:
        """Raises as `require_shown`, and says which prompts show less than full schemas where nobody has `asked` for
        it."""
        for conditions in plan.policies.values():
            await anyio.to_thread.run_sync(require_shown, conditions[0].source, [c.tool_prompt for c in conditions])
        for condition in plan.conditions:
            if not asked and condition.tool_prompt != "full":
                shown = PROMPT_NAMES[condition.tool_prompt]
                self.progress.say(f"{condition.policy}: its prompts show {shown} of the tools, as in its training")

    def _say_what_was_shown(self, condition: Condition, rollouts: Sequence[Rollout]) -> None:
        less = [rollout for rollout in rollouts if rollout.tool_prompt != condition.tool_prompt]
        if less:
            sent = PROMPT_NAMES[condition.tool_prompt]
            self.progress.say(
                f"{condition.policy}: its endpoint's prompts showed {describe_shown(less)} of the tools, where {sent} "
                "were sent"
            )

    @property
    def identity(self) -> dict[str, Any]:
        """What the run folder knows it by."""
        several = {"samples": self.samples} if self.samples > 1 else {}
        return {**several, "temperature": self.temperature, "seed": self.seed}

    async def measure_all(
        self, plan: Plan, tasks: Sequence[Task], make: Callable[..., RolloutEngine], folder: RunFolder | None
    ) -> dict[str, list[Rollout]]:
        """Rollouts by the name of their condition. One policy is open at a time: none waits for another's machine."""
        rollouts: dict[str, list[Rollout]] = {}
        for conditions in plan.policies.values():
            async with open_agent(conditions[0].source, rows=self.concurrency) as agent:
                for condition in conditions:
                    engine = make(agent=agent, on_call=folder.append_call if folder is not None else None)
                    rollouts[condition.name or agent.name] = await measure(
                        engine,
                        tasks,
                        stage=condition.stage,
                        folder=folder,
                        progress=self.progress,
                        title=condition.name or condition.stage,
                        seed=self.seed,
                        temperature=self.temperature,
                        threshold=self.threshold,
                        samples=self.samples,
                        tool_prompt=condition.tool_prompt,
                    )
                    self._say_what_was_shown(condition, rollouts[condition.name or agent.name])
        return rollouts


@dataclass(frozen=True)
class _Reporting:
    """What is said of the rollouts."""

    prices: Mapping[str, Price]
    cluster_by: str
    threshold: float
    judge: FaultJudge | None
    embed: Embedder | None

    def check(self, tasks: Sequence[Task]) -> None:
        """Raises `ConfigError` for a tag that no task has, and for what cannot judge or embed."""
        require_cluster(self.cluster_by, tasks)
        if self.judge is not None and not callable(getattr(self.judge, "judge", None)):
            raise ConfigError(
                f"fault_judge is a {type(self.judge).__name__}; give an object with an async judge(rollout, found), "
                "such as sdk.judging.model_faults((url, model name))"
            )
        if self.embed is not None and not callable(self.embed):
            raise ConfigError(
                f"embed is a {type(self.embed).__name__}; give a function from a list of texts to a vector for each"
            )

    async def report(
        self, plan: Plan, rollouts: Mapping[str, list[Rollout]], facts: Mapping[str, Any], source: Toolset
    ) -> Report:
        faults = {}
        for name, of_condition in rollouts.items():
            found = find_faults(of_condition, threshold=self.threshold, tools=source.tools)
            faults[name] = found if self.judge is None else await judged_faults(self.judge, of_condition, found)
        policies = dict(zip(rollouts, (c.policy for c in plan.conditions), strict=True))
        return build_report(
            rollouts,
            run=facts,
            success_threshold=self.threshold,
            cluster_by=self.cluster_by,
            pairs=plan.pairs,
            prices={name: self.prices[policy] for name, policy in policies.items() if policy in self.prices},
            faults=faults,
            embed=self.embed,
        )


def _prices(prices: Mapping[str, Any] | None, plan: Plan) -> dict[str, Price]:
    return read_prices(prices, list(plan.policies))


def _facts(
    folder: RunFolder | None,
    identity: Mapping[str, Any],
    source: Toolset,
    plan: Plan,
    rollouts: Mapping[str, Sequence[Rollout]],
) -> dict[str, Any]:
    name = ", ".join(plan.policies) if plan.pairs is not None else next(iter(rollouts))
    # As the rollouts with a reply say: behind an endpoint a model may be shown less than was sent.
    shown = {
        one: describe_shown([r for r in rollouts[one] if r.turns]) or PROMPT_NAMES[c.tool_prompt]
        for one, c in zip(rollouts, plan.conditions, strict=True)
    }
    info = folder.info if folder is not None else None
    every = [rollout for of_condition in rollouts.values() for rollout in of_condition]
    return {
        "model": name,
        "tool_prompt": shown,
        **run_facts(info, identity),
        **guard_facts(source),
        **call_facts(every),
    }


def _identity(
    tasks: Sequence[Task],
    tools: Any,
    source: Toolset,
    verifier: VerifierLike,
    limits: Limits,
    handlers: Handlers | None,
) -> dict[str, Any]:
    return {
        "tasks": tasks_identity(tasks),
        "tools": tools_identity(tools, source.tools),
        "verifier": verifier_identity(verifier),
        "limits": limits.model_dump(),
        **handlers_identity(handlers),
    }


@contextmanager
def _opened(output_dir: str | Path | None, identity: Mapping[str, Any], source: Toolset) -> Iterator[RunFolder | None]:
    if output_dir is None:
        yield None
        return
    defaults = {"limits": Limits().model_dump()}  # a folder of an earlier version may know fewer
    with RunFolder.create_or_resume(Path(output_dir), identity, defaults=defaults) as folder:
        folder.record_tools(source.tools)
        yield folder


async def rollout_async(
    tools: Any,
    prompt: Any,
    *,
    model: ModelSource = None,
    verifier: VerifierLike | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    handlers: Handlers | None = None,
    connect_timeout_s: float = 20.0,
    temperature: float = 0.0,
    seed: int = 0,
) -> Rollout:
    """One conversation, to look at. `prompt`: a string, a mapping or a `Task`. Scored if a verifier is given.

    `handlers`: who answers what servers ask during calls. `connect_timeout_s`: how long a server may take to start.
    """
    if verifier is not None:
        check_verifier(verifier)
    tasks = load_tasks([prompt])
    bounds = Limits.of(limits)
    async with connect(
        tools, call_timeout_s=bounds.call_timeout_s, connect_timeout_s=connect_timeout_s, handlers=handlers
    ) as source:
        warn_of(source.live_destructive)
        async with open_agent(model, rows=1) as agent:
            engine = RolloutEngine(agent=agent, source=source, verifier=verifier, limits=bounds)
            sampling = Sampling(temperature=temperature, max_tokens=bounds.max_turn_tokens)
            job = Job(id=f"rollout/{tasks[0].id}", task=tasks[0], seed=seed)
            return (await engine.run([job], sampling=sampling))[0]
