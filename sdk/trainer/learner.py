"""The learner: one model, the engine that samples from it, and the two stages that change its weights.

Loads torch; imported only when a run begins. TRL's trainers are synchronous and run in a worker thread.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
from transformers import PrinterCallback

from ..errors import ConfigError, ToolbakeError, plain_errors
from ..evaluation.measurement import MEASURED_TEMPERATURE, UNTRAINED
from ..policies.grammar import ReplyGrammars
from ..policies.model_source import grammars_of_calls, weight_digests
from ..policies.models import LoadedModel, load_model
from ..policies.models.saving import quiet_loading, remove_unfinished, unwritten
from ..policies.models.smollm2 import embedded_folder
from ..policies.protocol import Sampling
from ..policies.rendering import ChatRenderer, make_renderer
from ..policies.token_agent import TokenAgent
from ..policies.tool_prompt import describe_trained
from ..policies.vllm import VllmPolicy
from ..process import give_freed_memory_back, let_idle_threads_go
from ..progress import Progress
from ..records import Task, TokenRow
from ..rollouts.engine import RolloutEngine
from ..rollouts.forks import how_worlds_are_copied
from ..rollouts.run_context import RunContext
from ..traces.atomic_files import folder_error
from ..traces.run_folder import LAST_CHECKPOINT
from .auditor import AUDIT
from .base_trainer import StepMetrics, StopOnRequest, ThinCheckpoints, WarmStartProgress
from .config import TrainConfig
from .curriculum import Curriculum
from .groups import STAGE
from .grpo import make_trainer
from .lora import keep_model, load_kept, plain_model, with_adapters
from .processes import Command, holding_device, join, sharded, share, stage_ended, tell
from .rollout_worker import BROKEN, FIGURES, Collector, TrainingStopped
from .sampler import Sampler, forget, open_sampler, publish, rest, sampler_facts, weights_digest
from .sharding import forget_weights
from .shared_prefix import check_fits
from .validation import StoppedEarly, forget_after, last_step
from .warm_start import make_warm_start

# ---------------------------------------------------------------------------------------------------------------------


def run_trainer(make: Callable[[], Any], checkpoint: Path | None) -> Any:
    """Make a trainer and train to its end, or until it is stopped; returns it."""
    with quiet_loading():
        trainer = make()
        trainer.remove_callback(PrinterCallback)  # the progress bars show its figures
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except Exception as error:
            if (number := unwritten(error)) is None:
                raise
            raise folder_error(Path(trainer.args.output_dir), OSError(number, os.strerror(number))) from error
    return trainer


def leave_training(model: Any) -> None:
    """Give a model its class's own forward again: TRL and the shared-prefix forward replace that of the instance."""
    plain_model(model).__dict__.pop("forward", None)
    model.eval()


# ---------------------------------------------------------------------------------------------------------------------
# TRL's trainers are synchronous: each runs in a worker thread, and can be stopped from the event loop.


class TrainerThread:
    """One call of `trainer.train()`. Stopping takes effect after the micro-batch in progress."""

    def __init__(self, make: Callable[[StopOnRequest], Any], checkpoint: Path | None) -> None:
        self._make = make
        self._checkpoint = checkpoint
        self._stop = threading.Event()
        self._started = threading.Event()
        self._ended = threading.Event()
        self.finished = False
        """Whether the trainer made its last step, or ended early."""
        self.early: StoppedEarly | None = None

    def work(self) -> None:
        """In the worker thread: make the trainer, and train to the end or until stopped."""
        self._started.set()
        try:
            if self._stop.is_set():
                return
            trainer = run_trainer(partial(self._make, StopOnRequest(self._stop)), self._checkpoint)
            self.finished = trainer.state.global_step >= trainer.args.max_steps
            del trainer
        except StoppedEarly as early:
            self.early, self.finished = early.with_traceback(None), True  # a traceback would hold the trainer
        except TrainingStopped:
            if not self._stop.is_set():
                raise
            # The rollouts ended because this thread is to end: whoever cancelled is to see that, and no error.
        finally:
            gc.collect()  # a trainer and its optimiser hold each other
            give_freed_memory_back()
            let_idle_threads_go()
            self._ended.set()

    async def stop_when_cancelled(self, on_stop: Callable[[], None] | None) -> None:
        """In the event loop, beside `work`: stop the thread when this task is cancelled."""
        try:
            await anyio.sleep_forever()
        finally:
            self._stop.set()
            if on_stop is not None:
                on_stop()

    async def wait_for_end(self) -> None:
        """Wait until the thread has ended, also when an interrupt has bypassed the task group."""
        self._stop.set()
        with anyio.CancelScope(shield=True):
            while self._started.is_set() and not self._ended.is_set():
                await anyio.to_thread.run_sync(self._ended.wait, 1.0)


