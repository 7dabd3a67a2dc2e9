"""One part of `all_parts`, in a process of its own: prints its rows as JSON.

    python tests/benchmarks/gpu/parts.py NAME FOLDER cuda|cpu [--tiny]

Axes: B rows, L tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sdk.process import tune_process

tune_process()

import torch  # noqa: E402

# The measure is float32, not what a GPU takes for it by default.
torch.backends.cuda.matmul.allow_tf32 = False

Row = dict[str, Any]


class Machine:
    """The device, and the sizes of what is measured there."""

    def __init__(self, device: str, *, tiny: bool, folder: Path) -> None:
        self.device, self.tiny, self.folder = device, tiny, folder
        self.scratch = tempfile.TemporaryDirectory()
        self.rounds = 1 if tiny else 3

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object], *, rounds: int | None = None) -> tuple[float, float]:
        """(median seconds, peak GB of the GPU), after a round that warms up."""
        work()
        self.wait()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        taken = []
        for _ in range(rounds or self.rounds):
            began = time.perf_counter()
            work()
            self.wait()
            taken.append(time.perf_counter() - began)
        peak = torch.cuda.max_memory_allocated() / 1e9 if self.device == "cuda" else 0.0
        return statistics.median(taken), peak

    def measured(self, work: Callable[[], object]) -> Row:
        """The columns of `seconds`; where the GPU's memory does not do, they say so."""
        try:
            seconds, peak = self.seconds(work)
        except torch.OutOfMemoryError:
            return {"seconds": "out of memory"}
        return {"seconds": seconds, "peak GB": peak}

    def model(self, size: str, dtype: torch.dtype, *, attention: str = "sdpa") -> Any:
        """Random weights of an architecture (Llama 3.2 1B, Qwen3 4B) with the embedded model's vocabulary."""
        from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

        small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        shared = {"vocab_size": 49152, "tie_word_embeddings": True, "max_position_embeddings": 8192}
        shared |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
        if size == "1B":
            full = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
            config: Any = LlamaConfig(
                **(small if self.tiny else full), num_key_value_heads=2 if self.tiny else 8, **shared
            )
        else:
            full = {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32}
            heads = {"num_key_value_heads": 2 if self.tiny else 8, "head_dim": 16 if self.tiny else 128}
            config = Qwen3Config(**(small if self.tiny else full), **heads, **shared)
        torch.manual_seed(0)
        with torch.device(self.device):
            made = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
        return made.eval()

    def embedded(self, dtype: torch.dtype) -> Any:
        from sdk.policies.models import load_model

        return load_model(dtype=dtype, device=self.device)


@contextlib.contextmanager
def engine_of(model: Any) -> Iterator[Any]:
    from sdk.policies.embedded import EmbeddedEngine

    with EmbeddedEngine(model, max_rows=256) as engine:
        yield engine


def prompts(count: int, tokens: int) -> list[list[int]]:
    chance = torch.Generator().manual_seed(0)
    ids: list[list[int]] = torch.randint(10, 49_000, (count, tokens), generator=chance).tolist()
    return ids


def sampled(engine: Any, rows: list[list[int]], new: int) -> list[Any]:
    from sdk.policies.protocol import Sampling

    async def go() -> list[Any]:
        sampling = Sampling(max_tokens=new)
        return await asyncio.gather(*(engine.sample(row, sampling=sampling, seed=i) for i, row in enumerate(rows)))

    return asyncio.run(go())


# What is right


