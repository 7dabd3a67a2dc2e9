"""Verified rollouts as a data set that TRL's SFTTrainer takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk.distillation import content_key, select
from sdk.policies.scripted import ScriptedAgent
from sdk.tasks import load_tasks


def get_order(order_id: str) -> dict[str, str]:
    """Read an order."""
    return {"status": "shipped" if order_id == "4417" else "open"}


def elsewhere() -> Any:
    """The same tool with other code, in another module: `__main__` where the script ran that made the run."""

    def get_order(order_id: str) -> dict[str, str]:
        return {"id": order_id, "status": "lost"}

    get_order.__doc__, get_order.__module__ = globals()["get_order"].__doc__, "__main__"
    return get_order


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


PROMPTS = ["Where is order 4417?", "Where is order 9?"]


def is_shipped(rollout: sdk.Rollout) -> bool:
    return "shipped" in rollout.answer


@pytest.fixture
def solver() -> Any:
    """An endpoint that reads the order and tells its status."""
    from distilling_endpoint import order_desk

    with order_desk() as url:
        yield (url, "desk")


def test_rollouts_of_an_endpoint_become_examples_with_tools_licence_and_origin(solver: Any, tmp_path: Path) -> None:
    data = sdk.distill(
        tools=[get_order, add],
        prompts=PROMPTS,
        verifier=is_shipped,
        model=solver,
        samples=3,
        to=tmp_path / "out" / "data.jsonl",
        licence="apache-2.0",
    )
    (line,) = [json.loads(text) for text in data.path.read_text().splitlines()]
    assert [message["role"] for message in line["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert line["messages"][1]["tool_calls"][0]["function"] == {
        "name": "get_order",
        "arguments": {"order_id": "4417"},
    }
    assert {tool["function"]["name"] for tool in json.loads(line["tools"])} == {"get_order", "add"}
    assert line["license"] == "apache-2.0"
    assert (line["origin"]["score"], line["origin"]["tool_prompt"]) == (1.0, "full")
    # Three rollouts alike of the first task, three of the second that its verifier refused.
    assert (data.selection.duplicates, data.selection.not_verified, data.selection.seen) == (2, 3, 6)
    assert "1 examples of 6 rollouts" in str(data)


def test_answers_with_line_separators_of_unicode_are_read_back_as_they_were(tmp_path: Path) -> None:
    agent = ScriptedAgent(["It is shipped\u2028today\x85."])
    to = tmp_path / "d.jsonl"
    data = sdk.distill(tools=[add], prompts=PROMPTS[:1], verifier=is_shipped, model=agent, to=to, licence="mit")
    assert data.dataset()[0]["messages"][-1]["content"] == "It is shipped\u2028today\x85."


@pytest.mark.timeout(300)
def test_sft_trainer_learns_from_the_data_set(solver: Any, short_tokenizer: Any, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    from sdk.policies.models import save_model
    from sdk.policies.models.loading import load_model

    shape = LlamaConfig(
        vocab_size=len(short_tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    loaded = load_model(str(save_model(LlamaForCausalLM(shape), short_tokenizer, tmp_path / "tiny")))
    data = sdk.distill(
        tools=[get_order, add],
        prompts=PROMPTS,
        verifier=lambda rollout: bool(rollout.calls),
        model=solver,
        samples=1,
        to=tmp_path / "data.jsonl",
        licence="mit",
    )
    arguments = [m["tool_calls"][0]["function"]["arguments"] for m in (r["messages"][1] for r in data.dataset())]
    assert arguments == [{"order_id": "4417"}, {"order_id": "9"}]  # no field of another tool's arguments was filled in
    config = SFTConfig(
        output_dir=str(tmp_path / "sft"),
        max_steps=1,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        dataloader_pin_memory=False,
        gradient_checkpointing=False,
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model=loaded.model, args=config, train_dataset=data.dataset(), processing_class=loaded.tokenizer
    )
    trainer.train()
    assert trainer.state.log_history[0]["loss"] > 0


def rollout(task: str, answer: str, score: float, number: int, arguments: dict[str, Any] | None = None) -> sdk.Rollout:
    call = sdk.ToolCall(id=f"c{number}", name="get_order", arguments=arguments or {"order_id": "1"})
    return sdk.Rollout(
        id=f"{task}/{number}",
        task=sdk.Task(prompt=task, id=task),
        messages=[
            sdk.Message(role="user", content=task),
            sdk.Message(role="assistant", tool_calls=[call]),
            sdk.Message(role="tool", content=f"seen {number}", tool_call_id=f"c{number}"),
            sdk.Message(role="assistant", content=answer),
        ],
        answer=answer,
        turns=2,
        verdict=sdk.Verdict(score=score),
    )


def test_rollouts_that_teach_the_same_are_kept_once_and_the_shortest_of_a_task_come_first() -> None:
    long, short = rollout("t", "It is, as I have found, shipped.", 1.0, 1), rollout("t", "Shipped.", 1 - 2**-53, 2)
    again = rollout("t", "Shipped. ", 1.0, 3)
    other = rollout("t", "Shipped.", 1.0, 4, {"order_id": "2"})
    wrong, unjudged = rollout("t", "No.", 0.0, 5), rollout("t", "Who knows.", 1.0, 6)
    unjudged.verdict = None
    assert content_key(short) == content_key(again) != content_key(other)
    found = select([long, short, again, other, wrong, unjudged], threshold=1.0, per_task=2)
    assert [r.id for r in found.kept] == ["t/2", "t/4"]
    counts = (found.duplicates, found.beyond_per_task, found.not_verified, found.unscored)
    assert counts == (1, 1, 1, 1)
    assert found.seen == 6


def test_what_earned_the_reward_of_a_canary_teaches_nobody() -> None:
    hacked = rollout("t", "Done.", 1.0, 1)
    hacked.task.tags["canary"] = "true"
    found = select([hacked, rollout("u", "Shipped.", 1.0, 2)], threshold=1.0, per_task=1)
    assert ([r.task.id for r in found.kept], found.not_verified) == (["u"], 1)


def test_a_call_that_cannot_be_read_teaches_nobody() -> None:
    slipped = rollout("t", "Shipped.", 1.0, 1)
    (call,) = slipped.messages[1].tool_calls
    slipped.messages[1].tool_calls[0] = call.model_copy(update={"arguments": {}, "error": "no JSON"})
    found = select([slipped, rollout("u", "Shipped.", 1.0, 2)], threshold=1.0, per_task=1)
    assert ([r.task.id for r in found.kept], found.unread, found.seen) == (["u"], 1, 2)


def thinking(messages: list[sdk.Message], seed: int) -> sdk.Message:
    return sdk.Message(role="assistant", content="It is shipped.", reasoning="I think so.")


def test_what_a_reasoning_model_taught_is_a_file_of_tasks_with_its_reasoning(tmp_path: Path) -> None:
    model, to = ScriptedAgent(thinking), tmp_path / "d.jsonl"
    sdk.distill(tools=[get_order], prompts=PROMPTS[:1], verifier=is_shipped, model=model, to=to, licence="mit")
    (task,) = load_tasks(to)
    assert task.demonstration == [thinking([], 0)]


def test_several_examples_of_a_task_are_tasks_of_one_family(tmp_path: Path) -> None:
    def script(messages: list[sdk.Message], seed: int) -> str:
        return f"It is shipped, said {seed % 7}."

    data = sdk.distill(
        tools=[get_order],
        prompts=PROMPTS[:1],
        verifier=is_shipped,
        model=ScriptedAgent(script),
        samples=6,
        per_task=2,
        to=tmp_path / "d.jsonl",
        licence="mit",
    )
    first, second = load_tasks(data.path)
    assert second.id == f"{first.id}/2"
    assert first.family == second.family
    assert first.demonstration != second.demonstration


@pytest.mark.parametrize("order_id", ["\ud83d", float("nan")])
def test_what_json_cannot_hold_is_left_out_and_counted_and_the_rest_is_written(order_id: Any, tmp_path: Path) -> None:
    """Models write half a surrogate pair and `NaN` in their calls, and such a rollout may be verified."""

    def script(messages: list[sdk.Message], seed: int) -> sdk.Message | str:
        if len(messages) == 1 and "4417" in messages[0].content:
            call = sdk.ToolCall(id="c", name="get_order", arguments={"order_id": order_id})
            return sdk.Message(role="assistant", tool_calls=[call])
        return "It is shipped."

    data = sdk.distill(
        tools=[get_order],
        prompts=PROMPTS,
        verifier=is_shipped,
        model=ScriptedAgent(script),
        samples=2,
        to=tmp_path / "d.jsonl",
        licence="mit",
    )
    assert (len(data.selection.kept), data.selection.not_json, data.selection.duplicates) == (1, 2, 1)
    assert "2 that JSON cannot hold" in str(data)
    assert data.dataset()[0]["messages"][0]["content"] == PROMPTS[1]
    with pytest.raises(sdk.ConfigError, match="1 hold what JSON cannot"):
        sdk.distill(
            tools=[get_order],
            prompts=[{"prompt": PROMPTS[1], "expected": {"order_id": order_id}}],
            verifier=is_shipped,
            model=ScriptedAgent(script),
            samples=1,
            to=tmp_path / "e.jsonl",
            licence="mit",
        )


@pytest.mark.parametrize(
    ("part", "is_kept"),
    [
        ({"expected": {"seats": {(1, 2): "taken"}}}, True),
        ({"demonstration": [sdk.Message(role="assistant", content="\ud83d")]}, True),
        ({"expected": {"scan": b"\xff"}}, False),
    ],
)
def test_a_task_is_left_out_only_where_its_example_cannot_be_written(part: dict[str, Any], is_kept: bool) -> None:
    task = sdk.Task(prompt=PROMPTS[1], **part)
    shipped = rollout("t", "Shipped.", 1.0, 1).model_copy(update={"task": task})
    selection = select([shipped], threshold=1.0, per_task=1)
    assert (len(selection.kept), selection.not_json) == (is_kept, not is_kept)


def test_a_last_message_that_a_limit_cut_off_teaches_nobody(tmp_path: Path) -> None:
    """It may be verified: by what was said so far, or what was done."""

    def script(messages: list[sdk.Message], seed: int) -> sdk.Message | str:
        if "4417" in messages[0].content:
            return "It is shipped. " * 100
        if len(messages) == 1:
            return sdk.Message(role="assistant", tool_calls=[call("c1")])
        return sdk.Message(role="assistant", content="It is shipped.", tool_calls=[call("c2"), call("c3")])

    def call(name: str) -> sdk.ToolCall:
        return sdk.ToolCall(id=name, name="get_order", arguments={"order_id": name})

    with pytest.raises(sdk.ConfigError, match="2 end in a message that a limit cut off"):
        sdk.distill(
            tools=[get_order],
            prompts=PROMPTS,
            verifier=lambda rollout: "shipped" in rollout.messages[-1].content,
            model=ScriptedAgent(script, limit_tokens=True),
            limits={"max_turn_tokens": 300, "max_tokens": 1000, "max_calls": 2},
            samples=1,
            to=tmp_path / "d.jsonl",
            licence="mit",
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "exactly one of them"),
        ({"run": "r", "prompts": PROMPTS}, "exactly one of them"),
        ({"prompts": PROMPTS}, "need a `verifier`"),
        ({"run": "r", "verifier": is_shipped}, "does nothing beside `run`"),
        ({"prompts": PROMPTS, "verifier": is_shipped, "licence": " "}, "`licence` is empty"),
        ({"prompts": PROMPTS, "verifier": is_shipped, "samples": 0}, "samples is 0"),
        ({"prompts": PROMPTS, "verifier": is_shipped, "threshold": float("nan")}, "threshold is nan"),
        ({"prompts": PROMPTS, "verifier": is_shipped, "stage": "grpo"}, "`stage` is 'grpo' and does nothing"),
        ({"run": "r", "model": "some/model"}, "`model` does nothing beside `run`"),
        ({"run": "r", "strict_tools": True}, "`strict_tools` is True and does nothing beside `run`"),
        ({"run": "r", "temperature": 0.0}, "`temperature` is 0.0 and does nothing beside `run`"),
    ],
)
def test_arguments_that_do_not_fit_together_are_named(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(sdk.ConfigError, match=words):
        sdk.distill(**{"tools": [add], "to": tmp_path / "d.jsonl", "licence": "mit", **arguments})
    assert not (tmp_path / "d.jsonl").exists()


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("mine")
    with pytest.raises(sdk.ConfigError, match="exists already"):
        sdk.distill(tools=[add], prompts=PROMPTS, verifier=is_shipped, to=tmp_path / "d.jsonl", licence="mit")
    assert (tmp_path / "d.jsonl").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_told_before_the_model_is_asked(tmp_path: Path) -> None:
    asked: list[str] = []
    (tmp_path / "taken").write_text("mine")
    for name in ("taken/data.jsonl", f"{'n' * 260}.jsonl"):
        with pytest.raises(sdk.ToolbakeError, match="cannot be"):
            sdk.distill(
                tools=[get_order],
                prompts=PROMPTS,
                verifier=is_shipped,
                model=ScriptedAgent(lambda messages, seed: asked.append("") or "x"),  # type: ignore[func-returns-value]
                to=tmp_path / name,
                licence="apache-2.0",
            )
    assert asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_nothing_verified_is_an_error_that_counts(solver: Any, tmp_path: Path) -> None:
    with pytest.raises(sdk.ConfigError, match="none of 4 rollouts can be used: 4 are below 1"):
        sdk.distill(
            tools=[get_order],
            prompts=PROMPTS,
            verifier=lambda rollout: 0.0,
            model=solver,
            samples=2,
            to=tmp_path / "d.jsonl",
            licence="mit",
        )


def test_where_most_could_not_be_judged_the_advice_is_to_correct_that(solver: Any, tmp_path: Path) -> None:
    judged: list[str] = []

    def broken(rollout: sdk.Rollout) -> float:
        judged.append(rollout.id)
        if len(judged) > 1:
            raise sdk.VerifierError("no judge")
        return 0.0

    options = {"prompts": PROMPTS, "verifier": broken, "model": solver, "samples": 2, "licence": "mit"}
    with pytest.raises(sdk.ConfigError, match=r"1 are below 1, 3 are unscored.* Correct the verifier or the tool"):
        sdk.distill(tools=[get_order], to=tmp_path / "d.jsonl", **options)


def test_what_was_played_is_chosen_from_again_and_not_mixed_with_what_others_play(tmp_path: Path) -> None:
    asked: list[int] = []

    def distill(**changed: Any) -> sdk.DistilledData:
        agent = ScriptedAgent(lambda messages, seed: asked.append(seed) or "Half.")  # type: ignore[func-returns-value]
        options = {"prompts": PROMPTS, "verifier": half, "samples": 2, "to": tmp_path / "d.jsonl", "licence": "mit"}
        return sdk.distill(tools=[add], model=agent, **{**options, **changed})

    with pytest.raises(sdk.ConfigError, match="none of 4 rollouts can be used"):
        distill()
    assert len(distill(threshold=0.5).selection.kept) == 2
    assert len(asked) == 4
    (tmp_path / "d.jsonl").unlink()
    with pytest.raises(
        sdk.RunFolderError,
        match=r"another run: samples is 2.*d\.jsonl\.work keeps what is played for d\.jsonl; to play",
    ):
        distill(samples=3)
    again = sdk.distill(
        tmp_path / "d.jsonl.work", tools=[add], stage="distill", threshold=0.5, to=tmp_path / "e.jsonl", licence="mit"
    )
    assert len(again.selection.kept) == 2


def half(rollout: sdk.Rollout) -> float:
    return 0.5


def test_rollouts_of_an_evaluation_are_taken_from_its_folder_with_the_same_tools_only(
    solver: Any, tmp_path: Path
) -> None:
    sdk.evaluate([get_order], PROMPTS, is_shipped, model=solver, output_dir=tmp_path / "run")
    data = sdk.distill(tmp_path / "run", tools=[get_order], to=tmp_path / "d.jsonl", licence="mit")
    assert len(data.selection.kept) == 1
    written = sdk.distill(tmp_path / "run", tools=[elsewhere()], to=tmp_path / "same.jsonl", licence="mit")
    assert written.path.read_bytes() == data.path.read_bytes()
    with pytest.raises(sdk.ConfigError, match="the tools given are not those of"):
        sdk.distill(tmp_path / "run", tools=[add], to=tmp_path / "e.jsonl", licence="mit")
    with pytest.raises(
        sdk.ConfigError, match=r"no rollouts of the stage 'grpo'; name one of its own as `stage`: evaluation"
    ):
        sdk.distill(tmp_path / "run", tools=[get_order], stage="grpo", to=tmp_path / "e.jsonl", licence="mit")
