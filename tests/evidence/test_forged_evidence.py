"""Evidence that somebody made anew, hash by hash, or damaged beyond its form: it is named, and nothing breaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from evidence_runs import CONFIG, named, says_shipped, verified

from sdk.evidence.canonical import START, canonical, digest, link, rollout_links, sha256
from sdk.evidence.run_verification import signature_of, wrong_golds
from sdk.traces import RunFolder
from sdk.traces.json_text import dump_json

Entries = list[dict[str, Any]]


def chain_anew(run: Path, change: Callable[[Entries], object]) -> None:
    """Change the entries of the run's evidence, and make every hash of theirs and the root fit again."""
    lines = (run / "evidence.jsonl").read_bytes().splitlines()
    entries: Entries = [json.loads(line) for line in lines]
    change(entries)
    prev, made = START, b""
    for entry in entries:
        entry |= {"prev": prev, "hash": link(prev, entry["kind"], digest(entry["data"]))}
        made += canonical(entry) + b"\n"
        prev = entry["hash"]
    (run / "evidence.jsonl").write_bytes(made)
    (run / "evidence.root.json").write_bytes(canonical({"entries": len(entries), "root": prev}) + b"\n")


def forge_first(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the first rollout of `grpo`, and make the evidence of it anew."""
    file = run / "rollouts" / "grpo.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    line = json.loads(lines[0])
    before = sha256(lines[0])
    change(line)
    lines[0] = dump_json(line) + b"\n"
    file.write_bytes(b"".join(lines))

    def announce(entries: Entries) -> None:
        data = next(entry["data"] for entry in entries if entry["data"].get("sha256") == before)
        links = rollout_links(line, stage="grpo", tools=data["tools"], verifier=data["verifier"])
        data |= {"sha256": sha256(lines[0]), "head": links.head, "inputs": links.inputs, "marks": list(links.marks)}

    chain_anew(run, announce)


def add_set_aside_and_lost(entries: Entries) -> None:
    at, first = next((at, entry["data"]) for at, entry in enumerate(entries) if entry["kind"] == "rollout")
    aside = {"kind": "set_aside", "data": {"stage": first["stage"], "sha256": [first["sha256"]]}}
    entries[at + 1 : at + 1] = [aside, {"kind": "lost", "data": {"sha256": first["sha256"]}}]


def count_calls_backwards(entries: Entries) -> None:
    entries[0]["data"]["calls"]["lines"] = -50


@pytest.mark.parametrize("change", [add_set_aside_and_lost, count_calls_backwards])
def test_entries_that_no_run_writes_are_named_where_their_hashes_fit(run: Path, change: Any) -> None:
    chain_anew(run, change)
    assert any(finding.kind == "changed" and finding.file == "evidence.jsonl" for finding in verified(run).findings)


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line["calls"][0]["call"].update(name="refund"),
        lambda line: line.update(ledger=[]),
        lambda line: line["calls"].append(line["calls"][0]),
    ],
    ids=["another tool", "no ledger", "one call twice"],
)
def test_a_call_that_was_forged_with_all_its_hashes_is_found_by_the_ledger(run: Path, change: Any) -> None:
    forge_first(run, change)
    assert named(verified(run)) == ["unearned rollouts/grpo.jsonl:1 a"]


@pytest.mark.parametrize(
    "hide",
    [
        lambda line: line["ledger"][-1].pop("tool"),
        lambda line: line.update(ledger=None),
        lambda line: line["calls"][0]["call"].pop("id"),
    ],
    ids=["a ledger line without a tool", "no list", "a call without an id"],
)
def test_a_forged_call_is_not_hidden_by_a_form_that_no_ledger_has(run: Path, hide: Any) -> None:
    forge_first(run, lambda line: (line["calls"][0]["call"].update(name="refund"), hide(line)))
    assert named(verified(run)) == ["changed rollouts/grpo.jsonl:1 a"]


def test_a_call_that_was_added_to_a_closed_run_is_named(run: Path) -> None:
    content = (run / "calls.jsonl").read_bytes()
    last = json.loads(content.splitlines()[-1])
    call = {name: value for name, value in last.items() if name not in ("prev", "hash")} | {"tool": "refund_everything"}
    added = {**call, "prev": last["hash"], "hash": link(last["hash"], "call", digest(call))}
    (run / "calls.jsonl").write_bytes(content + canonical(added) + b"\n")
    assert named(verified(run)) == [f"added calls.jsonl:{len(content.splitlines()) + 1}"]


def test_found_demonstrations_that_are_others_than_the_run_wrote_are_named(run: Path) -> None:
    file, content = run / "demonstrations.jsonl", b'{"id": "a"}\n'
    with RunFolder.create_or_resume(run, CONFIG) as folder:
        file.write_bytes(content)
        folder.finish_stage("found_demonstrations", {"found": 1, "sha256": sha256(content)})
    assert verified(run).holds
    file.write_bytes(content.replace(b"a", b"b"))
    assert named(verified(run)) == ["changed demonstrations.jsonl:"]
    file.unlink()
    assert named(verified(run)) == ["missing demonstrations.jsonl:"]


def test_an_answer_that_was_forged_with_all_its_hashes_is_found_by_the_verifier_alone(run: Path) -> None:
    forge_first(run, lambda line: line.update(answer="It is lost."))
    assert verified(run).holds
    assert named(verified(run, says_shipped)) == ["unearned rollouts/grpo.jsonl:1 a"]


def test_a_line_without_an_id_is_named_also_where_verdicts_are_given_again(run: Path) -> None:
    file = run / "rollouts" / "grpo.jsonl"
    first, *others = file.read_bytes().splitlines(keepends=True)
    line = json.loads(first)
    del line["id"]
    file.write_bytes(b"".join([dump_json(line) + b"\n", *others]))
    assert "changed rollouts/grpo.jsonl:1 a" in named(verified(run, says_shipped))


def test_a_line_that_can_just_be_read_and_not_be_written_again_is_named(run: Path) -> None:
    file = run / "rollouts" / "grpo.jsonl"
    first, *others = file.read_bytes().splitlines(keepends=True)
    for depth in range(900, 1000, 2):  # where reading ends depends on who reads
        file.write_bytes(b"".join([first[:-2], b',"deep":', b"[" * depth, b"]" * depth, b"}\n", *others]))
        assert "changed rollouts/grpo.jsonl:1 a" in named(verified(run))
    value: list[Any] = []
    for _ in range(10_000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deeply"):
        canonical(value)


def test_settings_that_are_nested_without_end_are_named(run: Path) -> None:
    (run / "run.json").write_bytes(b'{"config":' + b"[" * 5000 + b"]" * 5000 + b"}")
    assert {finding.file for finding in verified(run).findings} == {"run.json"}


def test_a_signature_over_what_is_no_root_is_named(run: Path) -> None:
    key = Ed25519PrivateKey.generate()
    content = {
        "algorithm": "Ed25519",
        "entries": 1,
        "public_key": key.public_key().public_bytes_raw().hex(),
        "root": 5,
        "signature": key.sign(b"toolbake evidence 1 5").hex(),
    }
    (run / "evidence.sig.json").write_bytes(canonical(content) + b"\n")
    assert [(finding.kind, finding.file) for finding in verified(run).findings] == [("signature", "evidence.sig.json")]


@pytest.mark.parametrize("verdict", [{}, {"score": "1"}, {"score": None}, [], "right"])
@pytest.mark.parametrize("expected", [{"audit_error": False}, [], "no"])
def test_audits_of_another_form_are_named_and_break_nothing(tmp_path: Path, verdict: Any, expected: Any) -> None:
    (tmp_path / "rollouts").mkdir()
    audit = {"id": "x", "task": {"id": "audit/a", "expected": expected}}
    (tmp_path / "rollouts" / "audit.jsonl").write_text(json.dumps(audit) + "\n")
    audited = {"id": "a", "verdict": verdict, "failure": None}
    (tmp_path / "rollouts" / "grpo.jsonl").write_text(json.dumps(audited) + "\n")
    (finding,) = wrong_golds(tmp_path, {"config": {"train": {"evaluation": {"success_threshold": 1.0}}}})
    assert (finding.kind, finding.rollout) == ("unearned", "x")


def test_an_emptied_evidence_file_beside_a_signature_is_named(run: Path) -> None:
    key = run.parent / "key.pem"
    key.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (run / "evidence.sig.json").write_bytes(signature_of("0" * 64, 1, key))
    (run / "evidence.jsonl").write_bytes(b"")
    assert "evidence.jsonl" in {finding.file for finding in verified(run).findings}