# ---------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_learner(
    model: str | Path | None, config: TrainConfig, context: RunContext, *, context_tokens: int | None = None
) -> AsyncIterator[Learner]:
    """Load the model, start its engine, and stop it at the end. `context_tokens`: the most that a rollout has."""
    folder, progress = context.run_folder, context.progress
    remove_unfinished(folder.path, folder.model_dir.name)
    remove_unfinished(folder.checkpoints)
    # float32 also on a GPU: with bfloat16 weights and no master copy, small updates round to nothing. Beside vLLM it
    # stays in main memory until the first stage: vLLM measures what is free on its GPU while it starts.
    device = "cpu" if config.engine != "embedded" else None
    load = partial(load_model, str(model) if model is not None else None, dtype="float32", device=device)
    loaded = await anyio.to_thread.run_sync(load)
    if config.batching.shared_prefix:
        check_fits(loaded.model)
    before = (folder.stage(UNTRAINED) or {}).get("strict_tools")  # all of a run is measured alike
    measured = config.evaluation.strict_tools if before is None else before
    grammars = await anyio.to_thread.run_sync(_grammars, loaded, config, measured, progress)
    held = grammars is not None and measured is not False
    evaluation = config.evaluation.model_copy(update={"strict_tools": held})
    config = config.model_copy(update={"evaluation": evaluation})
    digest = None
    if config.weights_digests == "published":
        digest = await anyio.to_thread.run_sync(weights_digest, loaded.model)
        folder.record_published(0, digest)
    source = str(model) if model is not None else str(embedded_folder())
    place = folder.path / "vllm"
    if loaded.tool_prompt not in (None, config.tool_prompt):
        progress.say(
            f"the model's prompts showed {describe_trained(loaded.tool_prompt)} of its tools in its training so far; "
            f"in this run: {describe_trained(config.tool_prompt)} (tool_prompt)"
        )
    positions = loaded.model.config.get_text_config(decoder=True).max_position_embeddings
    bound = context_tokens if context_tokens is not None and context_tokens < positions else None
    opening = open_sampler(loaded, source=source, config=config, folder=place, progress=progress, context_tokens=bound)
    async with opening as engine:
        if isinstance(engine, VllmPolicy) and digest is not None and not engine.takes_adapters:
            engine.held = str(digest["sha256"])
        if holding_device() is not None:
            loaded.model.to(holding_device())  # the embedded engine has its own copy, on the GPU
        yield Learner(loaded, engine, config, context, grammars)


_MEASURED = "evaluation.strict_tools"


def _grammars(
    loaded: LoadedModel, config: TrainConfig, measured: bool | None, progress: Progress
) -> ReplyGrammars | None:
    """What calls are held to; None where the options leave it open and it cannot be, and where they do not want it.
    `measured`: whether measurements want it. Raises `ConfigError` where one wants it and it cannot be."""
    wanted = {"rollouts.strict_tools": config.rollouts.strict_tools, _MEASURED: measured}
    option = next((name for name, value in wanted.items() if value), None)
    if option is None and measured is False:
        return None
    if option is None and config.vllm.urls:
        progress.say("evaluation.strict_tools is off: vLLM servers that run already may not follow grammars")
        return None
    try:
        in_vllm = config.engine == "vllm"
        return grammars_of_calls(loaded, in_vllm=in_vllm, option=option or _MEASURED)
    except ConfigError as error:
        if option is not None:
            raise
        progress.say(f"evaluation.strict_tools is off: {str(error).removeprefix(f'{_MEASURED} is true, and ')}")
        return None