def conformance_engine(on: Machine) -> list[Row]:
    """In float32 the engine is exact; in bfloat16 it is as near to float32 as a plain forward in bfloat16 is."""
    rows, exact = [], None
    for dtype in (torch.float32, torch.bfloat16):
        if on.tiny:
            model = on.model("1B", dtype) if exact is None else copy.deepcopy(exact).to(dtype)
        else:
            model = on.embedded(dtype).model
        model.generation_config.eos_token_id = model.config.eos_token_id = None
        exact = exact or model
        asked = prompts(4, 40)
        with engine_of(model) as engine:
            together = sampled(engine, [row for row in asked for _ in range(4)], 24)
        with engine_of(model) as engine:
            alone = sampled(engine, [asked[0]], 24)[0]
        engine_gaps, plain_gaps = [], []
        for place, completion in enumerate(together):
            ids = torch.tensor([asked[place // 4] + completion.token_ids], device=on.device)
            wanted, plain = (_forward_logprobs(one, ids, 24) for one in (exact, model))
            told = torch.tensor(completion.logprobs, device=on.device)
            engine_gaps.append((told - wanted).abs())
            plain_gaps.append((plain - wanted).abs())
        ours, theirs = torch.cat(engine_gaps), torch.cat(plain_gaps)
        same = alone.token_ids == together[0].token_ids
        right = ours.max() < 1e-3 and same if dtype == torch.float32 else ours.mean() < 1.5 * theirs.mean()
        row = {
            "dtype": str(dtype),
            "mean gap to the float32 forward, nats": ours.mean().item(),
            "largest": ours.max().item(),
            "of a plain forward in this dtype: mean": theirs.mean().item(),
            "its largest": theirs.max().item(),
            "same tokens alone and together": same,
        }
        if not right:
            raise AssertionError(str(row))
        rows.append(row)
    return rows


def _forward_logprobs(model: Any, ids_BL: torch.Tensor, new: int) -> torch.Tensor:
    """Of the last tokens of one row, [new], nats."""
    with torch.inference_mode():
        logits_TV = model(ids_BL).logits[0, -new - 1 : -1].float()
    return logits_TV.log_softmax(-1)[range(new), ids_BL[0, -new:]]


def conformance_gradients(on: Machine) -> list[Row]:
    shape, rows = _group(on, 4, 48, 24), []
    for bf16, bound in ((False, 1e-3), (True, 0.1)):
        found = {}
        for shared in (True, False):
            trainer, collated = _trainer(on, on.model("1B", torch.float32), shape, shared=shared, bf16=bf16)
            for part in collated:
                trainer.accelerator.backward(trainer.compute_loss(trainer.model, {"parts": [part]}))
            found[shared] = torch.cat(
                [w.grad.flatten().float() for w in trainer.model.parameters() if w.grad is not None]
            )
        apart = ((found[True] - found[False]).norm() / found[False].norm()).item()
        if not apart < bound:
            raise AssertionError(f"the gradients are {apart} apart, in bfloat16: {bf16}")
        rows.append({"passes in": "bfloat16" if bf16 else "float32", "relative distance of the gradients": apart})
    return rows


TRAIN = """
import json, sys, sdk
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
def coin(rollout):
    return sum(map(ord, rollout.messages[-1].content)) % 2 == 0
sdk.train([add], [f"What is {n} + 1?" for n in range(6)], coin, model=sys.argv[1], output_dir=sys.argv[2], config={
    "probes.tasks": 0, "warm_start.max_steps": 0, "grpo.max_steps": int(sys.argv[3]), "grpo.save_steps": 1,
    "grpo.prompts_per_step": 2, "grpo.num_generations": 4, "evaluation.heldout": 1, "evaluation.validation": 0,
    "limits": {"max_turns": 1, "max_turn_tokens": int(sys.argv[4]), "max_tokens": int(sys.argv[4])},
    **json.loads(sys.argv[5])})
"""


def conformance_resume(on: Machine) -> list[Row]:
    from safetensors.torch import load_file

    from sdk.policies.models.smollm2 import embedded_folder

    model = _saved(on, "1B") if on.tiny else embedded_folder()
    whole, broken = (Path(on.scratch.name) / name for name in ("whole", "broken"))
    _train(on, model, whole, steps=3, tokens=16)
    process = _training(on, model, broken, steps=3, tokens=16)
    checkpoint = broken / "checkpoints" / "grpo" / "checkpoint-1" / "trainer_state.json"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not checkpoint.exists():
        raise AssertionError("the training ended before its first checkpoint")
    _train(on, model, broken, steps=3, tokens=16)
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (whole, broken))
    apart = max((one[name].float() - other[name].float()).abs().max().item() for name in one)
    start = load_file(model / "model.safetensors")
    moved = max((one[name].float() - start[name].float()).abs().max().item() for name in one)
    if not apart <= moved:
        raise AssertionError(f"the weights are {apart} apart, and the training moved them by {moved}")
    return [{"largest difference of a weight": apart, "largest change by the training": moved}]


# How fast it is


def forward(on: Machine, size: str) -> list[Row]:
    rows, (batch, length) = [], (1, 32) if on.tiny else (8, 1024)
    ids_BL = torch.tensor(prompts(batch, length), device=on.device)
    attentions = ["sdpa", *(["flash_attention_2"] if importlib.util.find_spec("flash_attn") and not on.tiny else [])]
    for dtype in (torch.float32, torch.bfloat16):
        for attention in attentions if dtype == torch.bfloat16 else attentions[:1]:
            model = on.model(size, dtype, attention=attention)
            # Compiling takes half a minute and more, and nobody who compiles trains or serves in float32.
            for compiled in (False, True) if dtype == torch.bfloat16 and not on.tiny else (False,):
                run = torch.compile(model) if compiled else model

                def work(run: Any = run) -> None:
                    with torch.inference_mode():
                        run(ids_BL, logits_to_keep=1)

                seconds, peak = on.seconds(work)
                rows.append(
                    {
                        "dtype": str(dtype),
                        "attention": attention,
                        "compiled": compiled,
                        "seconds": seconds,
                        "tokens a second": batch * length / seconds,
                        "peak GB": peak,
                    }
                )
            del model, run
            _free(on)
    return rows


def step(on: Machine, size: str) -> list[Row]:
    rows = []
    shapes = ((2, 16, 8),) if on.tiny else ((8, 512, 64), (4, 256, 256))
    for members, prompt, completion in shapes:
        for bf16 in (False, True):
            for shared in (True, False):
                model = on.model(size, torch.float32)
                trainer, collated = _trainer(
                    on, model, _group(on, members, prompt, completion), shared=shared, bf16=bf16
                )

                def work(trainer: Any = trainer, collated: Any = collated) -> None:
                    for part in collated:
                        trainer.accelerator.backward(trainer.compute_loss(trainer.model, {"parts": [part]}))
                    trainer.model.zero_grad()

                rows.append(
                    {
                        "rows x prompt x completion": f"{members} x {prompt} x {completion}",
                        "passes in": "bfloat16" if bf16 else "float32",
                        "forward": "shared prefixes" if shared else "TRL's, padded",
                        **on.measured(work),
                    }
                )
                del trainer, collated, model, work
                _free(on)
    return rows


def rollouts(on: Machine, size: str) -> list[Row]:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    groups, members, length, new = (2, 2, 16, 8) if on.tiny else (8, 8, 256, 64)
    asked = [row for row in prompts(groups, length) for _ in range(members)]
    loaded = on.embedded(torch.bfloat16).model if size == "embedded" else on.model(size, torch.bfloat16)
    loaded.generation_config.eos_token_id = loaded.config.eos_token_id = None
    settings = GenerationConfig(do_sample=True, max_new_tokens=new, pad_token_id=0)
    # On a CPU it would take most of the memory that is free for its cache.
    cache = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=256) if on.device == "cpu" else None
    rows = []

    def note(who: str, work: Callable[[], int], *, rounds: int | None = None) -> None:
        made = 0

        def counted() -> None:
            nonlocal made
            made = work()

        seconds, peak = on.seconds(counted, rounds=rounds)
        if made != len(asked) * new:
            raise RuntimeError(f"{made} tokens in place of {len(asked) * new}")
        rows.append({"by": who, "seconds": seconds, "tokens a second": made / seconds, "peak GB": peak})

    with engine_of(loaded) as engine:

        def by_engine() -> int:
            engine.publish(loaded.state_dict(), version=engine.version + 1)  # nothing stored
            return sum(len(one.token_ids) for one in sampled(engine, asked, new))

        note("embedded engine", by_engine)
    _free(on)
    ids_BL = torch.tensor(asked, device=on.device)

    def by_generate() -> int:
        with torch.inference_mode():
            return len(asked) * (loaded.generate(ids_BL, generation_config=settings).shape[1] - length)

    note("`generate`, one batch", by_generate)
    _free(on)

    def by_continuous_batching() -> int:
        made = loaded.generate_batch(
            inputs=asked, generation_config=settings, continuous_batching_config=cache, progress_bar=False
        )
        if broken := [one.error for one in made.values() if one.error]:
            raise RuntimeError(broken[0])
        return sum(map(len, (one.generated_tokens for one in made.values())))

    try:
        # Its set-up and the memory of its cache are in each round, as in each call of a user.
        note("transformers' continuous batching", by_continuous_batching, rounds=1)
    except Exception as error:  # another library's; the others are measured all the same
        rows.append({"by": f"transformers' continuous batching: {type(error).__name__}: {str(error)[:80]}"})
    return rows


END_TO_END: dict[str, dict[str, Any]] = {"1B": {}, "4B": {"lora.r": 16, "batching.bf16": True}}
"""What is set for a size. All weights of 4B with Adam's moments and a checkpoint take more than one GPU has."""


def end_to_end(on: Machine, size: str) -> list[Row]:
    from sdk.traces import RunFolder

    folder = Path(on.scratch.name) / "run"
    _train(on, _saved(on, size), folder, steps=2, tokens=8 if on.tiny else 128, options=END_TO_END[size])
    return [
        {
            "step": line["step"],
            "tokens sampled": line["sampled_tokens"],
            **{name: line[name] for name in ("seconds/rollout", "seconds/update", "seconds/publish")},
            "largest sampler gap, nats": line.get("sampler_gap/max"),
        }
        for line in RunFolder.open_to_read(folder).read_metrics()
        if line["stage"] == "grpo"
    ]


def quickstart(on: Machine) -> list[Row]:
    from sdk.traces import RunFolder

    folder = on.folder / "quickstart"
    command = [sys.executable, "-m", "toolbake", "quickstart", "--output-dir", str(folder)]
    command += ["--steps", "1", "--heldout", "2", "--prompts", "2"] if on.tiny else []
    shutil.rmtree(folder, ignore_errors=True)  # the seconds are those of a whole run
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=sys.stderr, env=_seeing(on))
    seconds = time.perf_counter() - began
    report = json.loads((folder / "report.json").read_text())
    shares = {name: row["success"]["interval"]["estimate"] for name, row in report["conditions"].items()}
    steps = [line for line in RunFolder.open_to_read(folder).read_metrics() if line["stage"] == "grpo"]
    stages = {name: sum(line[f"seconds/{name}"] for line in steps) for name in ("rollout", "update", "publish")}
    return [{"seconds": seconds, "GRPO steps": len(steps), **stages, **shares}]


