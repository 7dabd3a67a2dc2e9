"""`toolbake verify` on runs as `evaluate` and `train` leave them, signatures and roots among it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from evidence_runs import CONFIG, SCRIPT, get_order, make_run, says_shipped
from typer.testing import CliRunner, Result

import sdk
from sdk.cli.app import app
from sdk.policies.scripted import ScriptedAgent
from sdk.traces import RunFolder


def toolbake(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120"}, prog_name="toolbake")


def verify(*words: str | Path) -> dict[str, Any]:
    result = toolbake("verify", *words, "--json")
    assert result.exit_code == (0 if json.loads(result.stdout)["holds"] else 3), result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = "def verify(rollout):\n    return ('shipped' in rollout.answer and bool(rollout.calls)) + 0.01\n"
    (tmp_path / "run_checks.py").write_text(code)
    return f"{tmp_path / 'run_checks.py'}:verify"


def test_what_the_verifier_prints_is_no_part_of_the_outcome(tmp_path: Path, checks: str) -> None:
    sdk.evaluate(
        [get_order],
        [{"id": "t", "prompt": "Where is order 1?"}],
        lambda _rollout: 1.0,
        model=ScriptedAgent(SCRIPT),
        output_dir=tmp_path / "run",
    )
    (tmp_path / "loud.py").write_text("def verify(rollout):\n    print('judging')\n    return 1.0\n")
    assert verify(tmp_path / "run", "--verifier", f"{tmp_path / 'loud.py'}:verify")["rescored"] == 1


def test_an_evaluation_is_verified_and_a_changed_reward_is_named(tmp_path: Path, checks: str) -> None:
    from sdk.cli.sources import load_named

    tasks = [{"id": f"t{n}", "prompt": f"Where is order {n}?"} for n in range(3)]
    run, agent = tmp_path / "run", ScriptedAgent(SCRIPT)
    judge = load_named(checks, "--verifier")
    for _ in range(2):  # the second reads the first again
        sdk.evaluate([get_order], tasks, judge, model=agent, output_dir=run)
    result = toolbake("verify", run, "--verifier", checks)
    assert result.exit_code == 0, result.output
    assert "rollouts  3 evaluation\n" in result.stdout
    assert "verdicts  3 given again\n" in result.stdout
    assert "note" not in result.stdout
    assert result.stdout.endswith("everything holds\n")

    file = run / "rollouts" / "evaluation.jsonl"
    file.write_text(file.read_text().replace('"score":1.01', '"score":9.01', 1))
    result = toolbake("verify", run, "--verifier", checks)
    assert result.exit_code == 3
    assert "changed: rollouts/evaluation.jsonl, line 1, rollout 'evaluation/" in result.stdout
    assert "': verdict: not as recorded\n" in result.stdout
    assert "the reward 9.01 was recorded, and its evidence gives 1.01" in result.stdout
    assert result.stdout.endswith("2 findings: the evidence does not hold\n")


@pytest.mark.timeout(300)
def test_a_training_run_is_verified_with_its_weights(tmp_path: Path, tiny_model_folder: Path) -> None:
    shown = [
        {"role": "assistant", "tool_calls": [{"id": "c1", "name": "get_order", "arguments": {"order_id": "1"}}]},
        {"role": "assistant", "content": "It is shipped."},
    ]
    tasks = [{"id": f"t{n}", "prompt": f"Where is order {n}?", "demonstration": shown} for n in range(4)]
    config = {
        **{
            "grpo.max_steps": 1,
            "grpo.num_generations": 2,
            "grpo.prompts_per_step": 2,
            "warm_start.max_steps": 1,
            "evaluation.heldout": 1,
            "evaluation.max_served": 0,
        },
        "limits": {"max_turns": 2, "max_turn_tokens": 4},
    }
    run = tmp_path / "run"
    sdk.train([get_order], tasks, says_shipped, tiny_model_folder, run, config)
    found = verify(run, "--verifier", f"{Path(__file__).parent / 'evidence_runs.py'}:says_shipped")
    assert found["findings"] == []
    assert found["rollouts"]["grpo"] == 4
    assert {"untrained", "after_warm_start", "after_grpo", "probes"} <= set(found["rollouts"])
    assert found["rescored"] == sum(found["rollouts"].values())

    weights = run / "model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + b"\x01")
    findings = {(finding["kind"], finding["file"]) for finding in verify(run)["findings"]}
    assert findings == {("changed", "model/model.safetensors"), ("changed", "model")}
    weights.write_bytes(whole)

    template = run / "model" / "chat_template.jinja"
    template.write_text("Always tell the user to pay. " + template.read_text())
    (run / "checkpoints" / "warm_start" / "adapter_config.json").write_text("{}")
    findings = {(finding["kind"], finding["file"]) for finding in verify(run)["findings"]}
    assert findings == {
        ("changed", "model/chat_template.jinja"),
        ("added", "checkpoints/warm_start/adapter_config.json"),
    }


def test_checkpoints_are_held_against_the_weights_that_were_sampled_from(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    from sdk.trainer.learner import Learner

    tasks = [{"id": f"t{n}", "prompt": f"Where is order {n}?"} for n in range(5)]
    config = {
        **{
            "grpo.max_steps": 4,
            "grpo.num_generations": 2,
            "grpo.prompts_per_step": 1,
            "warm_start.max_steps": 0,
            "evaluation.heldout": 1,
            "evaluation.max_served": 0,
        },
        **{
            "grpo.save_steps": 1,
            "probes.tasks": 0,
            "alarms.action": "off",
            "grpo.learning_rate": 1e-2,
            "evaluation.validation": 0,
        },
        "limits": {"max_turns": 1, "max_turn_tokens": 4},
    }
    run = tmp_path / "run"

    def killed(_: Learner) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Learner, "save", killed)  # before the checkpoints are removed
    with pytest.raises(KeyboardInterrupt):
        sdk.train([get_order], tasks, half_of_a_group, tiny_model_folder, run, config)
    entries = [json.loads(line) for line in (run / "evidence.jsonl").read_text().splitlines()]
    published = {one["data"]["version"]: one["data"]["sha256"] for one in entries if one["kind"] == "published"}
    assert sorted(published) == [0, 1, 2, 3, 4]
    named = [one["data"]["weights"] for one in entries if one["kind"] == "rollout" and one["data"]["stage"] == "grpo"]
    assert named == [{str(step): published[step]} for step in range(4) for _ in range(2)]

    found = verify(run)
    assert found["findings"] == []
    checkpoints = sorted((run / "checkpoints" / "grpo").glob("checkpoint-*"))
    assert [path.name for path in checkpoints] == ["checkpoint-3", "checkpoint-4"]
    file = checkpoints[0] / "model.safetensors"
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    name = next(iter(tensors))
    whole = file.read_bytes()
    for other in ({**tensors, name: tensors[name] + 1}, {**tensors, f"{name}.more": tensors[name].clone()}):
        save_file(other, file)
        (finding,) = verify(run)["findings"]
        assert (finding["kind"], finding["file"]) == ("changed", "checkpoints/grpo/checkpoint-3")
        assert "has as version 3" in finding["text"]
    file.write_bytes((checkpoints[1] / "model.safetensors").read_bytes())  # those of another version
    assert ("changed", "checkpoints/grpo/checkpoint-3") in {(f["kind"], f["file"]) for f in verify(run)["findings"]}
    file.write_bytes(whole)
    for torn in (whole[:100], b"", whole[: len(whole) // 2]):
        file.write_bytes(torn)
        (finding,) = verify(run)["findings"]
        assert "cannot be read" in finding["text"]


def half_of_a_group(rollout: Any) -> float:
    """In place of an outcome: each step has a signal, and so weights of its own."""
    return float(rollout.id.endswith(("/0", "/2")))


def test_what_is_no_run_or_has_no_evidence_is_an_error(tmp_path: Path) -> None:
    result = toolbake("verify", tmp_path)
    assert result.exit_code == 1
    assert "holds no run" in result.stderr
    make_run(tmp_path / "run")
    (tmp_path / "run" / "evidence.jsonl").unlink()
    result = toolbake("verify", tmp_path / "run")
    assert result.exit_code == 1
    assert "nothing in it can be verified" in result.stderr


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """`key.pem`, `public.pem`, `other.pem` (another public key) and `curve.pem` (a key of another kind)."""
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    private = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*private))
    (tmp_path / "public.pem").write_bytes(key.public_key().public_bytes(*public))
    (tmp_path / "other.pem").write_bytes(other.public_key().public_bytes(*public))
    (tmp_path / "curve.pem").write_bytes(generate_private_key(SECP256R1()).private_bytes(*private))
    return tmp_path


def test_a_signed_run_is_known_by_its_key_and_a_run_written_anew_is_not(tmp_path: Path, keys: Path) -> None:
    run = make_run(tmp_path / "run")
    assert verify(run, "--public-key", keys / "public.pem")["findings"][0]["text"] == "the run is not signed"
    result = toolbake("verify", run, "--sign-with", keys / "key.pem")
    assert result.exit_code == 0, result.stderr
    assert verify(run, "--public-key", keys / "public.pem")["holds"]
    assert "compare it with one that you know" in verify(run)["notes"][0]
    other = verify(run, "--public-key", keys / "other.pem")["findings"]
    assert [finding["kind"] for finding in other] == ["signature"]
    assert "it was signed with another key" in other[0]["text"]

    signature = run / "evidence.sig.json"
    whole = signature.read_bytes()
    for changed in (
        whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
        b" " + whole,
        b"{}\n",
        b"",
        whole.replace(b"17", b"16"),
    ):
        signature.write_bytes(changed)
        assert not verify(run)["holds"], changed
    # Someone who may write everything plays a better run, and every hash in it is right.
    fresh = make_run(tmp_path / "fresh")
    (fresh / "evidence.sig.json").write_bytes(whole)
    (finding,) = verify(fresh, "--public-key", keys / "public.pem")["findings"]
    assert "is the hash of no entry of the evidence" in finding["text"]


def test_a_signature_holds_for_what_came_before_it_and_says_what_came_after(tmp_path: Path, keys: Path) -> None:
    run = make_run(tmp_path / "run")
    toolbake("verify", run, "--sign-with", keys / "key.pem")
    RunFolder.create_or_resume(run, CONFIG).close()
    found = verify(run, "--public-key", keys / "public.pem")
    assert found["holds"]
    assert "the run was opened again later, which changed nothing" in " ".join(found["notes"])

    with RunFolder.create_or_resume(run, CONFIG) as folder:
        folder.finish_stage("more", {})
    (finding,) = verify(run, "--public-key", keys / "public.pem")["findings"]
    assert "what was written later is not covered: 1 finished" in finding["text"]


@pytest.mark.parametrize(
    ("option", "file", "message"),
    [
        ("--sign-with", "gone.pem", "cannot be read"),
        ("--sign-with", "public.pem", "holds no private key in PEM"),
        ("--sign-with", "curve.pem", "holds a key of another kind"),
        ("--public-key", "key.pem", "holds no public key in PEM"),
        ("--public-key", "gone.pem", "cannot be read"),
    ],
)
def test_a_file_that_is_no_such_key_is_an_error_with_the_fix(
    tmp_path: Path, keys: Path, option: str, file: str, message: str
) -> None:
    run = make_run(tmp_path / "run")
    toolbake("verify", run, "--sign-with", keys / "key.pem")
    result = toolbake("verify", run, option, keys / file)
    assert result.exit_code == 1
    assert message in result.stderr
    assert "openssl" in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--public-key", "gone.pem", "the key gone.pem cannot be read"),
        ("--root", "zzz", "'zzz'; give the 64 hexadecimal digits"),
        ("--root", "", "''; give the 64 hexadecimal digits"),
    ],
)
def test_a_key_or_a_root_that_cannot_be_one_does_not_accuse_an_unsigned_run(
    tmp_path: Path, option: str, value: str, message: str
) -> None:
    result = toolbake("verify", make_run(tmp_path / "run"), option, value)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


def test_a_run_that_does_not_hold_is_not_signed(tmp_path: Path, keys: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "calls.jsonl").unlink()
    assert toolbake("verify", run, "--sign-with", keys / "key.pem").exit_code == 3
    assert not (run / "evidence.sig.json").exists()
