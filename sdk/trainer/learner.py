"""The learner: one model, the engine that samples from it, and the two stages that change its weights.

Loads torch; imported only when a run begins. TRL's trainers are synchronous and run in a worker thread.
"""

from __future__ import annotations

import json
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

from ..errors import plain_errors
from ..evaluation.measuring import MEASURED_TEMPERATURE
from ..idle_threads import let_idle_threads_go
from ..policies.models import LoadedModel, load_model
from ..policies.models.quiet_loading import quiet_loading
from ..policies.models.smollm2 import embedded_folder
from ..policies.protocol import Sampling
from ..policies.rendering import ChatRenderer, make_renderer
from ..policies.tool_prompt import describe_trained
from ..progress import Progress
from ..records import Task, TokenRow
from ..rollouts.engine import RolloutEngine
from ..rollouts.forkable import ForkableAgent
from ..rollouts.forks import how_worlds_are_copied
from ..traces.run_folder import RunFolder
from .auditor import AUDIT
from .callbacks import StepMetrics, StopOnRequest, ThinCheckpoints, WarmStartProgress
from .config import TrainConfig
from .curriculum import Curriculum
from .grpo import make_trainer
from .lora import keep_model, load_kept, plain_model, with_adapters
from .processes import holding_device, stage_ended, tell
from .rollout_worker import BROKEN, FIGURES, STAGE, Collector, TrainingStopped
from .sampler import Sampler, open_sampler, publish, sampler_facts
from .shared_prefix import check_fits
from .validation import forget_after
from .warm_start import make_warm_start
from .weights_digest import weights_digest

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
        """Whether the trainer made its last step."""

    def work(self) -> None:
        """In the worker thread: make the trainer, and train to the end or until stopped."""
        self._started.set()
        try:
            if self._stop.is_set():
                return
            with quiet_loading():
                trainer = self._make(StopOnRequest(self._stop))
                trainer.remove_callback(PrinterCallback)  # our progress bars say it
                trainer.train(resume_from_checkpoint=str(self._checkpoint) if self._checkpoint else None)
            self.finished = trainer.state.global_step >= trainer.args.max_steps
        finally:
            let_idle_threads_go()
            self._ended.set()

    async def stop_when_cancelled(self, on_stop: Callable[[], None] | None) -> None:
        """In the event loop, beside `work`: pass a cancellation on to the thread."""
        try:
            await anyio.sleep_forever()
        finally:
            self._stop.set()
            if on_stop is not None:
                on_stop()

    async def wait_for_end(self) -> None:
        """Return once the thread touches nothing any more, also when an interrupt came past the task group."""
        self._stop.set()
        with anyio.CancelScope(shield=True):
            while self._started.is_set() and not self._ended.is_set():
                await anyio.to_thread.run_sync(self._ended.wait, 1.0)


# ---------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_learner(
    model: str | Path | None, *, config: TrainConfig, folder: RunFolder, progress: Progress
) -> AsyncIterator[Learner]:
    """Load the model, start its engine, and stop it at the end."""
    # float32 also on a GPU: with bfloat16 weights and no master copy, small updates round to nothing.
    device = holding_device() if config.engine != "embedded" else None
    load = partial(load_model, str(model) if model is not None else None, dtype="float32", device=device)
    loaded = await anyio.to_thread.run_sync(load)
    if config.shared_prefix:
        check_fits(loaded.model)
    if config.weights_digests == "published":
        folder.record_published(0, await anyio.to_thread.run_sync(weights_digest, loaded.model))
    source = str(model) if model is not None else str(embedded_folder())
    place = folder.path / "vllm"
    if loaded.tool_prompt not in (None, config.tool_prompt):
        progress.say(
            f"the model's prompts showed {describe_trained(loaded.tool_prompt)} of its tools in its training so far; "
            f"in this run: {describe_trained(config.tool_prompt)} (tool_prompt)"
        )
    async with open_sampler(loaded, source=source, config=config, folder=place, progress=progress) as engine:
        if holding_device() is not None:
            loaded.model.to(holding_device())  # the embedded engine has its own copy, on the GPU
        yield Learner(loaded, engine, config=config, folder=folder, progress=progress)


