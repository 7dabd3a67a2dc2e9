"""Training with less of the tools in the prompt: what is shown, what is remembered, and who shows as much later."""

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from heard import Heard
from test_training_runs import TINY, add, even_letters, tasks
from transformers import AutoTokenizer

import sdk
from sdk.policies.models import load_model
from sdk.progress import Progress
from sdk.records import TokenRow
from sdk.traces import RunFolder
from sdk.trainer.groups import drawn_tool_prompt

HALVES = {"full": 0.5, "names": 0.5}
SHORT = {**TINY, "grpo.max_steps": 2, "grpo.prompts_per_step": 4, "grpo.num_generations": 2}
DESCRIPTION = "Add two numbers."


def train(model: Path, folder: Path, tool_prompt: Any, progress: Progress | None = None) -> sdk.TrainResult:
    config = {**SHORT, "tool_prompt": tool_prompt}
    return sdk.train([add], tasks(), even_letters, str(model), folder, config, progress=progress)


@pytest.fixture(scope="module")
def by_name(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> sdk.TrainResult:
    return train(tiny_model_dir, tmp_path_factory.mktemp("names") / "run", "names")


@pytest.fixture(scope="module")
def mixed(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> sdk.TrainResult:
    return train(tiny_model_dir, tmp_path_factory.mktemp("mixed") / "run", HALVES)


@cache
def tokenizer_of(model: Path) -> Any:
    return AutoTokenizer.from_pretrained(model)


def prompt_of(row: TokenRow, model: Path) -> str:
    return str(tokenizer_of(model).decode(row.prompt_ids))


def test_every_prompt_of_a_run_shows_names_only(by_name: sdk.TrainResult, tiny_model_dir: Path) -> None:
    folder = RunFolder.open_to_read(by_name.run_dir)
    for stage in ("untrained", "after_warm_start", "grpo", "after_grpo"):
        for rollout in folder.read_rollouts(stage):
            assert rollout.tool_prompt == "names"
            prompt = prompt_of(rollout.rows[0], tiny_model_dir)
            assert "- add()" in prompt
            assert DESCRIPTION not in prompt
    assert folder.stage("warm_start") == {"demonstrations": 6, "tool_prompts": {"names": 6}}


def test_what_is_sampled_with_a_shorter_prompt_is_what_is_trained(mixed: sdk.TrainResult) -> None:
    """The trainer finds the tokens that were sampled, after the prompt that they were sampled after, as probable."""
    lines = [line for line in RunFolder.open_to_read(mixed.run_dir).read_metrics() if "sampler_gap/max" in line]
    assert lines
    assert max(line["sampler_gap/max"] for line in lines) < 1e-3


def test_a_group_shares_its_prompt_and_the_groups_differ(mixed: sdk.TrainResult, tiny_model_dir: Path) -> None:
    folder = RunFolder.open_to_read(mixed.run_dir)
    groups: dict[str, list[sdk.Rollout]] = {}
    for rollout in folder.read_rollouts("grpo"):
        groups.setdefault(rollout.group, []).append(rollout)
    drawn = {name: {rollout.tool_prompt for rollout in group} for name, group in groups.items()}
    assert {len(lengths) for lengths in drawn.values()} == {1}
    assert set().union(*drawn.values()) == {"full", "names"}
    for group in groups.values():
        prompts = {prompt_of(rollout.rows[0], tiny_model_dir) for rollout in group}
        assert [DESCRIPTION in prompt for prompt in prompts] == [group[0].tool_prompt == "full"]
    # Measured with the longest of them, and noted by length.
    assert {rollout.tool_prompt for rollout in folder.read_rollouts("after_grpo")} == {"full"}
    shown = folder.stage("warm_start")
    assert shown is not None
    assert set(shown["tool_prompts"]) == {"full", "names"}
    assert sum(shown["tool_prompts"].values()) == 6
    noted = {name for line in folder.read_metrics() for name in line if name.startswith("reward/")}
    assert noted == {"reward/full", "reward/names"}


def test_the_same_seed_draws_the_same_prompts_by_their_shares() -> None:
    config = sdk.TrainConfig.of({"tool_prompt": {"full": 0.25, "none": 0.75}})
    drawn = [drawn_tool_prompt(config, "grpo", step, "task") for step in range(2000)]
    assert drawn == [drawn_tool_prompt(config, "grpo", step, "task") for step in range(2000)]
    other = config.model_copy(update={"seed": 1})
    assert drawn != [drawn_tool_prompt(other, "grpo", step, "task") for step in range(2000)]
    counts = Counter(drawn)
    assert set(counts) == {"full", "none"}
    assert 400 < counts["full"] < 600  # 500 expected, standard deviation 19


def test_another_tool_prompt_is_another_run(by_name: sdk.TrainResult, tiny_model_dir: Path) -> None:
    with pytest.raises(sdk.RunFolderError, match=r'train.tool_prompt is "names" in the folder and "full" now'):
        train(tiny_model_dir, by_name.run_dir, "full")
    with pytest.raises(sdk.RunFolderError, match=r"train.tool_prompt.full is absent in the folder and 0.5 now"):
        train(tiny_model_dir, by_name.run_dir, HALVES)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("short", "tool_prompt is 'short'.* give one of 'full', 'names', 'none', or shares of several, such as"),
        (["full"], "give one of 'full', 'names', 'none', or shares"),
        ({"full": 0.5, "schemas": 0.5}, "'schemas' is not a tool prompt; they are 'full', 'names', 'none'"),
        ({"full": 0.5, "names": 0.4}, "the shares add up to 0.9; they must make 1"),
        ({"full": 1.5, "names": -0.5}, "each share must be a number from 0 to 1"),
        ({"full": "half", "names": 0.5}, "each share must be a number from 0 to 1"),
        ({"full": float("nan"), "names": 0.5}, "each share must be a number from 0 to 1"),
        ({"full": 0.0, "names": 0}, "the shares add up to 0"),
        ({}, "the shares add up to 0"),
    ],
)
def test_what_is_no_tool_prompt_is_refused_with_the_choices(given: Any, said: str) -> None:
    with pytest.raises(sdk.ConfigError, match=said):
        sdk.TrainConfig.of({"tool_prompt": given})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"full": 1.0}, "full"),
        ({"none": 1}, "none"),
        ({"full": 0, "names": 1.0}, "names"),
        ({"full": 0.5, "names": 0.5, "none": 0.0}, HALVES),
    ],
)
def test_shares_that_are_one_or_nothing_are_the_plain_word(given: Any, meant: Any) -> None:
    assert sdk.TrainConfig.of({"tool_prompt": given}) == sdk.TrainConfig.of({"tool_prompt": meant})
    assert sdk.TrainConfig.of({"tool_prompt": given}).tool_prompt == meant


