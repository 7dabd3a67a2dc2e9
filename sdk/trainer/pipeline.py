"""The main job, from top to bottom: tools and tasks in, a trained and measured model out."""

from __future__ import annotations

import functools
import gc
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from mcp_bridge import Handlers
from mcp_bridge.extras import require_extra
from mcp_bridge.safe_text import inline, table
from mcp_bridge.world import not_simulated

from ..agents import agent_facts, agent_identity, host_of, program_of, require_own_loop
from ..connecting import connect
from ..errors import ConfigError, ToolbakeError
from ..evaluation.conditions import FAMILY, in_order
from ..evaluation.measurement import (
    SERVED,
    UNTRAINED,
    OutsideVerdicts,
    ServedSummary,
    measure,
    measure_served,
    outside_faults,
    outside_rollouts,
    plain_verdicts,
    read_verdicts,
    summarise_served,
    warn_of_unknown,
)
from ..evaluation.report import CONDITIONS, Report, build_report
from ..evaluation.report_text import render_short_markdown
from ..policies.model_source import (
    ModelSource,
    open_agent,
    require_shown,
    second_label,
    second_source,
    weights_identity,
)
from ..policies.rendering import ChatRenderer
from ..policies.tool_prompt import describe_trained, lengths_of, shown_by_default
from ..policies.vllm.server_command import visible_gpus
from ..probing import STAGE as PROBES
from ..process import give_freed_memory_back
from ..progress import Progress, Silent
from ..records import Rollout, TokenRow
from ..rollouts.engine import RolloutEngine
from ..rollouts.forks import require_forkable
from ..rollouts.run_context import RunContext
from ..synthesis.found_demonstrations import find_demonstrations
from ..synthesis.shared_state import shared_state_line
from ..synthesis.task_checks import require_known_names
from ..tasks import ThreeWaySplit, counted, load_tasks, spread
from ..traces.run_folder import LAST_CHECKPOINT, RunFolder
from ..users.fidelity import UserJudge
from ..users.played_users import open_users, users_identity
from ..verifiers import VerifierLike, check_verifier
from .compute_plan import check_memory, context_of_rollouts, settle_sampler
from .config import TrainConfig
from .curriculum import interleaved
from .demonstrations import above_the_limit, demonstration_rows, replay_demonstrations, rows_by_agent, unwritable
from .groups import STAGE as GRPO
from .groups import check_groups, drawn_tool_prompt
from .isolation import ONLY_READ, refuse_shared_state, try_isolation
from .processes import check_processes, follows, join, tell, world_size
from .run_identity import bytes_still_needed, check_model_name, run_folder_path, train_identity
from .task_splits import (
    require_a_way_to_learn,
    require_use_of_teacher,
    settle,
    split_for_training,
    warm_start_steps,
)
from .validation import CHOICE, EARLIER_CHOICE, EARLIER_END, LAST_STAGE, needs_none

if TYPE_CHECKING:
    from ..agents.agent_programs import AgentProgram, AgentSource
    from ..evaluation.report import TrainingSummary
    from .learner import Learner

WARM, TRAINED = "after_warm_start", "after_grpo"
CHOSEN = "chosen on validation"
_AFTER_WARM_START, _AFTER_GRPO = "after warm start", "after GRPO"
_MAX_STEPS = "train.grpo.max_steps"
"""The option that may be larger when a run goes on, in the configuration of its folder."""


@dataclass(frozen=True)
class TrainResult:
    """What `sdk.train` returns."""

    model_dir: Path
    """The tuned model, loadable by transformers and served by `sdk.serve`."""
    run_dir: Path
    """Everything that happened: config, rollouts, metrics, curve, report."""
    report: Report

    @property
    def files(self) -> dict[str, Path]:
        """Where to look: the model, and of the report, its curve and the rollouts those that exist."""
        names = {"report": "report.md", "curve": "learning_curve.png", "rollouts": "rollouts"}
        there = {label: self.run_dir / name for label, name in names.items()}
        return {"model": self.model_dir, **{label: path for label, path in there.items() if path.exists()}}

    def _repr_markdown_(self) -> str:
        rows = [(label, inline(path, limit=400)) for label, path in self.files.items()]
        return "\n\n".join([render_short_markdown(self.report), table(("", "where"), rows, left_columns=2)])


