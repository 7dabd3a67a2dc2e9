"""The check of an export: the run's own questions are asked at what was written, and what differs is named."""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from other_environments import python_of
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import sdk
from mcp_bridge.records import Tool
from sdk.cli.app import app
from sdk.connecting import connect
from sdk.errors import ConfigError, PolicyFailure
from sdk.evaluation.measurement import SERVED
from sdk.evaluation.report import note_conditions
from sdk.exporting import check_export, export
from sdk.policies.models import save_model
from sdk.policies.protocol import Sampling
from sdk.records import Message, Rollout, ToolCall, Verdict
from sdk.traces import RunFolder

PLACES = ("Rome", "Oslo", "Bergen", "Paris", "Lima", "Cairo", "Quito", "Delhi")


def get_order(order_id: str) -> str:
    """Read an order."""
    return f"order {order_id}: shipped"


def tools() -> list[Tool]:
    async def found() -> list[Tool]:
        async with connect([get_order]) as source:
            return list(source.tools)

    return anyio.run(found)


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLBAKE_VLLM_PYTHON", sys.executable)


def saved(folder: Path, tokenizer: Any, seed: int) -> Path:
    """A random model whose answers do end: the embedding of the end, which is its row of the head, is long."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 512}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "vocab_size": len(tokenizer)}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.15}
    model = LlamaForCausalLM(LlamaConfig(**shape, **ids, **heads, tie_word_embeddings=True))
    with torch.no_grad():
        model.model.embed_tokens.weight[2] = torch.randn(64)
    greedy = Sampling(temperature=0, max_tokens=48)
    return save_model(model, tokenizer, folder, family="template", tool_prompt="full", sampling=greedy)


@pytest.fixture(scope="module")
def tokenizer(tiny_model_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model_folder)


def new_run(folder: Path, rollouts: list[Rollout], model: Path, **config: Any) -> Path:
    """The folder of a finished run, as far as it is looked at here."""
    limits = sdk.Limits(max_turn_tokens=48).model_dump(mode="json")
    with RunFolder.create_or_resume(folder, {"train": {"limits": limits}, **config}) as run:
        shutil.copytree(model, run.model_dir)
        for rollout in rollouts:
            run.append_rollout(SERVED, rollout)
        run.finish_stage(SERVED, {"rollouts": len(rollouts)})
        note_conditions(run, {}, tools())
    return folder


@pytest.fixture(scope="module")
def model(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "desk", tokenizer, seed=5)


@pytest.fixture(scope="module")
def measured(model: Path) -> list[Rollout]:
    """What the model answered through its endpoint, in two turns."""
    found = []
    with sdk.serve(model, port=0) as server:
        for place in PLACES:
            task = sdk.Task(prompt=f"Where is {place}?", later_turns=["And why?"], id=place)
            asked = sdk.rollout(
                [get_order], task, model=(f"{server.url}/v1", server.model_name), limits={"max_turn_tokens": 48}
            )
            found.append(asked.model_copy(update={"verdict": Verdict(score=1)}))
    return found


@pytest.fixture
def run(model: Path, measured: list[Rollout], tmp_path: Path) -> Path:
    return new_run(tmp_path / "first", measured, model)


def exported(run: Path, kind: str, *more: str) -> Any:
    words = ["export", str(run), "--to", kind, "--output-dir", str(run.parent / "out"), "--quiet", *more]
    return CliRunner().invoke(app, words)


def test_what_was_exported_is_asked_the_questions_of_the_run(run: Path) -> None:
    told = exported(run, "vllm")
    assert told.exit_code == 0, told.stderr
    assert (
        "asked the embedded engine again for the 16 answers of 8 held-out tasks of 8 families: all are" in told.stdout
    )
    told = exported(run, "vllm", "--no-check")
    assert (told.exit_code, "asked" in told.stdout) == (0, False)


def test_an_answer_that_was_not_measured_is_named_with_its_task(
    measured: list[Rollout], model: Path, tmp_path: Path
) -> None:
    rollout = measured[2].model_copy(deep=True)
    call = ToolCall(id="c1", name="get_order", arguments={"order_id": "4417"})
    rollout.messages[-1] = Message(role="assistant", tool_calls=[call])
    told = exported(new_run(tmp_path / "first", [*measured[:2], rollout], model), "compose")
    assert told.exit_code == 0, told.stderr
    assert "1 differ, in 1 of the tasks" in told.stdout
    now = repr(measured[2].messages[-1].content.strip())
    assert f'  Bergen, answer 2: measured get_order({{"order_id": "4417"}}); now {now}\n' in told.stdout


def test_of_long_answers_the_part_that_differs_is_shown(
    measured: list[Rollout], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdk.exporting.export_check.SHOWN_CHARS", 16)  # the tiny model's answers are short
    rollout = max(measured, key=lambda one: len(one.messages[-1].content)).model_copy(deep=True)
    said = rollout.messages[-1].content.strip()
    assert len(said) > 16
    rollout.messages[-1] = Message(role="assistant", content=f"{said} And so on.")
    run = new_run(tmp_path / "first", [rollout], model)
    (one,) = check_export(export(run, "vllm", tmp_path / "out"), run, "vllm").differences
    assert one.measured.startswith("...")
    assert " And so" in one.measured
    assert one.found == f"...{repr(said)[-len(one.found) + 3 :]}"


def test_the_command_fails_where_something_else_is_served(
    measured: list[Rollout], tokenizer: Any, tmp_path: Path
) -> None:
    other = saved(tmp_path / "other", tokenizer, seed=6)
    told = exported(new_run(tmp_path / "first", measured, other), "vllm")
    assert told.exit_code == 1
    assert "differ, in 8 of the tasks" in told.stdout
    assert "Rome, answer 1: measured " in told.stdout
    assert (tmp_path / "out" / "README.md").is_file()


def test_what_is_done_is_shown_and_a_model_that_does_not_fit_is_not_loaded(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["export", str(run), "--to", "vllm", "--output-dir", str(run.parent / "out")]
    told = CliRunner().invoke(app, words)
    assert "starting the embedded engine to check the export (--no-check leaves that out)\n" in told.stderr
    assert "asking it for the answers of 8 held-out tasks" in told.stderr
    if not torch.cuda.is_available():
        monkeypatch.setattr("sdk.exporting.export_check.free_bytes", lambda: 1000)
        told = CliRunner().invoke(app, words)
        assert told.exit_code == 0
        assert "not checked: the model takes 0.0 GB of memory, and 0.0 GB are free" in told.stdout


def test_answers_that_were_cut_off_are_not_asked_for_again(
    measured: list[Rollout], model: Path, tmp_path: Path
) -> None:
    cut = measured[0].model_copy(update={"stop_reason": "token_limit"})
    run = new_run(tmp_path / "first", [cut, measured[1]], model)
    found = check_export(export(run, "vllm", tmp_path / "out"), run, "vllm")
    assert ([one.task.id for one in found.left_out], found.differences) == (["Rome"], [])
    assert "not asked again, as an answer was cut off or a call was not valid: Rome\n" in str(found)
    run = new_run(tmp_path / "more" / "first", [cut], model)
    assert "not checked: each of the run's answers through the endpoint was cut off" in exported(run, "gguf").stdout


def test_why_nothing_is_asked_is_told(
    measured: list[Rollout], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = exported(model, "vllm", "--output-dir", str(tmp_path / "alone"))
    assert "is not a run, and only runs have answers that were measured" in told.stdout
    run = new_run(tmp_path / "first", measured, model)
    assert "not checked: there is no llama-server on the PATH" in exported(run, "gguf").stdout
    (run / "stages" / f"{SERVED}.json").unlink()
    told = exported(run, "gguf")
    assert "the run asked its model nothing through the endpoint (evaluation.max_served)" in told.stdout
    assert told.exit_code == 0
    bare = [measured[0].model_copy(update={"tool_prompt": "none"})]
    told = exported(new_run(tmp_path / "bare", bare, model), "gguf", "--output-dir", str(tmp_path / "bare-out"))
    assert "the model's prompts show no tools, and such a server reads no calls" in told.stdout
    run = new_run(tmp_path / "agent", measured, model, agent={"name": "mine"})
    with pytest.raises(ConfigError, match="an agent of your own asked the model in this run"):
        check_export(tmp_path / "out", run, "gguf")


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """`llama-server`, on the PATH, is the line. Temporary files are beside its folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder.parent))
    folder.mkdir()
    (folder / "llama-server").write_text(f"#!/bin/sh\n{line}\n")
    (folder / "llama-server").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.mark.timeout(600)
def test_llama_cpp_is_asked_the_questions_of_the_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(__file__).with_name("llama_server.py")
    program(tmp_path / "bin", monkeypatch, f'exec {python_of("llama.cpp")} {script} "$@"')
    told = exported(run, "gguf")
    assert told.exit_code == 0, told.stderr
    assert "asked llama.cpp again for the 16 answers of 8 held-out tasks of 8 families: all are" in told.stdout
    assert list(tmp_path.glob("*.log")) == []


def test_a_server_that_does_not_start_is_an_error_with_its_own_words_and_leaves_no_process(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = f"sleep 600 & echo $! > {tmp_path}/started"
    program(tmp_path / "bin", monkeypatch, f"{started} && echo no such model && exit 3")
    with pytest.raises(PolicyFailure) as raised:
        check_export(export(run, "gguf", tmp_path / "out"), run, "gguf")
    (log,) = tmp_path.glob("*.log")
    assert str(raised.value) == f"llama-server exited with status 3; the end of {log}:\nno such model"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started").read_text()), 0)
