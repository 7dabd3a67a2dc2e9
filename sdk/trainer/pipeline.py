"""The main job, from top to bottom: tools and tasks in, a trained and measured model out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from mcp_bridge import Handlers
from mcp_bridge.extras import require_extra
from mcp_bridge.toolsets.toolset import Toolset

from ..connecting import connect
from ..errors import ConfigError
from ..evaluation.measuring import measure
from ..evaluation.report import Report, build_report
from ..policies.shown_tools import require_shown
from ..policies.token_agent import TokenAgent
from ..policies.tool_prompt import describe_trained, lengths_of, shown_by_default
from ..probing import STAGE as PROBES
from ..progress import Progress, Silent
from ..records import Rollout
from ..rollouts.engine import RolloutEngine
from ..rollouts.forks import require_forkable
from ..tasks import ThreeWaySplit, spread
from ..traces.run_folder import RunFolder
from ..verifiers import VerifierLike, check_verifier
from .config import TrainConfig
from .curriculum import interleaved
from .demonstrations import demonstration_rows, replay_demonstrations
from .group_jobs import drawn_tool_prompt
from .group_judging import check_groups
from .processes import check_processes, follows, join, tell, world_size
from .run_identity import bytes_still_needed, check_model_name, run_folder_path, train_defaults, train_identity
from .sides import choose_sides, require_a_way_to_learn, settle

if TYPE_CHECKING:
    from .learner import Learner

UNTRAINED, WARM, TRAINED = "untrained", "after_warm_start", "after_grpo"
CHOSEN = "chosen on validation"


@dataclass(frozen=True)
class TrainResult:
    """What `sdk.train` leaves behind."""

    model_dir: Path
    """The tuned model, loadable by transformers and served by `sdk.serve`."""
    run_dir: Path
    """Everything that happened: config, rollouts, metrics, curve, report."""
    report: Report


async def train_async(
    tools: Any,
    prompts: Any,
    verifier: VerifierLike,
    model: str | Path | None = None,
    output_dir: str | Path | None = None,
    config: Any = None,
    *,
    handlers: Handlers | None = None,
    connect_timeout_s: float = 20.0,
    progress: Progress | None = None,
) -> TrainResult:
    """Train a model to use the tools, and measure it on held-out tasks before, between and after.

    `tools`: anything `mcp_bridge.connect` takes. `prompts`: anything `sdk.tasks.load_tasks` takes. `verifier`: a
    function of the rollout or an object with `verify`. `model`: a local folder or hub name; the embedded
    SmolLM2-135M-Instruct where None. `output_dir`: a new or empty folder, or that of the same run to go on with it;
    `runs/<fingerprint>` where None. `config`: a `TrainConfig`, a mapping or a JSON file. `handlers`: who answers what
    servers ask during calls; other answers are another run. `connect_timeout_s`: how long a server may take to start.

    Raises `ConfigError`, `ModelError`, `RunFolderError` or `mcp_bridge.SourceError` before work is lost; a run that
    was killed goes on from its folder when called again in the same way.
    """
    require_extra("train", "sdk.train", ConfigError)
    options = TrainConfig.of(config)
    progress = progress or Silent()
    check_verifier(verifier)
    check_model_name(model)
    check_processes(options)
    check_groups(verifier, options)
    if follows():
        from .follower import follow

        result: TrainResult = await anyio.to_thread.run_sync(follow, model, options)
        return result
    if world_size() > 1:
        await anyio.to_thread.run_sync(join)
    try:
        result = await _lead(
            tools, prompts, verifier, model, output_dir, options, handlers, connect_timeout_s, progress
        )
    except BaseException as error:
        tell("failed", str(error) or type(error).__name__)
        raise
    tell("end", result)
    return result


async def _lead(
    tools: Any,
    prompts: Any,
    verifier: VerifierLike,
    model: str | Path | None,
    output_dir: str | Path | None,
    options: TrainConfig,
    handlers: Handlers | None,
    connect_timeout_s: float,
    progress: Progress,
) -> TrainResult:
    """The whole run, of the only process or of the first one."""
    tasks = choose_sides(prompts, options)
    options, settled = settle(options, tasks)
    require_a_way_to_learn(tasks, options)
    async with connect(
        tools, call_timeout_s=options.limits.call_timeout_s, connect_timeout_s=connect_timeout_s, handlers=handlers
    ) as source:
        source.for_training(options.allow_destructive)
        if options.branches:
            require_forkable(source)
        # The folder is opened after the tools, which take part in what the run is; bad tools leave none behind.
        identity = train_identity(
            options,
            model=model,
            verifier=verifier,
            train=tasks.train,
            heldout=tasks.heldout,
            source=tools,
            tools=source.tools,
            validation=tasks.validation,
            handlers=handlers,
        )
        path = run_folder_path(output_dir, identity)
        needed = bytes_still_needed(model, path, options)
        defaults = train_defaults(identity)
        with RunFolder.create_or_resume(path, identity, needed_bytes=needed, defaults=defaults) as folder:
            _say_what_is_there(folder, progress)
            for line in settled:
                progress.say(line)
            folder.record_tools(source.tools)
            run = _Run(options, source, verifier, tasks, folder, progress)
            return await run.through(model)


def _say_what_is_there(folder: RunFolder, progress: Progress) -> None:
    if folder.stage("report") is not None:
        progress.say(f"{folder.path} holds a finished run: its parts are read again, nothing is trained twice")
    elif folder.resumed:
        progress.say(f"{folder.path} holds a run that was cut off: going on with it")


class _Run:
    """The stages of one run. Each is skipped if the folder has it already."""

    def __init__(
        self,
        config: TrainConfig,
        source: Toolset,
        verifier: VerifierLike,
        tasks: ThreeWaySplit,
        folder: RunFolder,
        progress: Progress,
    ) -> None:
        self.config = config
        self.source = source
        self.verifier = verifier
        self.train, self.validation, self.heldout = tasks
        self.folder = folder
        self.progress = progress
        self.conditions: dict[str, list[Rollout]] = {}
        self.stages: dict[str, str] = {}
        """Condition -> the stage of its rollouts."""
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
        from .learner import open_learner

        self.progress.say(f"loading the model {model or '(embedded SmolLM2-135M-Instruct)'}")
        async with open_learner(model, config=self.config, folder=self.folder, progress=self.progress) as learner:
            engine = self._engine(learner.agent)
            await self._measure(engine, UNTRAINED, "untrained")
            if self.validation:
                await self._keep_untrained(learner, engine)
            if self.config.warm_start_steps:
                rows = demonstration_rows(demonstrations, learner.renderer, self.source.tools)
                await learner.warm_start(rows, Counter(rollout.tool_prompt for rollout in demonstrations))
                await self._measure(engine, WARM, "after warm start")
            if self.config.grpo_steps:
                await learner.grpo(engine, self.train, self.validation)
                await self._measure(engine, TRAINED, "after GRPO")
            if self.validation:
                await self._choose(learner, engine)
            learner.save()
        report = self._write_report(learner)
        return TrainResult(model_dir=self.folder.model_dir, run_dir=self.folder.path, report=report)

    def _engine(self, agent: TokenAgent) -> RolloutEngine:
        return RolloutEngine(
            agent=agent,
            source=self.source,
            verifier=self.verifier,
            limits=self.config.limits,
            concurrency=self.config.concurrency,
            on_call=self.folder.append_call,
        )

    async def _replayed_demonstrations(self) -> list[Rollout]:
        shown = [task for task in self.train if task.demonstration]
        chosen = spread(shown, self.config.warm_start_tasks) if self.config.warm_start_steps else []
        if self.config.curriculum is not None:
            chosen = interleaved(chosen, self.config.curriculum, self.config.seed)
        return await replay_demonstrations(
            chosen,
            source=self.source,
            verifier=self.verifier,
            limits=self.config.limits,
            concurrency=self.config.concurrency,
            threshold=self.config.success_threshold,
            progress=self.progress,
            on_call=self.folder.append_call,
            show=lambda task: drawn_tool_prompt(self.config, "demonstration", task.id),
        )

    async def _probe(self) -> None:
        """Before the first step: a verifier that degenerate policies earn would teach to be degenerate."""
        if not self.config.probe_tasks or self.folder.stage(PROBES) is not None:
            return
        from ..probing.probe_run import run_probes

        report = await run_probes(
            self.source,
            spread(self.train, self.config.probe_tasks),
            self.verifier,
            threshold=self.config.success_threshold,
            limits=self.config.limits,
            concurrency=self.config.concurrency,
            progress=self.progress,
            on_call=self.folder.append_call,
        )
        self.folder.drop_after(PROBES, -2)
        for rollout in report.rollouts:
            self.folder.append_rollout(PROBES, rollout)
        report.require_none(allowed=self.config.allow_probes)
        if report.partly:
            self.progress.say(f"probing the verifier: {report.partial_credit}")
        self.folder.finish_stage(PROBES, {"rollouts": len(report.rollouts), "rewarded": len(report.findings)})

    async def _measure(self, engine: RolloutEngine, stage: str, title: str) -> None:
        self.stages[title] = stage
        self.conditions[title] = await measure(
            engine,
            self.heldout,
            stage=stage,
            folder=self.folder,
            progress=self.progress,
            title=title,
            seed=self.config.seed,
            threshold=self.config.success_threshold,
            tool_prompt=shown_by_default(self.config.tool_prompt),
        )
        self.folder.finish_stage(stage, {"rollouts": len(self.conditions[title])})

    async def _keep_untrained(self, learner: Learner, engine: RolloutEngine) -> None:
        from .checkpoint_selection import keep_untrained

        await keep_untrained(
            learner, engine, self.validation, folder=self.folder, config=self.config, progress=self.progress
        )

    async def _choose(self, learner: Learner, engine: RolloutEngine) -> None:
        """Take the weights that do best on the tasks kept aside, and measure them on the held-out ones."""
        from .checkpoint_selection import choose_checkpoint

        chosen, self.choice = await choose_checkpoint(
            learner, engine, self.validation, folder=self.folder, config=self.config, progress=self.progress
        )
        if chosen == list(self.conditions)[-1]:  # the last row says it all
            return
        if chosen in self.conditions:  # the same weights: measured already
            self.stages[CHOSEN], self.conditions[CHOSEN] = self.stages[chosen], self.conditions[chosen]
        else:
            await self._measure(engine, "chosen", CHOSEN)

    def _write_report(self, learner: Learner) -> Report:
        from ..evaluation.plots import learning_curve
        from ..evaluation.run_facts import call_facts, guard_facts, run_facts
        from ..evaluation.run_reports import note_conditions
        from ..evaluation.training_summary import TrainingSummary

        metrics = self.folder.read_metrics()
        report = build_report(
            self.conditions,
            run={
                "model": learner.name,
                "tool_prompt": describe_trained(self.config.tool_prompt),
                "folder": str(self.folder.path),
                **learner.facts(),
                **self.choice,
                **run_facts(self.folder.info, self.folder.config),
                **guard_facts(self.source),
                **call_facts(self.folder.read_calls()),
            },
            training=TrainingSummary.from_metrics(metrics, stage="grpo") if self.config.grpo_steps else None,
            success_threshold=self.config.success_threshold,
            tools=self.source.tools,
        )
        note_conditions(self.folder, self.stages, self.source.tools)
        learning_curve(metrics, report.conditions, self.folder.curve_png, stage="grpo")
        report.write(self.folder.path)
        self.folder.finish_stage("report", {"conditions": list(self.conditions)})
        return report