async def train_async(
    tools: Any,
    prompts: Any,
    verifier: VerifierLike,
    model: str | Path | None = None,
    output_dir: str | Path | None = None,
    config: Any = None,
    *,
    agent: AgentSource | None = None,
    user_model: ModelSource = None,
    user_judge: UserJudge | None = None,
    auditor: ModelSource = None,
    teacher: ModelSource = None,
    verdicts: Mapping[str, str | Path] | None = None,
    handlers: Handlers | None = None,
    connect_timeout_s: float = 120.0,
    progress: Progress | None = None,
) -> TrainResult:
    """Train a model to use the tools, and measure it on held-out tasks before, between and after.

    `tools`: anything `mcp_bridge.connect` takes. `prompts`: anything `sdk.tasks.load_tasks` takes. `verifier`: a
    function of the rollout or an object with `verify`. `model`: a local folder or hub name; the embedded
    SmolLM2-135M-Instruct where None. `output_dir`: a new or empty folder, or that of the same run to go on with it, or
    to train it longer with a larger `grpo.max_steps`; `runs/<fingerprint>` where None. `config`: a `TrainConfig`, a
    mapping, or a JSON or YAML file. `agent`: an agent of your own that plays the rollouts, see `docs/agents.md`;
    another one is another run. `user_model`: plays the users of all tasks, and `user_judge` looks at them, see
    `docs/users.md`.
    `auditor`: a second policy that audits the rollouts (`audits.per_step`) in place of the one that is trained.
    `teacher`: another model whose verified rollouts are the demonstrations, where no training task has one.
    `verdicts`: files of verdicts that were made elsewhere, by name: report and curve compare the model with them, and a
    run that goes on may get others. `handlers`: who answers what servers ask during calls; other answers are another
    run. `connect_timeout_s`: how long a server may take to start.

    Raises `ConfigError`, `ModelError`, `RunFolderError` or `mcp_bridge.SourceError` before work is lost; a run that
    was killed goes on from its folder when called again in the same way.
    """
    require_extra("train", "sdk.train", ConfigError)
    options = TrainConfig.of(config)
    if auditor is not None and not options.audits.per_step:
        raise ConfigError("auditor does nothing while audits.per_step is 0; set that, such as 4")
    beside = {"auditor": auditor, "teacher": teacher}
    labels = {name: second_label(model) for name, model in beside.items() if model is not None}
    progress = progress or Silent()
    check_verifier(verifier)
    program = program_of(agent)
    check_model_name(model)
    check_processes(options)
    check_groups(verifier, options)
    if follows():
        from .learner import follow

        result: TrainResult = await anyio.to_thread.run_sync(follow, model, options)
        return result
    if world_size() > 1:
        await anyio.to_thread.run_sync(join)
    try:
        given = load_tasks(prompts)
        tasks = split_for_training(given, options)
        elsewhere = read_verdicts(verdicts, (UNTRAINED, _AFTER_WARM_START, _AFTER_GRPO, CHOSEN))
        warn_of_unknown(elsewhere, given)
        outside_rollouts(elsewhere, tasks.heldout)  # refused before anything starts
        counts_steps = options.warm_start.max_steps is None
        options, settled = settle(options, tasks)
        require_a_way_to_learn(tasks, options)
        if teacher is not None:
            require_use_of_teacher(tasks.train, options)
        options, lines = await anyio.to_thread.run_sync(settle_sampler, model, options)
        settled += [*lines, *await anyio.to_thread.run_sync(_check_memory, model, options)]
        connecting = connect(
            tools, call_timeout_s=options.limits.call_timeout_s, connect_timeout_s=connect_timeout_s, handlers=handlers
        )
        every = [*tasks.train, *tasks.validation, *tasks.heldout]
        async with connecting as source, host_of(program) as host, AsyncExitStack() as stack:
            source.for_training(options.allow_destructive)
            options.limits.check(source.tools)
            settled += await require_known_names(source, every, verifier)
            if options.rollouts.branches:
                require_own_loop(program)
                require_forkable(not_simulated(source))
            tried = await try_isolation(
                source, every, destructive=options.allow_destructive, allowed=options.allow_shared_state
            )
            refuse_shared_state(tried)
            settled += [str(one) for one in tried if one.why != ONLY_READ]
            # The folder is opened after the tools, which take part in what the run is; bad tools leave none behind.
            identity = train_identity(
                options,
                model=model,
                verifier=verifier,
                train=tasks.train,
                heldout=tasks.heldout,
                tools=source,
                validation=tasks.validation,
                handlers=handlers,
            )
            identity |= {**agent_identity(program), **users_identity(user_model, user_judge), **labels}
            identity |= await anyio.to_thread.run_sync(weights_identity, model, *beside.values())
            playing = open_users(
                every, source.tools, user_model=user_model, judge=user_judge, rows=options.rollouts.concurrency
            )
            users = await stack.enter_async_context(playing)
            opens = {
                name: functools.partial(open_agent, second_source(beside[name]), rows=options.rollouts.concurrency)
                for name in labels
            }
            second = await stack.enter_async_context(opens["auditor"]()) if auditor is not None else None
            path = run_folder_path(output_dir, identity)
            needed = bytes_still_needed(model, path, options)
            with RunFolder.create_or_resume(path, identity, needed_bytes=needed, grows=_MAX_STEPS) as folder:
                _say_what_is_there(folder, _reopen(folder, options.grpo.max_steps), options, progress)
                folder.record_tools(source.tools)
                context = RunContext(
                    tools=source,
                    verifier=verifier,
                    limits=options.limits,
                    concurrency=options.rollouts.concurrency,
                    folder=folder,
                    progress=progress,
                    success_threshold=options.evaluation.success_threshold,
                    seed=options.seed,
                    host=host,
                    users=users,
                    auditor=second,
                    teacher=opens.get("teacher"),
                )
                for line in [*settled, *filter(None, [shared_state_line(context.tools)])]:
                    progress.say(line)
                run = _Run(options, context, tasks, program, elsewhere, counts_steps=counts_steps)
                result = await run.through(model)
    except BaseException as error:
        tell("failed", str(error) or type(error).__name__)
        raise
    tell("end", result)
    return result