# What they share


def _free(on: Machine) -> None:
    import gc

    gc.collect()
    if on.device == "cuda":
        torch.cuda.empty_cache()


def _group(on: Machine, members: int, prompt: int, completion: int) -> list[list[Any]]:
    from sdk.records import TokenRow
    from sdk.trainer.batch import TrainRow

    head, *tails = prompts(members + 1, max(prompt, completion))
    rows = [
        TokenRow(
            prompt_ids=head[:prompt],
            completion_ids=tail[:completion],
            sampled=[True] * completion,
            logprobs=[-10.0] * completion,
            versions=[0] * completion,
        )
        for tail in tails
    ]
    return [[TrainRow(row, 1.0 if place % 2 else -1.0) for place, row in enumerate(rows)]]


class _Nobody:
    def publish(self, state: Any, *, version: int) -> None:
        """Nothing samples here."""


def _trainer(on: Machine, model: Any, groups: list[list[Any]], *, shared: bool, bf16: bool) -> tuple[Any, list[Any]]:
    """A trainer and the parts of its step."""
    from sdk.policies.models.loading import load_tokenizer
    from sdk.trainer.batch import Batch, BatchStats
    from sdk.trainer.config import TrainConfig
    from sdk.trainer.grpo import make_trainer
    from sdk.trainer.micro_batches import Plan, collate_batch

    config = TrainConfig.of(
        {
            "grpo.num_generations": len(groups[0]),
            "grpo.prompts_per_step": 1,
            "grpo.max_steps": 1,
            "batching.shared_prefix": shared,
            "batching.bf16": bf16,
        }
    )
    trainer = make_trainer(
        model,
        load_tokenizer().tokenizer,
        config=config,
        output_dir=tempfile.mkdtemp(dir=on.scratch.name),
        collect=lambda number: Batch(),
        publisher=_Nobody(),
        callbacks=[],
    )
    scored = sum(len(row.tokens.completion_ids) for row in groups[0])
    batch = Batch(groups=groups, stats=BatchStats(scored_tokens=scored, scored_rows=len(groups[0])))
    plan = Plan(parts=1, shared_prefix=shared)
    collated = collate_batch(batch, plan, loss_type="dapo", pad_id=0, device=on.device)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer, [part for parts in collated for part in parts]


