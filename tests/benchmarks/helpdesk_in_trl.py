"""Steps of TRL's own `GRPOTrainer` on the helpdesk: its loop over tools, its `generate`, its update.

    python tests/benchmarks/helpdesk_in_trl.py JOB.json RESULT.json

A process of its own, started by `end_to_end.py` or `first_update.py`, which also write the job. TRL calls the tools in
this process, by the methods of an environment: an advantage over a server. The prompt, the calls and the results are
the same tokens as on our side, and the reward is the same verifier's; both are checked on gold conversations before the
first step.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sdk.process import tune_process

# Before torch is imported, for both contenders: what the `toolbake` command sets for threads and memory.
tune_process()
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # environments are called experimental in every run

Reward = Callable[..., list[float]]

CALLS_BY_TAGS = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}
"""How transformers reads a reply of the embedded model: calls as JSON between tags, the form TRL knows from Qwen."""

RESULT_TOKENS = 280
"""Room for the tools' results, which TRL counts among the tokens of a completion: the most that a quickstart had."""


def environment_class(tasks: Mapping[str, Any]) -> type[Any]:
    """TRL's environment: `reset` with the id of a task, and a method for each tool. What is no tool is no method."""
    from sandboxes.helpdesk import Helpdesk

    shop = Helpdesk()

    class HelpdeskEnvironment:
        def __init__(self) -> None:
            self.world: Any = None

        def reset(self, task_id: str, **_: Any) -> None:
            if self.world is not None:
                self.world.close()
            self.task = tasks[task_id]
            self.world = shop.prepare(self.task.setup)
            self.calls: list[Any] = []
            self.initial_state = dict(self.world.state())

    for tool in shop.tools:
        setattr(HelpdeskEnvironment, tool.name, _method(tool))
    return HelpdeskEnvironment


def _method(tool: Any) -> Callable[..., str]:
    """A tool as a method with the hints and the docstring that transformers wants."""
    from mcp_bridge.records import ToolResult
    from sdk.records import CallRecord, ToolCall

    def call(self: Any, **arguments: Any) -> str:
        result: ToolResult = self.world.call_now(tool.name, arguments)
        number = len(self.calls) + 1
        made = ToolCall(id=f"call_{number}", name=tool.name, arguments=arguments)
        # TRL does not tell the turn, and the verifiers do not ask for it: every call counts as one.
        self.calls.append(CallRecord(turn=number, call=made, result=result))
        return result.text

    kinds = {"string": str, "integer": int}
    hints = {name: kinds[schema["type"]] for name, schema in tool.input_schema["properties"].items()}
    self_and_arguments = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name, hint in hints.items():
        self_and_arguments.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=hint))
    call.__name__ = tool.name
    call.__doc__ = f"{tool.description}\n\nArgs:\n" + "".join(f"    {name}: The {name}.\n" for name in hints)
    call.__annotations__ = hints
    call.__signature__ = inspect.Signature(self_and_arguments)  # type: ignore[attr-defined]
    return call


def speak_as_ours(tokenizer: Any, tools: Iterable[Any]) -> None:
    """The chat template with the tools as an MCP server lists them, in place of what TRL reads off methods: the prompt
    has the same tokens on both sides. And TRL is told how to read calls."""
    listed = json.dumps([tool.as_openai() for tool in tools])  # a literal of Jinja, too
    tokenizer.chat_template = f"{{%- if tools %}}{{% set tools = {listed} %}}{{% endif -%}}{tokenizer.chat_template}"
    tokenizer.response_template = CALLS_BY_TAGS


def verified(verifier: Any, end_token: int) -> Reward:
    """A reward function for TRL: the verdict of one of our verifiers on each of its conversations."""
    from sdk.verifiers import run_verifier

    async def judge(rollouts: Sequence[Any]) -> list[float]:
        verdicts = await asyncio.gather(*(run_verifier(verifier, rollout) for rollout in rollouts))
        return [verdict.score for verdict in verdicts]

    def success(completions: Any, completion_ids: Any, environments: Any, **_: Any) -> list[float]:
        heard = zip(environments, completions, completion_ids, strict=True)
        return asyncio.run(judge([rollout_of(world, said, ids[-1] == end_token) for world, said, ids in heard]))

    return success