def _check_memory(model: str | Path | None, options: TrainConfig) -> list[str]:
    """Lines about what the training takes. Raises `ConfigError` where that is not free."""
    from ..policies.embedded.scheduler import free_bytes

    if options.engine == "vllm" or visible_gpus() or world_size() > 1:  # their memory is not looked at
        return []
    return check_memory(model, options, free_bytes())


_ENDED = ("after_grpo", "chosen", LAST_STAGE, SERVED)
"""Stages with rollouts of the last weights, or of the chosen ones: others will be measured."""
_MARKED = ("report", CONDITIONS, SERVED, "chosen", CHOICE, "after_grpo", GRPO)
"""Stages that a longer run finishes again; that of the steps is reopened last, so that a kill in between repeats it."""


def _reopen(folder: RunFolder, steps: int) -> int | None:
    """Make a run that was finished with `grpo.max_steps` lower than `steps` go on; returns how many it has made.
    None where there is nothing to reopen.

    The rollouts of its end are set aside; the weights that it had chosen stay among those that are chosen from.
    """
    done = folder.stage(GRPO)
    wanted = int(done["steps"]) if done is not None else 0
    if wanted >= steps or not any(folder.stage(name) is not None for name in _MARKED):
        return None
    finished = int(done.get("last", wanted)) if done is not None else 0
    folder.finish_stage(EARLIER_END, {"step": finished})
    choice = folder.stage(CHOICE)
    if choice is not None:
        folder.finish_stage(EARLIER_CHOICE, {"version": choice["version"]})
    last = folder.path / LAST_CHECKPOINT
    if last.is_dir():
        (folder.checkpoints / GRPO).mkdir(exist_ok=True)
        last.rename(folder.checkpoints / GRPO / f"checkpoint-{finished}")
    for stage in _ENDED:
        folder.drop_after(stage, -2)
    for stage in _MARKED:
        folder.reopen_stage(stage)
    return finished


def _say_what_is_there(folder: RunFolder, finished: int | None, options: TrainConfig, progress: Progress) -> None:
    """`finished`: the steps of a finished run that is trained longer."""
    if finished is not None:
        progress.say(
            f"{folder.path} holds a run that ended after step {finished} of GRPO: going on to {options.grpo.max_steps}"
        )
    elif folder.stage("report") is not None:
        progress.say(f"{folder.path} holds a finished run: its parts are read again, nothing is trained twice")
    elif folder.resumed:
        progress.say(f"{folder.path} holds a run that was cut off: going on with it")