class Learner:
    """A model in training. `agent` samples from the weights last published."""

    def __init__(
        self,
        loaded: LoadedModel,
        engine: Sampler,
        config: TrainConfig,
        context: RunContext,
        grammars: ReplyGrammars | None = None,
    ) -> None:
        """`config`: with `evaluation.strict_tools` settled. `grammars`: for the options of that name; None: calls are
        held to nothing."""
        self.name = loaded.name
        self.model = with_adapters(loaded.model, config)
        self.tokenizer = loaded.tokenizer
        self.renderer: ChatRenderer = make_renderer(loaded.tokenizer, family=loaded.family)
        self.engine = engine
        self.agent = TokenAgent(engine, self.renderer, name=loaded.name, grammars=grammars)
        self._version = 0
        self.config = config
        self._context = context
        self._folder, self._progress = context.run_folder, context.progress
        self._note_weights = self._folder.record_published if config.weights_digests == "published" else None

    def use_options(self, config: TrainConfig) -> None:
        """Go on with options that were settled after the model was loaded."""
        self.config = config

    async def warm_start(self, rows: Sequence[TokenRow], shown: Mapping[str, int]) -> None:
        """Supervised training on demonstration rows; done once, its weights are kept for a resumed run.

        `shown`: how many demonstrations show how much of the tools, for the record.
        """
        kept = self._folder.checkpoints / "warm_start"
        if self._folder.stage("warm_start") is not None:
            self._load(kept)
        else:
            output_dir = self._folder.checkpoints / "warm_start_trainer"
            checkpoint, done = newest_checkpoint(output_dir)
            self._folder.drop_metrics_after(done - 1, "warm_start")
            if done:
                self._progress.say(f"going on with the warm start from step {done}")
            tell("warm_start", (list(rows), str(output_dir), self.config, checkpoint))
            with self._progress.track("warm start", self.config.warm_start.max_steps or 0, done) as step:
                progress = WarmStartProgress(self._folder, step)

                def make(stop: StopOnRequest) -> Any:
                    return make_warm_start(
                        self.model,
                        self.tokenizer,
                        rows,
                        config=self.config,
                        output_dir=str(output_dir),
                        callbacks=[progress, stop],
                    )

                await anyio.to_thread.run_sync(rest, self.engine)
                await self._run(make, checkpoint)
            self.keep(kept)
            self._folder.record_weights(kept, version=0)
            self._folder.finish_stage("warm_start", {"demonstrations": len(rows), "tool_prompts": dict(shown)})
            shutil.rmtree(output_dir, ignore_errors=True)
        await self._publish(version=0)

    async def grpo(self, engine: RolloutEngine, tasks: Sequence[Task], validation: Sequence[Task] = ()) -> None:
        """Reinforcement from rollouts; goes on from the newest whole checkpoint.

        `validation`: tasks to measure on meanwhile, where the config asks for it.
        """
        kept = self._folder.checkpoints / "trained"
        if self._folder.stage(STAGE) is not None:
            self._load(kept)
        else:
            output_dir = self._folder.checkpoints / STAGE
            checkpoint, done = newest_checkpoint(output_dir)
            dropped = self._folder.drop_after(STAGE, done - 1)
            self._folder.drop_metrics_after(done - 1, STAGE)
            self._folder.drop_metrics_after(done - 1, FIGURES)
            self._folder.drop_after(BROKEN, done - 1)
            self._folder.drop_after(AUDIT, done - 1)
            forget_after(self._folder, done)
            if self._folder.resumed and (done or dropped):
                self._progress.say(f"going on from step {done}; {dropped} rollouts of unsaved steps set aside")
            facts: dict[str, Any] = {"steps": self.config.grpo.max_steps}
            if checkpoint is not None and done >= self.config.grpo.max_steps:
                self._load(checkpoint)
            elif early := await self._reinforce(engine, tasks, validation, output_dir, checkpoint, done):
                self._progress.say(str(early))
                for stage in (STAGE, BROKEN):  # rollouts of later steps that had begun
                    self._folder.drop_after(stage, early.step - 1)
                facts |= {"last": early.step, "ended_early": str(early)}
            self.keep(kept)
            self._folder.record_weights(kept, version=facts.get("last", facts["steps"]))
            self._folder.finish_stage(STAGE, facts)
        await self._publish(version=last_step(self._folder, self.config))

    async def _reinforce(
        self,
        engine: RolloutEngine,
        tasks: Sequence[Task],
        validation: Sequence[Task],
        output_dir: Path,
        checkpoint: Path | None,
        done: int,
    ) -> StoppedEarly | None:
        with self._progress.track("GRPO", self.config.grpo.max_steps, done) as step:
            curriculum = Curriculum(tasks, self.config)
            collector = Collector(
                engine,
                curriculum,
                self.config,
                self._context,
                step=step,
                validation=validation,
                after_measuring=partial(forget, self.engine),
            )
            collector.recall(done)

            def make(stop: StopOnRequest) -> Any:
                return make_trainer(
                    self.model,
                    self.tokenizer,
                    config=self.config,
                    output_dir=str(output_dir),
                    collect=collector,
                    publisher=self.engine,
                    note_weights=self._note_weights,
                    callbacks=[
                        StepMetrics(self._folder, collector, curriculum),
                        *([ThinCheckpoints(self.config)] if self.config.evaluation.validation else []),
                        stop,
                    ],
                )

            if self.config.rollouts.branches:
                self._progress.say(f"rollouts branch; their worlds {how_worlds_are_copied(engine.source)}")
            tell("grpo", (str(output_dir), self.config, checkpoint))
            async with collector.sampling():
                return await self._run(make, checkpoint, on_stop=collector.stop)

    def save(self) -> None:
        """Write the model for use. The last checkpoint is kept, to train the run longer; the others are removed."""
        # What a trainer leaves in a model's config is not there when a finished run is opened again.
        model, chosen = self._folder.model_dir, self._folder.checkpoints / "chosen"
        # Untrained weights and those after the warm start are one version: a longer run may choose the others of them.
        same = self._folder.has_weights(model, self._version) and (
            not chosen.is_dir() or weight_digests(chosen) == weight_digests(model)
        )
        if not same:
            self.keep(model)
            self._folder.record_weights(model, version=self._version)
        last, (newest, _) = self._folder.path / LAST_CHECKPOINT, newest_checkpoint(self._folder.checkpoints / STAGE)
        if newest is not None:
            shutil.rmtree(last, ignore_errors=True)
            newest.rename(last)
        if last.is_dir():
            self._folder.record_weights(last, version=last_step(self._folder, self.config))
        for leftover in (STAGE, "warm_start_trainer", "untrained"):
            shutil.rmtree(self._folder.checkpoints / leftover, ignore_errors=True)

    def facts(self) -> dict[str, Any]:
        """Facts of the model, for the report."""
        weights = list(self.model.parameters())
        trained = sum(weight.numel() for weight in weights if weight.requires_grad)
        whole = sum(weight.numel() for weight in weights)
        sizes = {"parameters": whole} if trained == whole else {"parameters": whole, "trained_parameters": trained}
        return {**sizes, **sampler_facts(self.engine)}

    async def _run(
        self,
        make: Callable[[StopOnRequest], Any],
        checkpoint: Path | None = None,
        on_stop: Callable[[], None] | None = None,
    ) -> StoppedEarly | None:
        """Train in a worker thread, to the end or until cancelled; the thread has ended when this returns or raises.

        Returns why it ended early, or None. Raises what the trainer raises. A cancelled stage never looks finished.
        """
        thread = TrainerThread(make, checkpoint)
        try:
            with plain_errors():
                async with anyio.create_task_group() as group:
                    group.start_soon(thread.stop_when_cancelled, on_stop)
                    await anyio.to_thread.run_sync(thread.work)
                    group.cancel_scope.cancel()
        finally:
            await thread.wait_for_end()
            leave_training(self.model)
        if thread.finished:
            stage_ended()
        else:
            await anyio.lowlevel.checkpoint()  # raises where a cancellation is pending
            raise TrainingStopped("training stopped before its last step; the same call goes on from the run folder")
        return thread.early

    async def use(self, folder: Path, *, version: int) -> None:
        """Sample from weights that the run has kept, and end with them unless others are used later."""
        await self.rest_after_rollouts()  # before weights come from the disk
        self._load(folder)
        await self._publish(version=version)

    async def rest_after_rollouts(self) -> None:
        """Have the embedded engine give back what rollouts took that are over: none of them goes on."""
        await anyio.to_thread.run_sync(forget, self.engine)

    async def _publish(self, *, version: int) -> None:
        self._version = version
        note = self._note_weights
        await anyio.to_thread.run_sync(partial(publish, self.engine, self.model, version=version, note=note))

    def keep(self, folder: Path) -> None:
        """Write the present weights into a folder of the run."""
        keep_model(
            self.model,
            self.tokenizer,
            folder,
            family=self.renderer.family,
            tool_prompt=self.config.tool_prompt,
            sampling=Sampling(
                temperature=MEASURED_TEMPERATURE,
                max_tokens=self.config.limits.max_turn_tokens,
                strict_tools=bool(self.config.evaluation.strict_tools),
            ),
        )

    def _load(self, folder: Path) -> None:
        tell("load", folder)
        load_kept(self.model, folder)