# ---- the model remembers


def test_the_report_says_what_was_shown(by_name: sdk.TrainResult, mixed: sdk.TrainResult) -> None:
    assert by_name.report.run["tool_prompt"] == "names only"
    assert mixed.report.run["tool_prompt"] == "full schemas (50 %) and names only (50 %), measured with full schemas"
    assert "Tools in the prompts: names only." in (by_name.run_dir / "report.md").read_text()
    assert "Tools in the prompts: names only." in str(by_name.report)


def test_a_model_is_evaluated_with_what_it_was_trained_with(by_name: sdk.TrainResult, tmp_path: Path) -> None:
    heard = Heard()
    how: dict[str, Any] = {"model": by_name.model_dir, "limits": SHORT["limits"]}
    report = sdk.evaluate([add], ["2 + 2?"], even_letters, output_dir=tmp_path / "own", progress=heard, **how)
    assert list(report.conditions) == ["model, names only"]
    assert report.run["tool_prompt"] == {"model, names only": "names only"}
    assert any("model: its prompts show names only of the tools, as in its training" in line for line in heard.lines)
    (kept,) = RunFolder.open_to_read(tmp_path / "own").read_rollouts("evaluation")
    assert kept.tool_prompt == "names"
    # Asked for, the other length is measured; it is another evaluation, and no folder goes on with both.
    (full,) = sdk.evaluate([add], ["2 + 2?"], even_letters, tool_prompts="full", **how).conditions.values()
    names = report.conditions["model, names only"]
    assert full.prompt_tokens is not None
    assert names.prompt_tokens is not None
    assert full.prompt_tokens.mean > names.prompt_tokens.mean
    with pytest.raises(sdk.RunFolderError, match='tool_prompt is "names" in the folder and absent now'):
        sdk.evaluate([add], ["2 + 2?"], even_letters, tool_prompts="full", output_dir=tmp_path / "own", **how)