def rollout_of(environment: Any, completion: Sequence[Mapping[str, Any]], ended: bool) -> Any:
    """What our verifiers look at. `ended`: whether the policy ended its last reply, rather than a limit."""
    from sdk.records import Message, Rollout

    last = completion[-1]
    answered = ended and last["role"] == "assistant" and not last.get("tool_calls")
    messages = [Message(role=one["role"], content=one["content"]) for one in completion]
    return Rollout(
        id=f"trl/{id(environment)}",
        task=environment.task,
        messages=[*environment.task.opening(), *messages],
        calls=environment.calls,
        answer=last["content"] if answered else "",
        initial_state=environment.initial_state,
        final_state=dict(environment.world.state()),
        turns=sum(one["role"] == "assistant" for one in completion),
    )


def check_gold(
    trainer: Any, renderer: Any, environment: Any, tasks: Iterable[Any], tools: Sequence[Any], reward: Reward
) -> None:
    """Plays demonstrations by TRL's parts. Raises where `renderer`, which is ours, has other tokens, where one does not
    earn 1, or where a conversation without a call earns something."""
    from trl.chat_template_utils import parse_response

    from sdk.policies.token_agent import render_demonstration
    from sdk.records import Message

    tokenizer = trainer.processing_class
    for task in tasks:
        environment.reset(task_id=task.id)
        methods = [getattr(environment, tool.name) for tool in tools]
        ids = tokenizer.apply_chat_template(
            prompt_of(task), tools=methods, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        prompt_length, said, ours = len(ids), [], []
        for message in task.demonstration:
            reply = renderer.encode_reply(message, tools)
            said.append(parse_response(tokenizer, reply, prefix=ids, tools=methods))
            ids, results = ids + reply, []
            ours.append(message)
            for call in said[-1].get("tool_calls") or []:
                name = call["function"]["name"]
                text = str(getattr(environment, name)(**call["function"]["arguments"]))
                results.append({"role": "tool", "name": name, "content": text})
                ours.append(Message(role="tool", name=name, content=text))
            if results:
                said += results
                ids = ids + trainer._get_tool_suffix_ids(results)
        (row,) = render_demonstration(renderer, task.opening(), tools, ours)
        if ids != row.prompt_ids + row.completion_ids:
            raise RuntimeError(f"task {task.id}: TRL reads {tokenizer.decode(ids)!r}, not the tokens of our side")
        if reward([said], [ids[prompt_length:]], [environment]) != [1.0]:
            raise RuntimeError(f"task {task.id}: its gold conversation does not earn 1 in TRL: {said}")
        environment.reset(task_id=task.id)
        if reward([[{"role": "assistant", "content": "Done."}]], [ids], [environment]) != [0.0]:
            raise RuntimeError(f"task {task.id}: an empty answer earns something in TRL")


def prompt_of(task: Any) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in task.opening()]


def make_trainer(job: Mapping[str, Any], folder: str) -> tuple[Any, Callable[[], None]]:
    """TRL's trainer for the job, and what checks it on gold conversations."""
    import torch
    from datasets import Dataset
    from trl import GRPOTrainer

    from sandboxes.helpdesk import Helpdesk
    from sdk.cli.quickstart_options import quickstart_verifier
    from sdk.policies.models import load_model
    from sdk.policies.models.loading import load_tokenizer
    from sdk.policies.rendering import make_renderer
    from sdk.records import Task
    from sdk.trainer.config import TrainConfig

    class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
        rollout_seconds = 0.0
        last_batch: Mapping[str, Any]

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            began = time.perf_counter()
            self.last_batch = super()._generate_and_score_completions(inputs)
            self.rollout_seconds += time.perf_counter() - began
            return self.last_batch

        def _send_telemetry(self) -> None:
            """Nothing is sent from a benchmark."""

    torch.set_num_threads(job["threads"])
    tasks, gold = ([Task.model_validate(task) for task in job[part]] for part in ("tasks", "gold"))
    tools = Helpdesk().tools
    loaded = load_model(job["model"], dtype="float32")
    renderer = make_renderer(load_tokenizer(job["model"]).tokenizer, family=loaded.family)
    speak_as_ours(loaded.tokenizer, tools)
    environment = environment_class({task.id: task for task in [*tasks, *gold]})
    reward = verified(quickstart_verifier(), loaded.tokenizer.eos_token_id)
    trainer = TimedTrainer(
        model=loaded.model,
        reward_funcs=reward,
        args=trl_config(TrainConfig.of(job["config"]), job["rows"], folder),
        train_dataset=Dataset.from_list([{"prompt": prompt_of(task), "task_id": task.id} for task in tasks]),
        processing_class=loaded.tokenizer,
        environment_factory=environment,
    )
    return trainer, lambda: check_gold(trainer, renderer, environment(), gold, tools, reward)