def newest_checkpoint(folder: Path) -> tuple[Path | None, int]:
    """The newest checkpoint that was written to its end, and the steps done in it; (None, 0) where there is none.

    TRL writes `trainer_state.json` last, so a checkpoint without a whole one was cut off by a kill and is removed. One
    that exists and cannot be read, as on a disk that does not answer, is an error: nothing is removed.
    """
    found: list[tuple[int, Path]] = []
    for path in folder.glob("checkpoint-*") if folder.is_dir() else []:
        try:
            state = json.loads((path / "trainer_state.json").read_text())
            found.append((int(state["global_step"]), path))
        except (FileNotFoundError, ValueError, KeyError):
            shutil.rmtree(path)
    if not found:
        return None, 0
    steps, path = max(found)
    return path, steps


# ---------------------------------------------------------------------------------------------------------------------
# The other processes of a training: each computes its part of what the first one commands.


def follow(model: str | Path | None, config: TrainConfig) -> Any:
    """Of the other processes: compute with the first one until it is done. Returns its result.

    Raises `ToolbakeError` when the first one has failed.
    """
    join()  # first: loading asks which process this is, and which GPU is its own
    loaded = load_model(str(model) if model is not None else None, dtype="float32", device=holding_device())
    network = with_adapters(loaded.model, config)
    if sharded():
        forget_weights(network)
    while True:
        command = share(None)
        if not isinstance(command, Command) or command.do == "failed":
            raise ToolbakeError(f"the first process failed: {getattr(command, 'what', command)}")
        if command.do == "end":
            return command.what
        if command.do == "load":
            if not sharded():
                load_kept(network, command.what)
            continue
        with contextlib.suppress(TrainingStopped):  # the first process raises the reason
            run_trainer(partial(_follower, command, network, loaded.tokenizer), command.what[-1])
        leave_training(network)


def _follower(command: Command, network: Any, tokenizer: Any) -> Any:
    """The trainer of the commanded stage. Only the first process collects rollouts and publishes weights."""
    if command.do == "warm_start":
        rows, output_dir, config, _ = command.what
        return make_warm_start(network, tokenizer, rows, config=config, output_dir=output_dir, callbacks=[])
    output_dir, config, _ = command.what
    return make_trainer(
        network, tokenizer, config=config, output_dir=output_dir, collect=None, publisher=None, callbacks=[]
    )