def _saved(on: Machine, size: str) -> Path:
    """A folder with random weights and the embedded model's tokenizer."""
    from sdk.policies.models import save_model
    from sdk.policies.models.loading import load_tokenizer

    folder = on.folder / f"model-{size}"
    if not folder.exists():
        save_model(on.model(size, torch.bfloat16), load_tokenizer().tokenizer, folder)
    return folder


def _seeing(on: Machine) -> dict[str, str]:
    return {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if on.device == "cpu" else {})}


def _training(
    on: Machine, model: Path, folder: Path, *, steps: int, tokens: int, options: dict[str, Any] | None = None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", TRAIN, str(model), str(folder), str(steps), str(tokens), json.dumps(options or {})]
    return subprocess.Popen(command, stdout=sys.stderr, env=_seeing(on))


def _train(
    on: Machine, model: Path, folder: Path, *, steps: int, tokens: int, options: dict[str, Any] | None = None
) -> None:
    if _training(on, model, folder, steps=steps, tokens=tokens, options=options).wait():
        raise AssertionError(f"the training into {folder} failed")


def main() -> None:
    name, folder, device, *tiny = sys.argv[1:]
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU here; give --device cpu --tiny to test this program")
    on = Machine(device, tiny=bool(tiny), folder=Path(folder))
    what, _, size = name.rpartition("_")
    found = globals()[name](on) if name in globals() else globals()[what](on, size)
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "trl")}
    (on.folder / "machine.json").write_text(json.dumps({"machine": machine, **versions}))
    print(json.dumps({"rows": found}), flush=True)


if __name__ == "__main__":
    main()
