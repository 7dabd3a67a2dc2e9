"""A signature or a noted root covers what stands before it, whatever is written after it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from evidence_runs import CONFIG, play, verified
from safetensors.torch import save_file

from sdk.evidence.canonical import canonical, digest, link, rollout_links, sha256
from sdk.evidence.expected_run import Verification
from sdk.evidence.run_verification import sign_run
from sdk.evidence.saved_weights import files_digest
from sdk.traces import RunFolder
from sdk.traces.json_text import dump_json

Line = dict[str, Any]


def save_weights(file: Path, value: float) -> str:
    """A model of one tensor; returns the digest of its weights."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({"weight": torch.full((4,), value)}, file)
    return files_digest([file])


def train(path: Path) -> Path:
    """A run with held-out rollouts, a finished stage, published weights and a model."""
    with RunFolder.create_or_resume(path, CONFIG) as run:
        weights = save_weights(run.model_dir / "model.safetensors", 0.5)
        (run.model_dir / "config.json").write_text('{"layers": 2}')
        run.record_published(1, {"sha256": weights, "of": "weights"})
        play(run, "after_grpo", ["a", "b"])
        run.finish_stage("after_grpo", {"rollouts": 2})
        run.record_weights(run.model_dir, version=1)
    return path


@pytest.fixture(scope="module")
def signed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed run in `run`, and both keys beside it."""
    folder = tmp_path_factory.mktemp("signed")
    key = Ed25519PrivateKey.generate()
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "public.pem").write_bytes(public)
    run = train(folder / "run")
    sign_run(run, verified(run), folder / "key.pem")
    return folder


@pytest.fixture
def signed(signed_once: Path, tmp_path: Path) -> Path:
    shutil.copytree(signed_once, tmp_path / "signed")
    return tmp_path / "signed"


class Forger:
    """Someone who may write the folder and has no key: entries after the signature, with hashes that fit."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.entries = [json.loads(line) for line in (run / "evidence.jsonl").read_bytes().splitlines()]

    def last(self, kind: str) -> Line:
        data: Line = next(entry["data"] for entry in reversed(self.entries) if entry["kind"] == kind)
        return data

    def add(self, kind: str, data: Line) -> None:
        prev = self.entries[-1]["hash"]
        entry = {"data": data, "hash": link(prev, kind, digest(data)), "kind": kind, "prev": prev}
        self.entries.append(entry)
        with open(self.run / "evidence.jsonl", "ab") as file:
            file.write(canonical(entry) + b"\n")

    def close(self) -> None:
        self.add("closed", {"calls": self.last("closed")["calls"]})
        root = {"entries": len(self.entries), "root": self.entries[-1]["hash"]}
        (self.run / "evidence.root.json").write_bytes(canonical(root) + b"\n")

    def another_model(self) -> None:
        folder = self.run / "model"
        self.add(
            "published", {"sha256": save_weights(folder / "model.safetensors", 0.0), "of": "weights", "version": 1}
        )
        files = {file.name: sha256(file.read_bytes()) for file in folder.iterdir()}
        self.add("weights", {**self.last("weights"), "files": files})

    def another_config(self) -> None:
        info = json.loads((self.run / "run.json").read_bytes())
        info["config"]["seed"] = 424242
        (self.run / "run.json").write_bytes(dump_json(info, indent=2) + b"\n")
        run_sha256 = sha256((self.run / "run.json").read_bytes())
        self.add("resumed", {"calls": self.last("closed")["calls"], "run": run_sha256})

    def other_rollouts(self) -> None:
        file = self.run / "rollouts" / "after_grpo.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        self.add("set_aside", {"stage": "after_grpo", "sha256": [sha256(line) for line in lines]})
        (self.run / "rollouts" / "after_grpo.discarded.jsonl").write_bytes(b"".join(lines))
        file.write_bytes(b"")
        known = self.last("rollout")
        for line in map(json.loads, lines):
            self.add_rollout("after_grpo", known, {**line, "verdict": {**line["verdict"], "score": 9.0}})

    def add_rollout(self, stage: str, known: Line, line: Line) -> None:
        raw = dump_json(line) + b"\n"
        links = rollout_links(line, stage=stage, tools=known["tools"], verifier=known["verifier"])
        fresh = {"head": links.head, "inputs": links.inputs, "marks": list(links.marks)}
        self.add("rollout", {**known, **fresh, "stage": stage, "id": line["id"], "sha256": sha256(raw)})
        with open(self.run / "rollouts" / f"{stage}.jsonl", "ab") as file:
            file.write(raw)

    def another_end(self) -> None:
        marker = self.run / "stages" / "after_grpo.json"
        marker.write_bytes(marker.read_bytes().replace(b'"rollouts": 2', b'"rollouts": 9'))
        self.add("finished", {**self.last("finished"), "sha256": sha256(marker.read_bytes())})

    def lost(self) -> None:
        """The last thing that was announced before the signature: the end of the stage."""
        (self.run / "stages" / "after_grpo.json").unlink()
        self.add("lost", {"sha256": self.last("finished")["sha256"]})


