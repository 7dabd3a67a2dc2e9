"""Runs that also train an auditor, and that measure themselves on validation tasks meanwhile; on a tiny model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

import sdk
from sdk.cli.app import app
from sdk.connecting import connect
from sdk.evidence.run_verification import verify_run
from sdk.judging import audit_call, audit_tasks
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Rollout
from sdk.rollouts.run_context import RunContext
from sdk.traces import RunFolder
from sdk.trainer.auditor import Audits

TASKS: list[dict[str, Any]] = [{"id": f"t{n}", "prompt": f"Where is order {n}?", "family": f"f{n}"} for n in range(8)]
CONFIG = {
    **{
        "warm_start.max_steps": 0,
        "grpo.max_steps": 4,
        "grpo.prompts_per_step": 2,
        "grpo.num_generations": 4,
        "grpo.save_steps": 1,
    },
    **{
        "probes.tasks": 0,
        "evaluation.heldout": 1,
        "evaluation.max_served": 0,
        "evaluation.validation": 2,
        "evaluation.eval_steps": 2,
        "audits.per_step": 2,
        "audits.cost": 0.5,
    },
    **{"grpo.learning_rate": 1e-3, "rollouts.concurrency": 1},
    "limits": {"max_turns": 1, "max_turn_tokens": 4, "max_tokens": 4},
}


def get_order(order_id: str) -> str:
    """Read an order."""
    return "shipped"


def begins_well(rollout: Rollout) -> bool:
    return rollout.answer.startswith("OK")


def rises_with_the_steps(rollout: Rollout) -> float:
    """Pays more and more, on training tasks only."""
    return float(rollout.step >= 5)


@pytest.fixture(scope="module")
def talker(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says OK, ERROR or nothing more, each about as often, whatever was said before."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("talker") / "model"
    model = LlamaForCausalLM.from_pretrained(tiny_model_folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder)
    words = ["OK", "ERROR"]
    tokenizer.add_tokens(words)
    model.resize_token_embeddings(len(tokenizer))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight.fill_(-4.0)
        model.lm_head.weight[[*tokenizer.convert_tokens_to_ids(words), tokenizer.eos_token_id]] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> sdk.TrainResult:
    """Cut off after two steps, and gone on with."""
    folder = tmp_path_factory.mktemp("audited") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "append_rollout", cut_off(RunFolder.append_rollout))
        with pytest.raises(RuntimeError, match="cut off"):
            sdk.train([get_order], TASKS, begins_well, talker, folder, CONFIG)
    return sdk.train([get_order], TASKS, begins_well, talker, folder, CONFIG)


def cut_off(append: Any) -> Any:
    """Fails at the first audit of the third step."""

    def appended(self: RunFolder, stage: str, rollout: Rollout) -> None:
        if stage == "audit" and rollout.step == 2:
            raise RuntimeError("cut off")
        append(self, stage, rollout)

    return appended


def score(rollout: Rollout) -> float:
    assert rollout.verdict is not None
    return rollout.verdict.score


def test_audits_are_of_the_same_step_and_earn_by_what_the_outcome_verifier_said(run: sdk.TrainResult) -> None:
    folder = RunFolder.open_to_read(run.run_dir)
    played = {rollout.id: rollout for rollout in folder.iter_rollouts("grpo")}
    audits = folder.read_rollouts("audit")
    assert len({audit.id for audit in audits}) == len(audits) > 8
    for audit in audits:
        audited = played[audit.task.id.removeprefix("audit/")]
        assert audited.step == audit.step
        wrong = not begins_well(audited)
        assert audit.task.expected == {"audit_error": wrong}
        if audit.stop_reason != "answered" or audit.answer not in ("OK", "ERROR"):  # "OKERROR" is no call
            assert score(audit) == -1
        elif audit.answer == "ERROR":
            assert score(audit) == (1 if wrong else -1)
        else:
            assert score(audit) == (-1 if wrong else 1)
    for step in range(4):
        golds = {a.task.id: a.task.expected["audit_error"] for a in audits if a.step == step}
        assert sum(golds.values()) * 2 == len(golds), "as many wrong ones as right ones"


def test_all_weights_that_a_run_leaves_are_in_its_evidence(run: sdk.TrainResult) -> None:
    files = sorted(run.run_dir.rglob("*.safetensors"))
    folders = {file.parent.relative_to(run.run_dir).as_posix() for file in files}
    assert folders == {"model", "checkpoints/trained", "checkpoints/chosen", "checkpoints/last"}
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        try:
            found = anyio.run(verify_run, run.run_dir)
        finally:
            file.write_bytes(whole)
        named = {finding.file for finding in found.findings}
        assert file.relative_to(run.run_dir).as_posix() in named


def test_audits_are_counted_and_reported_apart(run: sdk.TrainResult) -> None:
    folder = RunFolder.open_to_read(run.run_dir)
    lines = [line for line in folder.read_metrics() if line["stage"] == "grpo"]
    audits = folder.read_rollouts("audit")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    signals = 0
    for line in lines:
        own = [audit for audit in audits if audit.step == line["step"]]
        played = [r for r in folder.iter_rollouts("grpo") if r.step == line["step"]]
        assert line["rollouts"] == len(played) == 8
        assert line["reward"] == pytest.approx(sum(map(score, played)) / 8)
        assert line["audit/rollouts"] == len(own)
        assert line["audit/groups"] + line["audit/groups_left_out"] == 2
        if own:
            right = sum(score(audit) == 1 for audit in own) / len(own)
            assert line["audit/right_call"] == pytest.approx(right)
            assert line["audit/reward"] == pytest.approx(sum(map(score, own)) / len(own))
        called = [audit for audit in own if audit.task.expected["audit_error"]]
        found = sum(score(audit) == 1 for audit in called)
        # Of 8 rollouts one wrong one is audited, four times.
        assert line["audit/cost"] == pytest.approx(0.5 * found / max(1, len(called)) / 8)
        assert line["trained_tokens"] >= line["audit/trained_tokens"]
        signals += line["audit/groups_with_signal"]
    assert signals > 0, "the talker's calls must differ within a group"
    training = run.report.training
    assert training is not None
    assert (training.rollouts, training.audits) == (32, len(audits))
    assert "audits, beside the rollouts" in run.report.markdown()


def test_the_evidence_of_audits_is_judged_again_by_their_own_verifier(run: sdk.TrainResult) -> None:
    found = anyio.run(lambda: verify_run(run.run_dir, verifier=begins_well))
    assert [str(finding) for finding in found.findings] == []
    assert found.rescored == sum(found.rollouts.values())
    file = run.run_dir / "rollouts" / "audit.jsonl"
    whole = file.read_bytes()
    first, *rest = whole.splitlines(keepends=True)
    line = json.loads(first)
    line["task"]["expected"]["audit_error"] = not line["task"]["expected"]["audit_error"]
    file.write_bytes(json.dumps(line).encode() + b"\n" + b"".join(rest))
    texts = [str(finding) for finding in anyio.run(lambda: verify_run(run.run_dir)).findings]
    assert any("changed: rollouts/audit.jsonl, line 1" in text and "task: not as recorded" in text for text in texts)
    assert any("unearned: rollouts/audit.jsonl, line 1" in text and "its task says of" in text for text in texts)
    file.write_bytes(whole)


def test_validation_is_measured_meanwhile_and_what_was_measured_chooses(run: sdk.TrainResult) -> None:
    folder = RunFolder.open_to_read(run.run_dir)
    lines = [line for line in folder.read_metrics() if line["stage"] == "validation"]
    assert [line["step"] for line in lines] == [0, 2, 4]
    assert all(0 <= line["low"] <= line["success"] <= line["high"] <= 1 and line["tasks"] == 2 for line in lines)
    heldout = {rollout.task.id for rollout in folder.iter_rollouts("after_grpo")}
    training = {rollout.task.id for rollout in folder.iter_rollouts("grpo")}
    measured = folder.read_rollouts("validation_step_2")
    assert len(measured) == 2
    assert not {rollout.task.id for rollout in measured} & (heldout | training)
    assert {version for rollout in measured for row in rollout.rows for version in row.versions} <= {-1, 2}
    choice = folder.stage("choice")
    assert choice is not None
    assert list(choice["facts"]["validation"]["success"]) == [
        *("untrained", "step 1", "step 2", "step 3", "after GRPO")
    ]
    assert choice["facts"]["validation"]["success"]["step 2"] == lines[1]["success"]
    entries = [json.loads(line) for line in (run.run_dir / "evidence.jsonl").read_text().splitlines()]
    stages = [one["data"]["stage"] for one in entries if one["kind"] == "rollout"]
    last = len(stages) - stages[::-1].index("grpo")
    assert "validation_step_2" not in stages[last:], "what was measured in training is not measured again"
    assert "validation_step_3" in stages[last:]
    assert run.report.training is not None
    assert list(run.report.training.validation) == [0, 2, 4]
    assert "success on validation tasks, by step" in run.report.markdown()


def test_a_reward_that_rises_while_validation_does_not_is_an_alarm(talker: Path, tmp_path: Path) -> None:
    config = {
        **CONFIG,
        **{
            "grpo.max_steps": 10,
            "grpo.prompts_per_step": 1,
            "grpo.num_generations": 2,
            "evaluation.eval_steps": 5,
            "grpo.save_steps": 20,
        },
        "audits.per_step": 0,
        "audits.cost": 0,
    }
    result = sdk.train([get_order], TASKS, rises_with_the_steps, talker, tmp_path / "run", config)
    alarms = [line["alarms"] for line in RunFolder.open_to_read(result.run_dir).read_metrics() if "alarms" in line]
    assert any("heldout at step 9: the reward rose by 1.00, held-out success by +0.00" in str(one) for one in alarms)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"evaluation.eval_steps": 5, "evaluation.validation": 0},
            "evaluation.eval_steps does nothing while evaluation.validation is 0",
        ),
        (
            {"evaluation.eval_steps": 5, "evaluation.validation": 2, "grpo.max_steps": 0},
            "evaluation.eval_steps does nothing while grpo.max_steps is 0",
        ),
        ({"audits.cost": 0.5}, "audits: cost does nothing while per_step is 0"),
        ({"audits.per_step": 3}, "audits.per_step is 3: Input should be a multiple of 2"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sdk.ConfigError, match=message):
        sdk.TrainConfig.of(options)


async def test_a_wrong_rollout_that_its_audits_call_out_is_worth_less_and_a_right_one_loses_nothing(
    run: sdk.TrainResult,
) -> None:
    def played(name: str, reward: float) -> Rollout:
        task = sdk.Task(id="t", prompt="Where is order 1?")
        return Rollout(id=name, task=task, answer=name, verdict=sdk.Verdict(score=reward))

    def audit(of: Rollout, said: str, number: int) -> Rollout:
        (task,) = audit_tasks([of])
        audited = Rollout(id=f"{of.id}/{number}", task=task, answer=said)
        return audited.model_copy(update={"verdict": audit_call().verify(audited)})

    wrong, unseen, right = played("wrong", 0), played("unseen", 0), played("right", 1)
    groups = [
        [audit(one, said, number) for number, said in enumerate(("ERROR", "ERROR", "OK", "no idea"))]
        for one in (wrong, right)
    ]
    config = sdk.TrainConfig.of({"audits.per_step": 2, "audits.cost": 0.8})
    async with connect([get_order]) as source:
        context = RunContext(tools=source, verifier=None, limits=sdk.Limits(), concurrency=1)
        there = dataclasses.replace(context, folder=RunFolder.open_to_read(run.run_dir))
        audits = Audits(context.engine(ScriptedAgent([])), config, there)
    assert [score(one) for one in audits.charged(groups, [wrong, unseen, right])] == [-0.4, 0, 1]
    assert [score(one) for one in (wrong, unseen, right)] == [0, 0, 1], "what was recorded stays"
    # Where all are wrong, it would be the whole signal that one was audited and the other was not.
    assert [score(one) for one in audits.charged(groups[:1], [wrong, unseen])] == [0, 0]


def test_a_second_policy_audits_in_place_of_the_one_that_is_trained(talker: Path, tmp_path: Path) -> None:
    config = {**CONFIG, "grpo.max_steps": 2}
    strict = ScriptedAgent(lambda _messages, _seed: "ERROR: it is not what was asked for", name="strict")
    result = sdk.train([get_order], TASKS, begins_well, talker, tmp_path / "run", config, auditor=strict)
    folder = RunFolder.open_to_read(result.run_dir)
    audits = folder.read_rollouts("audit")
    assert audits
    assert {audit.answer for audit in audits} == {"ERROR: it is not what was asked for"}
    for line in folder.read_metrics():
        if line["stage"] == "grpo" and line["audit/groups"]:
            assert (line["audit/right_call"], line["audit/false_alarm"]) == (0.5, 0.5)
            assert line["audit/trained_tokens"] == 0
            assert line["audit/cost"] == pytest.approx(0.5 / 8), "of 8 rollouts the wrong one that was audited"
    assert [str(one) for one in anyio.run(lambda: verify_run(result.run_dir, verifier=begins_well)).findings] == []
    with pytest.raises(sdk.RunFolderError, match="auditor"):
        sdk.train([get_order], TASKS, begins_well, talker, tmp_path / "run", config)


def test_an_auditor_without_audits_is_refused(tmp_path: Path) -> None:
    config = {**CONFIG, "audits.per_step": 0, "audits.cost": 0}
    with pytest.raises(sdk.ConfigError, match=r"auditor does nothing while audits\.per_step is 0"):
        sdk.train([get_order], TASKS, begins_well, None, tmp_path / "run", config, auditor="embedded")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--auditor", "embedded"], "auditor does nothing while audits.per_step is 0"),
        (["--auditor-key", "JUDGE_KEY"], "--auditor-key does nothing without --auditor https://host/v1#name"),
        (["--auditor", "https://host/v1"], "--auditor: the endpoint https://host/v1 has no model"),
    ],
)
def test_the_command_names_what_is_wrong_with_an_auditor(words: list[str], message: str, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    given = [f"{__file__}:get_order", str(tasks), "--verifier", f"{__file__}:begins_well"]
    failed = CliRunner().invoke(app, ["train", *given, *words])
    assert failed.exit_code == 1
    assert message in " ".join(failed.stderr.split())