class Learner:
    """A model in training. `agent` speaks with the weights last published."""

    def __init__(
        self, loaded: LoadedModel, engine: Sampler, *, config: TrainConfig, folder: RunFolder, progress: Progress
    ) -> None:
        self.name = loaded.name
        self.model = with_adapters(loaded.model, config)
        self.tokenizer = loaded.tokenizer
        self.renderer: ChatRenderer = make_renderer(loaded.tokenizer, family=loaded.family)
        self.engine = engine
        self.agent = ForkableAgent(engine, self.renderer, name=loaded.name)
        self._version = 0
        self._config = config
        self._folder = folder
        self._progress = progress
        self._note_weights = folder.record_published if config.weights_digests == "published" else None

    async def warm_start(self, rows: Sequence[TokenRow], shown: Mapping[str, int]) -> None:
        """Supervised training on demonstration rows; done once, its weights are kept for a resumed run.

        `shown`: how many demonstrations show how much of the tools, for the record.
        """
        kept = self._folder.checkpoints / "warm_start"
        if self._folder.stage("warm_start") is not None:
            self._load(kept)
        else:
            self._folder.drop_metrics_after(-1, "warm_start")
            output_dir = str(self._folder.checkpoints / "warm_start_trainer")
            tell("warm_start", (list(rows), output_dir, self._config, None))
            with self._progress.track("warm start", self._config.warm_start_steps or 0) as step:
                progress = WarmStartProgress(self._folder, step)

                def make(stop: StopOnRequest) -> Any:
                    return make_warm_start(
                        self.model,
                        self.tokenizer,
                        rows,
                        config=self._config,
                        output_dir=output_dir,
                        callbacks=[progress, stop],
                    )

                await self._run(make)
            self._keep(kept)
            self._folder.record_weights(kept, version=0)
            self._folder.finish_stage("warm_start", {"demonstrations": len(rows), "tool_prompts": dict(shown)})
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
            if checkpoint is not None and done >= self._config.grpo_steps:
                self._load(checkpoint)
            else:
                await self._reinforce(engine, tasks, validation, output_dir, checkpoint, done)
            self._keep(kept)
            self._folder.record_weights(kept, version=self._config.grpo_steps)
            self._folder.finish_stage(STAGE, {"steps": self._config.grpo_steps})
        await self._publish(version=self._config.grpo_steps)

    async def _reinforce(
        self,
        engine: RolloutEngine,
        tasks: Sequence[Task],
        validation: Sequence[Task],
        output_dir: Path,
        checkpoint: Path | None,
        done: int,
    ) -> None:
        with self._progress.track("GRPO", self._config.grpo_steps, done) as step:
            curriculum = Curriculum(tasks, self._config)
            collector = Collector(
                engine, curriculum, config=self._config, folder=self._folder, step=step, validation=validation
            )
            collector.recall(done)

            def make(stop: StopOnRequest) -> Any:
                return make_trainer(
                    self.model,
                    self.tokenizer,
                    config=self._config,
                    output_dir=str(output_dir),
                    collect=collector,
                    publisher=self.engine,
                    note_weights=self._note_weights,
                    callbacks=[
                        StepMetrics(self._folder, collector, curriculum),
                        *([ThinCheckpoints(self._config)] if self._config.validation else []),
                        stop,
                    ],
                )

            if self._config.branches:
                self._progress.say(f"rollouts branch; their worlds {how_worlds_are_copied(engine.source)}")
            tell("grpo", (str(output_dir), self._config, checkpoint))
            async with collector.sampling():
                await self._run(make, checkpoint, on_stop=collector.stop)

    def save(self) -> None:
        """Write the model for use; checkpoints that a finished run no longer needs are removed."""
        # What a trainer leaves in a model's config is not there when a finished run is opened again.
        if not self._folder.has_weights(self._folder.model_dir, self._version):
            self._keep(self._folder.model_dir)
            self._folder.record_weights(self._folder.model_dir, version=self._version)
        for leftover in (STAGE, "warm_start_trainer", "untrained"):
            shutil.rmtree(self._folder.checkpoints / leftover, ignore_errors=True)

    def facts(self) -> dict[str, Any]:
        """What the report says of the model."""
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
    ) -> None:
        """Train in a worker thread, to the end or until cancelled; the thread has ended when this returns or raises.

        Raises what the trainer raises. A cancelled stage never looks finished.
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
            # TRL and the shared-prefix forward patch the instance; the class's own forward comes back.
            plain_model(self.model).__dict__.pop("forward", None)
            self.model.eval()
        if thread.finished:
            stage_ended()
        else:
            await anyio.lowlevel.checkpoint()  # raises where a cancellation is pending
            raise TrainingStopped("training stopped before its last step; the same call goes on from the run folder")

    async def use(self, folder: Path, *, version: int) -> None:
        """Speak with weights that the run has kept, and end with them unless others are used later."""
        self._load(folder)
        await self._publish(version=version)

    def keep(self, folder: Path) -> None:
        """Write the present weights into a folder of the run."""
        self._keep(folder)

    async def _publish(self, *, version: int) -> None:
        self._version = version
        note = self._note_weights
        await anyio.to_thread.run_sync(partial(publish, self.engine, self.model, version=version, note=note))

    def _keep(self, folder: Path) -> None:
        keep_model(
            self.model,
            self.tokenizer,
            folder,
            family=self.renderer.family,
            tool_prompt=self._config.tool_prompt,
            sampling=Sampling(temperature=MEASURED_TEMPERATURE, max_tokens=self._config.limits.max_turn_tokens),
        )

    def _load(self, folder: Path) -> None:
        tell("load", folder)
        load_kept(self.model, folder)


def newest_checkpoint(folder: Path) -> tuple[Path | None, int]:
    """The newest checkpoint that was written to its end, and the steps done in it; (None, 0) where there is none.

    TRL writes `trainer_state.json` last, so a checkpoint without a whole one was cut off by a kill and is removed. One
    that is there and cannot be read (its disk does not answer, say) is an error: nothing is removed for it.
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