def with_key(folder: Path) -> Verification:
    return verified(folder / "run", public_key=folder / "public.pem")


def files_named(found: Verification) -> set[str]:
    return {finding.file for finding in found.findings}


ATTACKS = {
    "another model": (Forger.another_model, {"model/model.safetensors", "model"}),
    "another config": (Forger.another_config, {"run.json"}),
    "other rollouts": (Forger.other_rollouts, {"rollouts/after_grpo.jsonl", "rollouts/after_grpo.discarded.jsonl"}),
    "another end of a stage": (Forger.another_end, {"stages/after_grpo.json"}),
    "an end that was lost": (Forger.lost, {"stages/after_grpo.json"}),
}
"""What is replaced under the signature, and the files that must be named."""


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_was_signed_is_not_replaced_by_entries_after_the_signature(signed: Path, attack: str) -> None:
    replace, files = ATTACKS[attack]
    root = verified(signed / "run").root
    forger = Forger(signed / "run")
    replace(forger)
    forger.close()
    assert verified(signed / "run").holds, "hashing alone makes a chain that holds"
    for found in (with_key(signed), verified(signed / "run", root=root)):
        assert files <= files_named(found)
        if attack != "another config":  # whose entry is a resume like any other
            assert any("would change" in finding.text for finding in found.findings)


def test_rollouts_are_not_added_to_a_stage_that_was_finished_before_the_signature(signed: Path) -> None:
    forger = Forger(signed / "run")
    line = json.loads((signed / "run" / "rollouts" / "after_grpo.jsonl").read_bytes().splitlines()[0])
    forger.add_rollout("after_grpo", forger.last("rollout"), {**line, "id": "a better one"})
    forger.close()
    texts = [finding.text for finding in with_key(signed).findings]
    assert any("would change which rollouts the finished stage 'after_grpo' has" in text for text in texts)


def test_a_run_that_is_only_opened_after_its_signature_is_saving_nothing(signed: Path) -> None:
    forger = Forger(signed / "run")
    forger.add("resumed", {"calls": forger.last("closed")["calls"], "run": forger.last("begun")["run"]})
    save_weights(signed / "run" / "checkpoints" / "best" / "model.safetensors", 0.0)
    assert any(note.startswith("checkpoints/best was not announced") for note in verified(signed / "run").notes)
    assert files_named(with_key(signed)) == {"checkpoints/best"}


def test_a_signature_has_only_what_is_signed(signed: Path) -> None:
    file = signed / "run" / "evidence.sig.json"
    whole = json.loads(file.read_bytes())
    for other in ({**whole, "signed_by": "the auditor"}, {**whole, "signature": whole["signature"].upper()}):
        file.write_bytes(canonical(other) + b"\n")
        (finding,) = with_key(signed).findings
        assert "its bytes are not those of a signature that toolbake wrote" in finding.text


def test_what_a_run_adds_after_its_signature_is_a_finding_until_it_is_signed_again(signed: Path) -> None:
    with RunFolder.create_or_resume(signed / "run", CONFIG) as run:
        play(run, "more", ["c"])
    (finding,) = with_key(signed).findings
    assert (finding.kind, finding.file) == ("signature", "evidence.jsonl")
    assert "1 rollout of more" in finding.text
    assert "sign again" in finding.text
    sign_run(signed / "run", verified(signed / "run"), signed / "key.pem")
    again = with_key(signed)
    assert again.holds
    assert not any("not covered" in note for note in again.notes)


def test_the_same_call_again_leaves_a_signature_whole(signed: Path) -> None:
    for _ in range(2):
        with RunFolder.create_or_resume(signed / "run", CONFIG) as run:
            run.record_published(1, {"sha256": files_digest([run.model_dir / "model.safetensors"]), "of": "weights"})
            run.finish_stage("after_grpo", {"rollouts": 2})
            run.record_weights(run.model_dir, version=1)
    found = with_key(signed)
    assert found.findings == []
    assert any("opened again later, which changed nothing" in note for note in found.notes)