class _Run:
    """The stages of one run. Each is skipped if the folder has it already."""

    def __init__(
        self,
        config: TrainConfig,
        context: RunContext,
        tasks: ThreeWaySplit,
        program: AgentProgram | None,
        elsewhere: OutsideVerdicts,
        *,
        counts_steps: bool,
    ) -> None:
        """`elsewhere`: verdicts to compare with. `counts_steps`: the steps of the warm start are by the demonstrations,
        also by those that are found."""
        self.config = config
        self.counts_steps = counts_steps
        self.program = program
        self.elsewhere = elsewhere
        self.context = context
        self.tools, self.folder, self.progress = context.tools, context.run_folder, context.progress
        self.train, self.validation, self.heldout = tasks
        self.conditions: dict[str, list[Rollout]] = {}
        self.stages: dict[str, str] = {}
        """Condition -> the stage of its rollouts."""
        self.free_by_choice = config.evaluation.strict_tools is False or bool(config.vllm.urls)
        """Whether calls could have been held to their schemas, and were not."""
        self.choice: dict[str, Any] = {
            "handed_over": "no task was kept aside to choose on: the last weights are handed over, better or worse"
        }

    async def through(self, model: str | Path | None) -> TrainResult:
        if cut_off := len(self.folder.interrupted_calls):
            self.progress.say(
                f"calls under way when the run was killed: {cut_off}; their outcome is unknown, see calls.jsonl"
            )
        await anyio.to_thread.run_sync(require_shown, model, lengths_of(self.config.tool_prompt))
        demonstrations = await self._replayed_demonstrations()
        await self._probe()
        if self.context.teacher is not None:
            # Before the model is loaded: an endpoint that does not answer is noticed in seconds, and a local teacher
            # has the memory for itself.
            demonstrations = await self._found_demonstrations(search=True)
        facts = await self._learn(model, demonstrations)
        gc.collect()  # model, engine and learner hold each other, and the saved model is about to be loaded
        give_freed_memory_back()
        report = self._write_report(facts, await self._ask_served())
        return TrainResult(model_dir=self.folder.model_dir, run_dir=self.folder.path, report=report)

    async def _learn(self, model: str | Path | None, demonstrations: list[Rollout]) -> dict[str, Any]:
        """Train, measure and save. Returns facts of the model; nothing holds its memory any more."""
        from .learner import open_learner
        from .validation import keep_untrained

        self.progress.say(f"loading the model {model or '(embedded SmolLM2-135M-Instruct)'}")
        tasks = [*self.train, *self.validation, *self.heldout]
        context = context_of_rollouts(self.config.limits, self.tools, tasks) if self.program is None else None
        async with open_learner(model, self.config, self.context, context_tokens=context) as learner:
            engine = self.context.engine(learner.agent)
            self.config = learner.config
            shown = next(iter(lengths_of(self.config.tool_prompt)))
            if self.config.warm_start.max_steps and (problem := unwritable(learner.renderer, shown)) is not None:
                if demonstrations:
                    raise ConfigError(f"no demonstration can be learned from: {problem}; set warm_start.max_steps to 0")
                self.progress.say(f"no demonstration is searched, because none can be learned from: {problem}")
                self._skip_warm_start()
                learner.use_options(self.config)
            await self._measure(learner, engine, UNTRAINED, "untrained")
            if self.validation:
                await keep_untrained(learner, engine, self.validation, self.context, self.config)
            if self.config.warm_start.max_steps and not demonstrations:
                solves_some = await needs_none(engine, self.train, self.validation, self.context, self.config)
                if solves_some:
                    self.progress.say("no demonstration is searched: the model solves some of the tasks by itself")
                demonstrations = await self._found_demonstrations(search=not solves_some)
                learner.use_options(self.config)
            if self.config.warm_start.max_steps:
                rows = await self._warm_start_rows(demonstrations, learner.renderer)
                await learner.warm_start(rows, Counter(rollout.tool_prompt for rollout in demonstrations))
                await self._measure(learner, engine, WARM, _AFTER_WARM_START)
            if self.config.grpo.max_steps:
                await learner.grpo(engine, self.train, self.validation)
                await self._measure(learner, engine, TRAINED, _AFTER_GRPO)
            if self.validation:
                await self._choose(learner, engine)
            learner.save()
            return {"model": learner.name, **learner.facts()}

    async def _replayed_demonstrations(self, *, found: bool = False) -> list[Rollout]:
        shown = [task for task in self.train if task.demonstration]
        chosen = spread(shown, self.config.warm_start.max_tasks) if self.config.warm_start.max_steps else []
        if self.config.curriculum.by is not None:
            chosen = interleaved(chosen, self.config.curriculum.by, self.config.seed)
        return await replay_demonstrations(
            chosen,
            self.context,
            show=lambda task: drawn_tool_prompt(self.config, "demonstration", task.id),
            found=found,
        )

    async def _warm_start_rows(self, demonstrations: Sequence[Rollout], renderer: ChatRenderer) -> list[TokenRow]:
        if self.context.host is None:
            rows = demonstration_rows(demonstrations, renderer, self.tools.tools)
            if told := above_the_limit(rows, self.config.limits.max_turn_tokens):
                self.progress.say(f"warning: {told}")
            return rows
        if self.folder.stage("warm_start") is not None:  # they were learned from, and an agent takes its time
            return []
        return await rows_by_agent(demonstrations, self.context, self.context.host, renderer)

    async def _found_demonstrations(self, *, search: bool) -> list[Rollout]:
        """Those of the teacher, or those that a search finds. Without any, no warm start."""
        options = self.config.warm_start
        if search:
            self.train = await find_demonstrations(
                ThreeWaySplit(self.train, self.validation, self.heldout),
                self.context,
                wanted=min(options.max_tasks or len(self.train), (options.max_steps or 0) * options.batch_size),
                allowed=self.config.allow_destructive,
            )
        rollouts = await self._replayed_demonstrations(found=True)
        if rollouts and self.counts_steps:
            self.config = self.config.changed({"warm_start.max_steps": warm_start_steps(len(rollouts), options)})
        if not rollouts:
            self._skip_warm_start()
        return rollouts

    def _skip_warm_start(self) -> None:
        self.config = self.config.changed({"warm_start.max_steps": 0})
        require_a_way_to_learn(ThreeWaySplit(self.train, self.validation, self.heldout), self.config)

    async def _probe(self) -> None:
        """Before training: a verifier that rewards degenerate policies would train one."""
        if not self.config.probes.tasks or self.folder.stage(PROBES) is not None:
            return
        from ..probing.certificate import judge_probes, play_probes
        from ..probing.probes import PROBES as KNOWING_NOTHING

        played = await play_probes(KNOWING_NOTHING, spread(self.train, self.config.probes.tasks), self.context)
        report = await judge_probes(played, self.context, allowed=self.config.probes.allow)
        self.folder.drop_after(PROBES, -2)
        for rollout in report.rollouts:
            self.folder.append_rollout(PROBES, rollout)
        if report.holes:
            report.require()
        if report.unknown:
            self.progress.say(f"warning: probing the verifier: {report.unknown}")
        if report.partial_credit:
            self.progress.say(f"probing the verifier: {report.partial_credit}")
        self.folder.finish_stage(
            PROBES, {"rollouts": len(report.rollouts), "rewarded": sum(len(one.findings) for one in report.earned)}
        )

    async def _measure(self, learner: Learner, engine: RolloutEngine, stage: str, title: str) -> None:
        self.stages[title] = stage
        self.conditions[title] = await measure(
            engine,
            self.heldout,
            self.context,
            stage=stage,
            title=title,
            tool_prompt=shown_by_default(self.config.tool_prompt),
            strict_tools=bool(self.config.evaluation.strict_tools),
        )
        await learner.rest_after_rollouts()
        settled = {"strict_tools": self.config.evaluation.strict_tools} if stage == UNTRAINED else {}
        self.folder.finish_stage(stage, {"rollouts": len(self.conditions[title]), **settled})

    async def _choose(self, learner: Learner, engine: RolloutEngine) -> None:
        """Take the weights that do best on the tasks kept aside, and measure them on the held-out ones."""
        from .validation import choose_checkpoint

        chosen, self.choice = await choose_checkpoint(learner, engine, self.validation, self.context, self.config)
        if chosen == list(self.conditions)[-1]:  # the last measured weights are the chosen ones
            return
        if chosen in self.conditions:  # the same weights: measured already
            self.stages[CHOSEN], self.conditions[CHOSEN] = self.stages[chosen], self.conditions[chosen]
        else:
            await self._measure(learner, engine, "chosen", CHOSEN)

    async def _ask_served(self) -> ServedSummary | None:
        """What was measured is what is served: the saved model, asked through the endpoint. A run does not fail by it,
        since its model is there; the report says what was in the way."""
        tasks = spread(self.heldout, self.config.evaluation.max_served)
        if not tasks:
            return None
        like, measured = list(self.conditions.items())[-1]
        if self.folder.stage(SERVED) is None:
            self.progress.say(
                f"serving the saved model to ask it {counted(tasks, 'held-out task')} as its clients will"
            )
            try:
                await measure_served(self.folder.model_dir, tasks, self.context)
            except (ToolbakeError, RuntimeError, OSError) as error:
                return ServedSummary(like=like, problem=str(error) or type(error).__name__)
            self.folder.finish_stage(SERVED, {"rollouts": len(tasks)})
        return summarise_served(
            self.folder.read_rollouts(SERVED),
            like,
            measured,
            threshold=self.config.evaluation.success_threshold,
            cluster_by=FAMILY,
        )

    def _write_report(self, facts: dict[str, Any], served: ServedSummary | None) -> Report:
        from ..evaluation.faults import find_faults
        from ..evaluation.plots import learning_curve
        from ..evaluation.report import TrainingSummary, call_facts, guard_facts, note_conditions, run_facts

        metrics = self.folder.read_metrics()
        training = TrainingSummary.from_metrics(metrics, stage=GRPO) if self.config.grpo.max_steps else None
        threshold = self.config.evaluation.success_threshold
        outside = outside_rollouts(self.elsewhere, self.heldout)
        pairs = [*((name, list(self.conditions)[-1]) for name in outside), *self._pairs()]
        faults = {name: outside_faults(rollouts, threshold) for name, rollouts in outside.items()}
        for name, rollouts in self.conditions.items():
            faults[name] = find_faults(rollouts, threshold=threshold, tools=self.tools.tools)
        report = build_report(
            {**outside, **self.conditions},
            run={
                **facts,
                "tool_prompt": describe_trained(self.config.tool_prompt),
                **({"strict_tools": True} if self.config.evaluation.strict_tools else {}),
                "folder": str(self.folder.path),
                **self.choice,
                **({"ended_early": early} if (early := (self.folder.stage(GRPO) or {}).get("ended_early")) else {}),
                **run_facts(self.folder.info, self.folder.config),
                **guard_facts(self.tools),
                **call_facts(self.folder.read_calls()),
                **agent_facts(self.program, (one for found in self.conditions.values() for one in found)),
            },
            training=training,
            success_threshold=threshold,
            pairs=pairs,
            faults=faults,
        )
        report.served = served
        report.next_steps = self._next_steps(report, training)
        noted = plain_verdicts(self.elsewhere)
        note_conditions(self.folder, self.stages, self.tools.tools, pairs=pairs, verdicts=noted)
        learning_curve(metrics, report.conditions, self.folder.curve_png, stage=GRPO)
        report.write(self.folder.path)
        self.folder.finish_stage("report", {"conditions": list(self.conditions)})
        return report

    def _pairs(self) -> list[tuple[str, str]]:
        """The conditions that are compared: those `in_order`, and the warm start with what is handed over."""
        pairs = in_order(list(self.conditions))
        others = [stage for name, stage in self.stages.items() if name != CHOSEN]
        if WARM in others and self.stages.get(CHOSEN, WARM) not in others:
            pairs.insert(-1, (_AFTER_WARM_START, CHOSEN))
        return pairs

    def _next_steps(self, report: Report, training: TrainingSummary | None) -> list[str]:
        from ..evaluation.next_steps import next_steps

        measured = [name for name in self.conditions if name != CHOSEN]
        kept = self.choice["validation"]["success"] if self.validation else {}
        rates = [rate.interval.estimate for name in measured[-2:] if (rate := report.conditions[name].success)]
        return next_steps(
            self.folder.iter_rollouts(GRPO),
            self.conditions[measured[-1]],
            training,
            threshold=self.config.evaluation.success_threshold,
            learnt=rates[1] - rates[0] if len(rates) == 2 else None,
            lost=(kept.get(self.choice.get("chosen_weights")) or 0.0) - (kept.get(measured[-1]) or 0.0),
            could_be_strict=self.free_by_choice and not self.config.evaluation.strict_tools,
        )