def trl_config(config: Any, rows: int, folder: str) -> Any:
    """The same step in TRL's options. `rows`: conversations that are forwarded at once, as many as memory holds."""
    from trl import GRPOConfig

    grpo, limits = config.grpo, config.limits
    parts = grpo.prompts_per_step * grpo.num_generations // rows
    return GRPOConfig(
        output_dir=folder,
        seed=config.seed,
        max_steps=grpo.max_steps,
        shuffle_dataset=False,
        learning_rate=grpo.learning_rate,
        lr_scheduler_type="constant",
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=parts,
        steps_per_generation=parts,
        num_generations=grpo.num_generations,
        temperature=grpo.temperature,
        loss_type=grpo.loss_type,
        epsilon=grpo.epsilon,
        epsilon_high=grpo.epsilon_high,
        beta=0.0,
        # Of a rollout with all its results; of a turn; and one reply more than rounds of calls.
        max_completion_length=limits.max_tokens + RESULT_TOKENS,
        generation_kwargs={"max_new_tokens": limits.max_turn_tokens},
        max_tool_calling_iterations=limits.max_turns - 1,
        gradient_checkpointing=False,  # on by default in TRL, and slower
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )


def run(job: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Train, and say of each step what it took and gave."""
    from transformers import PrinterCallback, TrainerCallback

    trainer, check = make_trainer(job, folder)
    steps: list[dict[str, float]] = []
    rollouts = job["rows"] * trainer.args.steps_per_generation

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.ended, self.cpu = time.perf_counter(), time.process_time()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" not in logs:
                return
            now, cpu, rollout_s = time.perf_counter(), time.process_time(), trainer.rollout_seconds
            trainer.rollout_seconds = 0.0
            line = {
                "rollout_s": rollout_s,
                "update_s": now - self.ended - rollout_s,
                "cpu_s": cpu - self.cpu,
                "reward": float(logs["reward"]),
                "tokens": round(float(logs["completions/mean_length"]) * rollouts),
                "loss": float(logs["loss"]),
            }
            self.ended, self.cpu = now, cpu
            steps.append(line)
            print(f"TRL, step {len(steps)}: {line}", file=sys.stderr, flush=True)

    check()
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Steps)
    trainer.train()
    return {"steps": steps, "rollouts": rollouts_of(trainer.last_batch), "model": save_beside(trainer, job, folder)}


def rollouts_of(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rollouts of a step as TRL trains them: tokens of prompt and completion, which were sampled, the advantage."""
    sampled_BT = batch["tool_mask"].bool()
    return [
        {
            "prompt_ids": batch["prompt_ids"][b][batch["prompt_mask"][b].bool()].tolist(),
            "completion_ids": batch["completion_ids"][b][batch["completion_mask"][b].bool()].tolist(),
            "sampled": sampled_BT[b][batch["completion_mask"][b].bool()].tolist(),
            "advantage": float(batch["advantages"][b]),
        }
        for b in range(len(batch["prompt_ids"]))
    ]


def save_beside(trainer: Any, job: Mapping[str, Any], folder: str) -> str:
    """The trained weights with the files of the model that they began with; where they are."""
    target = f"{folder}_model"
    shutil.copytree(job["model"], target, ignore=shutil.ignore_patterns("*.safetensors"))
    settings = Path(target, "config.json").read_bytes()
    trainer.model.save_pretrained(target)
    Path(target, "config.json").write_bytes(settings)
    return target


def main() -> None:
    job_file, result_file = map(Path, sys.argv[1:])
    result = run(json.loads(job_file.read_text()), str(result_file.parent / "trl"))
    result_file.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
