"""The first moments of `sdk.train`: what is checked before a folder is written and a model is loaded."""

from __future__ import annotations

import functools
import json
import logging
import re
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from heard import Heard
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

import sdk
from mcp_bridge import SourceError, behaves
from sandboxes.helpdesk import Helpdesk
from sdk.errors import ModelError
from sdk.policies.rendering.template import TemplateRenderer
from sdk.progress import Console
from sdk.traces.run_lock import RunLock
from sdk.trainer.run_identity import EMBEDDED_BYTES, bytes_still_needed, weight_bytes
from sdk.verifiers import all_of, answer_match, as_expected, required_calls

SECRET = "sk-THE-SECRET"
TINY = {
    "warm_start.max_steps": 0,
    "grpo.prompts_per_step": 1,
    "evaluation.heldout": 2,
    "probes.tasks": 0,
    "evaluation.validation": 0,
}
TASKS = [{"id": f"t{n}", "prompt": f"What is {n} + 1?", "expected": {"answer": str(n + 1)}} for n in range(6)]

NO_MODEL = str(Path(__file__).parent)
"""A folder without a model: what loads it fails."""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def look() -> str:
    """Look."""
    return "nothing"


SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("shelf", log_level="ERROR")
server.tool(name="look", structured_output=False)(lambda: "a shelf")
server.tool(name="drop", structured_output=False)(lambda: "dropped")
server.run("stdio")
"""


def answers(rollout: sdk.Rollout) -> bool:
    return rollout.task.expected["answer"] in rollout.answer


async def started(folder: Path | None, **changed: Any) -> None:
    """A call of `sdk.train` that gets as far as loading its model, which is not there."""
    call: dict[str, Any] = {"tools": [add], "model": NO_MODEL, "config": TINY, **changed}
    await sdk.train_async(prompts=TASKS, verifier=answers, output_dir=folder, **call)


def model_folder(path: Path, size: int, **config: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for half in (1, 2):
        (path / f"model-0000{half}-of-00002.safetensors").write_bytes(b"\0" * (size // 2))
    return path


async def test_a_mistyped_option_leaves_the_folder_free_for_the_corrected_call(tmp_path: Path) -> None:
    with pytest.raises(sdk.ModelError):
        await started(tmp_path / "run")
    with pytest.raises(sdk.ModelError):  # and not that the folder holds another run
        await started(tmp_path / "run", config={**TINY, "seed": 3})
    stored = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert stored["train"]["seed"] == 3


async def test_only_who_may_write_a_run_is_told_that_it_goes_on(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(sdk.ModelError):
        await started(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0}\n')
    with closing(RunLock(tmp_path / "run" / ".lock")), pytest.raises(sdk.RunFolderError, match="this process"):
        await started(tmp_path / "run", progress=Console())
    assert "going on with it" not in capsys.readouterr().err
    with pytest.raises(sdk.ModelError):
        await started(tmp_path / "run", progress=Console())
    assert "going on with it" in capsys.readouterr().err


@pytest.mark.parametrize("launched", ["no", "bf16"])
async def test_a_run_goes_on_in_the_precision_it_was_launched_with_only(
    launched: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)
    with pytest.raises(sdk.ModelError):
        await started(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0}\n')
    with pytest.raises(sdk.ModelError):
        await started(tmp_path / "run")
    other = {"no": "bf16", "bf16": "no"}[launched]
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", other)
    with pytest.raises(sdk.RunFolderError, match=f'mixed_precision is "{launched}" in the folder and "{other}" now'):
        await started(tmp_path / "run")


async def test_a_run_does_not_go_on_from_another_base_model_of_the_same_name(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    model = shutil.copytree(tiny_model_dir, tmp_path / "base")
    start = functools.partial(
        started, tmp_path / "run", model=str(model), config=TINY | {"grpo.max_steps": 1, "grpo.num_generations": 2}
    )
    await start()
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(sdk.RunFolderError, match=r"weights\..*model\.safetensors is"):
        await start()


async def test_the_option_bf16_is_the_same_run_whatever_the_launcher_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for launched in ("no", "bf16"):
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)
        with pytest.raises(sdk.ModelError):
            await started(tmp_path / "run", config={**TINY, "batching.bf16": True})
        (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0}\n')


async def test_tools_that_cannot_be_used_leave_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="cannot be started"):
        await started(tmp_path / "run", tools=["/no/such/program"])
    assert not (tmp_path / "run").exists()


async def test_the_folder_says_what_the_run_is_in_a_few_lines(tmp_path: Path) -> None:
    with pytest.raises(sdk.ModelError):
        await started(tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert stored["verifier"]["name"] == "answers"
    assert (stored["train_tasks"]["count"], stored["heldout_tasks"]["count"]) == (4, 2)
    assert stored["tools"]["source"] == ["function test_run_opening.add"]
    digests = [stored[part]["digest"] for part in ("verifier", "tools", "train_tasks", "heldout_tasks")]
    assert len(set(digests)) == 4


@pytest.mark.parametrize("model", [("http://x/v1", "m", SECRET), {"base_url": "http://x/v1", "api_key": SECRET}])
async def test_a_model_that_cannot_be_trained_leaves_no_key_anywhere(tmp_path: Path, model: Any) -> None:
    with pytest.raises(sdk.ConfigError, match="an endpoint can only be evaluated") as error:
        await started(tmp_path / "run", model=model)
    assert SECRET not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
async def test_adapters_for_experts_that_they_cannot_reach_are_refused_before_anything_is_sampled(
    experts_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(sdk.ConfigError, match=r"lora\.r is 4, but model\.layers\.1\.mlp\.experts of the model has"):
        await started(tmp_path / "run", model=str(experts_dir), config={**TINY, "lora.r": 4})
    assert not list((tmp_path / "run").glob("rollouts/*.jsonl"))


def shop() -> MCPServer:
    """A live server: what it cancels is cancelled."""
    server = MCPServer("shop", log_level="ERROR")

    @server.tool(annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True))
    async def cancel_order(order_id: str) -> str:
        """Cancel an order."""
        return f"cancelled {order_id}"

    return server


async def test_destructive_tools_of_a_live_server_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="destructive tools for real") as refused:
        await started(tmp_path / "run", tools=[add, shop()])
    assert "'cancel_order' of in-process server 'shop'" in str(refused.value)
    assert '"toolbake": {"deny": ["cancel_order"]}' in str(refused.value)
    assert "config={'allow_destructive': ['cancel_order']}" in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("allowed", [("cancel_order",), ("cancel_*",), ()])
async def test_destructive_tools_that_are_named_or_simulated_are_trained_on(tmp_path: Path, allowed: Any) -> None:
    tools = shop() if allowed else Helpdesk()
    with pytest.raises(sdk.ModelError):  # the guard let it through to the model, which is not there
        await started(tmp_path / "run", tools=tools, config={**TINY, "allow_destructive": allowed})


async def test_a_name_that_no_tool_has_cannot_be_allowed(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="allow_destructive names 'cancel_ordr', which is none of the tools: cancel_"):
        await started(tmp_path / "run", tools=shop(), config={**TINY, "allow_destructive": ["cancel_ordr"]})


async def test_a_demonstration_that_a_limit_cuts_off_is_refused_before_the_training(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    """It would teach calls, and never how to end."""

    def add(a: int, b: int) -> int:
        return a + b

    call = {"id": "c", "name": "add", "arguments": {"a": 1, "b": 2}}
    steps = [{"role": "assistant", "tool_calls": [call]}, {"role": "assistant", "content": "3"}]
    tasks = [{"prompt": f"1 + 2, for the {number}. time?", "demonstration": steps} for number in range(3)]
    with pytest.raises(sdk.ConfigError, match=r"not played to their end; .* turn_limit ended after 1: raise limits"):
        await sdk.train_async(
            behaves(read_only=True)(add),
            tasks,
            lambda rollout: bool(rollout.calls),
            str(tiny_model_dir),
            tmp_path / "run",
            {**TINY, "warm_start.max_steps": 1, "limits": {"max_turns": 1}},
        )


def no_reply(*_: Any) -> list[int]:
    raise ModelError("the renderer writes replies without the token that ends them")


@pytest.mark.parametrize("shown", [True, False])
async def test_where_no_reply_can_be_written_there_is_no_warm_start(
    tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    monkeypatch.setattr(TemplateRenderer, "encode_reply", no_reply)
    steps = {"demonstration": [{"role": "assistant", "content": "2"}]} if shown else {}
    tasks = [{**task, **steps} for task in TASKS]
    heard = Heard()
    options = {"warm_start.max_steps": 1, "grpo.max_steps": 1, "grpo.num_generations": 2, "evaluation.max_served": 0}
    given = (look_up, tasks, lambda rollout: True, str(tiny_model_dir), tmp_path / "run")
    how = {**TINY, **options, "limits": {"max_turns": 1, "max_turn_tokens": 4}}
    if shown:
        with pytest.raises(sdk.ConfigError, match=r"learned from: the renderer .*; set warm_start\.max_steps to 0"):
            await sdk.train_async(*given, how, progress=heard)
    else:
        await sdk.train_async(*given, how, progress=heard)
        assert any("no demonstration is searched, because none can be learned from" in line for line in heard.lines)


@behaves(read_only=True)
def look_up(name: str) -> str:
    """Look it up."""
    return name


async def test_evaluating_on_destructive_live_tools_warns_and_the_report_names_them(
    caplog: pytest.LogCaptureFixture, tiny_model_dir: Path
) -> None:
    with caplog.at_level(logging.WARNING):
        report = await sdk.evaluate_async(
            shop(), TASKS[:1], answers, model=str(tiny_model_dir), limits={"max_turns": 1, "max_turn_tokens": 4}
        )
    assert "these tools may destroy something real, and the policy may call them: cancel_order" in caplog.text
    assert report.run["live_destructive_tools"] == ["cancel_order"]


async def test_tools_that_were_left_out_are_in_the_report_with_the_reason(tmp_path: Path, tiny_model_dir: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    faults = {"tools": {"*": [{"fault": "Latency", "seconds": 0.1}]}}
    options = {"deny": ["drop"], "faults": faults}
    entry = {"command": sys.executable, "args": [str(tmp_path / "server.py")], "toolbake": options, "gallery": "x"}
    servers = {"shelf": entry, "old": {"command": "none", "disabled": True}}
    report = await sdk.evaluate_async(
        [{"mcpServers": servers}, look],
        TASKS[:1],
        answers,
        model=str(tiny_model_dir),
        limits={"max_turns": 1, "max_turn_tokens": 4},
    )
    assert len(report.run["tools_left_out"]) == 1
    assert report.run["tools_left_out"][0].startswith("drop of shelf (")
    assert report.run["tools_left_out"][0].endswith("deny has 'drop'")
    assert set(report.run["tools_renamed"]) == {"shelf__look", "functions__look"}
    assert "deny has 'drop'" in report.markdown()
    unknown, disabled = report.run["configuration"]
    assert unknown.startswith("server 'shelf' in the dict: 'gallery' does nothing here")
    assert disabled == "server 'old' in the dict is left out: it is disabled"
    assert list(report.run["injected_faults"].values()) == [faults]
    assert "'gallery' does nothing here" in report.markdown()


async def test_too_little_disk_space_is_said_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_folder(tmp_path / "model", 4_000_000)
    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=30_000_000))
    with pytest.raises(sdk.RunFolderError, match=r"0\.03 GB free and the run needs about 0\.04 GB; free some, or"):
        await started(tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=41_000_000))
    with pytest.raises(sdk.ModelError):
        await started(tmp_path / "run", model=model)


def test_weights_are_counted_as_they_are_trained(tmp_path: Path) -> None:
    assert weight_bytes(None) == EMBEDDED_BYTES
    assert weight_bytes("no-such-owner/no-such-model") == 0
    assert weight_bytes("not a name of the hub!") == 0
    assert weight_bytes(model_folder(tmp_path / "full", 1000, dtype="float32")) == 1000
    assert weight_bytes(str(model_folder(tmp_path / "half", 1000, torch_dtype="bfloat16"))) == 2000
    both = model_folder(tmp_path / "both", 1000)
    (both / "pytorch_model.bin").write_bytes(b"\0" * 1000)
    assert weight_bytes(both) == 1000


def test_what_a_resumed_run_has_written_already_needs_no_more_space(tmp_path: Path) -> None:
    model, folder, plain = model_folder(tmp_path / "model", 1000), tmp_path / "run", sdk.TrainConfig()
    assert bytes_still_needed(model, folder, plain) == 10_000
    adapters = sdk.TrainConfig.of({"lora.r": 2})
    assert bytes_still_needed(model, folder, adapters) == 3_000  # checkpoints hold adapters alone
    without_warm_start = sdk.TrainConfig.of({"lora.r": 2, "warm_start.max_steps": 0})
    assert bytes_still_needed(model, folder, without_warm_start) == 2_000
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "model.safetensors").write_bytes(b"\0" * 3000)
    assert bytes_still_needed(model, folder, plain) == 7_000
    (folder / "model.safetensors").write_bytes(b"\0" * 30_000)
    assert bytes_still_needed(model, folder, plain) == 0


def test_checkpoints_that_are_all_kept_for_a_choice_need_their_space(tmp_path: Path) -> None:
    model, folder = model_folder(tmp_path / "model", 1000), tmp_path / "run"
    options: dict[str, Any] = {"grpo.max_steps": 13, "grpo.save_steps": 2}
    # Seven checkpoints of three copies; untrained, after the warm start, after GRPO, the chosen one and the final one.
    assert bytes_still_needed(model, folder, sdk.TrainConfig.of({"evaluation.validation": 0.1, **options})) == 26_000
    # Of a long run five, the two latest and the one being written.
    assert (
        bytes_still_needed(model, folder, sdk.TrainConfig.of({"evaluation.validation": 0.1, "grpo.max_steps": 900}))
        == 29_000
    )
    assert bytes_still_needed(model, folder, sdk.TrainConfig.of({**options})) == 10_000
    # A third checkpoint is there before the first of them goes; each has the reference beside it.
    assert bytes_still_needed(model, folder, sdk.TrainConfig.of({"grpo.beta": 0.1, **options})) == 13_000


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"calls": [{"name": "get_ordr"}]}, "the tool 'get_ordr', which there is not; did you mean 'get_order'"),
        ({"calls": [{"name": "get_order", "arguments": {"nummer": "7"}}]}, "the argument 'nummer', .* are order_id"),
        ({"forbid": ["cancel_*"]}, r"forbid names the tool 'cancel_\*', which there is not"),
        ({"forbid": [{"name": "get_ordr"}]}, "forbid names the tool 'get_ordr', .*did you mean 'get_order'"),
        (
            {"forbid": [{"name": "get_order", "arguments": {"nummer": {"$absent": True}}}]},
            "forbid gives get_order the argument 'nummer', .* are order_id",
        ),
        (
            {"changes": [{"table": "order", "key": "7", "column": "status", "before": "open", "after": "lost"}]},
            "the table 'order', .*did you mean 'orders'",
        ),
    ],
)
def test_a_task_that_nobody_can_win_or_that_forbids_what_nobody_can_do_is_refused_before_a_folder_is_written(
    expected: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tasks = [{"id": f"t{n}", "prompt": f"Order {n}?", "expected": {"calls": [{"name": "get_order"}]}} for n in range(5)]
    tasks.append({"id": "bad", "prompt": "The last?", "expected": expected})
    with pytest.raises(sdk.ConfigError, match=f"^task 'bad': .*{message}.*Correct it"):
        sdk.train(Helpdesk(), tasks, as_expected(), NO_MODEL, tmp_path / "run", TINY)
    assert not (tmp_path / "run").exists()
    heard = Heard()
    with pytest.raises(sdk.ModelError):  # a verifier of the user's may know what is meant
        sdk.train(Helpdesk(), tasks, answers, NO_MODEL, tmp_path / "run", TINY, progress=heard)
    assert re.search(f"warning: task 'bad': .*{message}", "\n".join(heard.lines))


def test_a_tool_that_a_verifier_forbids_and_that_there_is_not_is_refused(tmp_path: Path) -> None:
    tasks = [{"prompt": f"Order {n}?", "expected": {"calls": [{"name": "get_order"}], "answer": "7"}} for n in range(5)]
    verifier = all_of(answer_match(), required_calls(forbid=("cancel_ordr",)))
    with pytest.raises(sdk.ConfigError, match=r"forbid=\.\.\.\) names the tool 'cancel_ordr', .*mean 'cancel_order'"):
        sdk.train(Helpdesk(), tasks, verifier, NO_MODEL, tmp_path / "run", TINY)


class Enough(Exception):
    """All is seen."""


@pytest.mark.parametrize(("engine", "where"), [("vllm", "cpu"), ("embedded", None)])
def test_beside_vllm_the_model_stays_in_main_memory_until_the_servers_have_started(
    engine: str, where: str | None, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sdk.trainer import learner

    loaded: list[str | None] = []

    def load(*given: Any, device: str | None = None, **more: Any) -> Any:
        loaded.append(device)  # None: on the GPU, if there is one
        return whole(*given, device="cpu", **more)

    def start(*_: Any, **__: Any) -> Any:
        raise Enough(*loaded)

    whole = learner.load_model
    monkeypatch.setattr(learner, "load_model", load)
    monkeypatch.setattr(learner, "open_sampler", start)
    servers = {"urls": ["http://127.0.0.1:9"]} if engine == "vllm" else {}
    config = {**TINY, "engine": engine, **({"vllm": servers} if servers else {})}
    with pytest.raises(Enough) as caught:
        sdk.train([add], TASKS, as_expected(), str(tiny_model_dir), tmp_path / "run", config)
    assert caught.value.args == (where,)  # vLLM measures what is free on its GPU while it starts