def test_policies_are_compared_each_with_its_own_prompt(by_name: sdk.TrainResult, mixed: sdk.TrainResult) -> None:
    models = {"short": by_name.model_dir, "both": mixed.model_dir}
    report = sdk.evaluate([add], ["2 + 2?"], even_letters, models=models, limits=SHORT["limits"])
    assert list(report.conditions) == ["short, names only", "both"]
    assert [(pair.first, pair.second) for pair in report.comparisons] == [("short, names only", "both")]


def test_one_conversation_and_distilled_examples_show_as_much(
    by_name: sdk.TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdk.distillation.CUT_OFF", ())  # a random model never ends an answer by itself
    rollout = sdk.rollout([add], "2 + 2?", model=by_name.model_dir, limits=SHORT["limits"])
    assert rollout.tool_prompt == "names"
    assert DESCRIPTION not in prompt_of(rollout.rows[0], by_name.model_dir)
    to = tmp_path / "data.jsonl"
    sdk.distill(by_name.run_dir, tools=[add], to=to, licence="mit")
    line = json.loads(to.read_text().splitlines()[0])
    assert line["origin"]["tool_prompt"] == "names"
    (tool,) = json.loads(line["tools"])
    assert tool["function"]["name"] == "add"
    assert tool["function"]["parameters"] == {"type": "object", "properties": {}}


def test_the_endpoint_shows_as_much_of_its_clients_tools(by_name: sdk.TrainResult) -> None:
    tool = {"type": "function", "function": {"name": "add", "description": DESCRIPTION * 9, "parameters": {}}}
    asked = {"messages": [{"role": "user", "content": "2 + 2?"}], "tools": [tool], "max_tokens": 2}
    counted = {}
    for length in (None, "names", "full"):
        with sdk.serve(by_name.model_dir, port=0, tool_prompt=length) as server:  # type: ignore[arg-type]
            assert server.tool_prompt == (length or "names")
            reply = httpx.post(f"{server.url}/v1/chat/completions", json={"model": server.model_name, **asked})
            counted[length] = reply.json()["usage"]["prompt_tokens"]
    assert counted[None] == counted["names"] < counted["full"] - 20
    with pytest.raises(sdk.ConfigError, match="tool_prompt is 'short'; give one of full, names, none"):
        sdk.serve(by_name.model_dir, port=0, tool_prompt="short")  # type: ignore[arg-type]


def test_a_model_behind_an_endpoint_is_recorded_with_what_its_prompts_showed(
    by_name: sdk.TrainResult, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    how: dict[str, Any] = {"limits": SHORT["limits"], "output_dir": tmp_path / "run", "progress": heard}
    with sdk.serve(by_name.model_dir, port=0, model_name="adder") as server:
        assert "adder: its prompts show names only of clients' tools, as in its training" in caplog.text
        (model,) = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert model["tool_prompt"] == "names"
        report = sdk.evaluate([add], ["2 + 2?"], even_letters, model=(f"{server.url}/v1", "adder"), **how)
    (kept,) = RunFolder.open_to_read(tmp_path / "run").read_rollouts("evaluation")
    assert kept.tool_prompt == "names"
    assert report.run["tool_prompt"] == {"adder": "names only"}
    assert "Tools in the prompts of adder: names only." in str(report)
    assert any("showed names only of the tools, where full schemas were sent" in line for line in heard.lines)
    caplog.clear()
    with sdk.serve(by_name.model_dir, port=0, tool_prompt="names"):
        assert "its prompts show" not in caplog.text  # who asks for it knows


def test_training_on_says_that_the_prompts_were_others(by_name: sdk.TrainResult, tmp_path: Path) -> None:
    heard = Heard()
    train(by_name.model_dir, tmp_path / "more", "full", heard)
    assert any(
        "showed names only of its tools in its training so far; in this run: full schemas" in x for x in heard.lines
    )


def test_a_folder_whose_notes_are_damaged_is_named(mixed: sdk.TrainResult) -> None:
    notes = mixed.model_dir / "toolbake.json"
    before = notes.read_text()
    assert json.loads(before)["tool_prompt"] == HALVES
    try:
        notes.write_text(json.dumps({**json.loads(before), "tool_prompt": "some"}))
        with pytest.raises(sdk.ModelError, match=r"its toolbake.json is damaged \(ValueError: give one of 'full'"):
            load_model(mixed.model_dir)
    finally:
        notes.write_text(before)
