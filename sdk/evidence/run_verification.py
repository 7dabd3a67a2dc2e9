"""Verification of a run: everything that its evidence holds, recomputed and compared with the folder; its verdicts,
given again; its signature."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import ValidationError

from mcp_bridge.ledger import digest_arguments, digest_text

from ..errors import ConfigError, RunFolderError, VerifierError
from ..records import Rollout, Verdict, reaches
from ..rollouts.branching import parent_and_turn
from ..traces.atomic_files import file_sha256, json_file, read_json, write_bytes
from ..traces.run_folder import CALLS
from ..verifiers import VerifierLike, check_verifier, verifier_identity, verifier_name
from ..verifiers.verifier import judge_evidence, judges_groups
from .canonical import START, canonical, digest, numbered_lines, parse, sha256
from .evidence_log import EVIDENCE, ROOT, read_root
from .expected_run import (
    Entry,
    Expected,
    Finding,
    Verification,
    call_entry,
    compare_rollouts,
    evidence_entry,
    read_chain,
    replay,
)
from .saved_weights import compare_file, compare_files, compare_folders, compare_weights

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from ..judging.verdicts import AuditCall


AUDIT, AUDITED = "audit", "grpo"
"""The stages of the audits and of what they are about."""
_TASK = "audit/"


def audit_verifier_of(info: dict[str, Any]) -> AuditCall | None:
    """What judged the audits of a run; None where it has none. `info`: its `run.json`."""
    from ..judging import audit_call  # which loads what asks a model

    try:
        recorded = info["config"]["verifiers"][AUDIT]
    except (KeyError, TypeError):
        return None
    verifier = audit_call()
    return verifier if verifier_identity(verifier) == recorded else None


def wrong_golds(path: Path, info: dict[str, Any]) -> list[Finding]:
    """Audits whose task contradicts the verdict of the audited rollout."""
    name = f"rollouts/{AUDIT}.jsonl"
    try:
        threshold = float(info["config"]["train"]["evaluation"]["success_threshold"])
    except (KeyError, TypeError, ValueError):
        return []  # run.json was changed, which is named
    audits = [(number, line) for number, line in _lines(path / name)]
    if not audits:
        return []
    scores = {str(line.get("id")): _score(line) for _, line in _lines(path / "rollouts" / f"{AUDITED}.jsonl")}
    findings = []
    for number, line in audits:
        task = _mapping(line, "task")
        audited = str(task.get("id", "")).removeprefix(_TASK)
        gold = _mapping(task, "expected").get("audit_error")
        score = scores.get(audited)
        if score is None or gold is not (not reaches(score, threshold)):
            text = f"its task says of {audited!r} that it is {'wrong' if gold else 'right'}, and its verdict is {score}"
            findings.append(Finding("unearned", name, number, text, str(line.get("id", ""))))
    return findings


def _score(line: dict[str, Any]) -> float | None:
    score = _mapping(line, "verdict").get("score")
    return float(score) if isinstance(score, int | float) and line.get("failure") is None else None


def _mapping(line: dict[str, Any], name: str) -> dict[str, Any]:
    found = line.get(name)
    return found if isinstance(found, dict) else {}  # of another form it was changed, which is named


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, raw in numbered_lines(path):
        try:
            yield number, parse(raw)
        except ValueError:
            continue  # named where the file is compared with its evidence


_FILE_OF = {"found_demonstrations": "demonstrations.jsonl"}
"""Stages that wrote a file, whose SHA-256 is in their facts."""
_NON_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def calls_not_made(line: Mapping[str, Any], *, kept: bool = False) -> list[str]:
    """What the ledger of a stored rollout does not show of its calls; none where its world kept no ledger. `kept`:
    `calls.jsonl` has calls of this rollout, so that its world kept one.

    A call counts as made where a ledger line has its id, its tool, the digest of its arguments, and the digest of the
    text that came back. Calls that did not parse were never sent and have no line.
    """
    ledger = line["ledger"]
    if not ledger and not kept:
        return []
    arguments = {one["key"]: one["arguments"] for one in ledger if one["arguments"]}
    made = Counter(
        (one["call"], one["tool"], arguments.get(one["key"], ""), one["result"])
        for one in ledger
        if one["event"] in ("answered", "refused")
    )
    faults = []
    for number, record in enumerate(line["calls"], start=1):
        call = record["call"]
        if call["error"] is not None:
            continue
        names = [f"{caller}/{call['id']}" for caller in _callers(line["id"], record["turn"])]
        result = digest_text(record["result"]["text"])
        # A stored `nan` is the text "nan"; the ledger saw the number.
        spelled = (call["arguments"], _with_non_finite(call["arguments"]))
        keys = [(name, call["name"], digest_arguments(one), result) for name in names for one in spelled]
        key = next((key for key in keys if made[key]), None)
        if key is None:
            faults.append(f"call {number} ({call['name']}): its ledger shows no such call with this result")
        else:
            made[key] -= 1
    return faults


def _callers(rollout: str, turn: int) -> list[str]:
    """Who may have made the calls of a turn, counted from 1: a branch has those of its past from the rollout it left,
    and a task may be named like a branch."""
    past = parent_and_turn(rollout)
    return [past[0], rollout] if past is not None and turn <= past[1] else [rollout]


def _with_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_non_finite(item) for item in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def lines_not_written(line: Mapping[str, Any], written: Set[str]) -> list[str]:
    """Which ledger lines of a stored rollout are not in `calls.jsonl`; `written`: the digests of its lines."""
    return [
        f"ledger line {number} ({one['event']} of {one['tool']}) is not in calls.jsonl"
        for number, one in enumerate(line["ledger"], start=1)
        if digest(one) not in written
    ]


async def verify_run(
    path: str | Path,
    *,
    verifier: VerifierLike | None = None,
    root: str | None = None,
    public_key: Path | None = None,
    timeout_s: float | None = 60,
) -> Verification:
    """Recompute the evidence of the run in `path`. Nothing in the folder is changed, and no code in it is run.

    `verifier`: gives its verdicts again, on the evidence alone; it must be deterministic. `root`: one of this run that
    was noted elsewhere. `public_key`: a PEM file with the Ed25519 key that must have signed it. What was recorded after
    that root is a finding, and so is what it would change of the run up to there. `timeout_s`: for each verdict.

    What is wrong is in `findings`. Raises `RunFolderError` for a folder that holds no run, or one without evidence,
    and `ConfigError` for what cannot be a verifier, a root or a key.
    """
    given, root = root, root.strip().lower() if root is not None else None
    if root is not None and re.fullmatch("[0-9a-f]{64}", root) is None:
        raise ConfigError(f"`root` is {given!r}; give the 64 hexadecimal digits that verify prints as the root")
    key = _key(public_key, is_private=False) if public_key is not None else None
    if verifier is not None:
        check_verifier(verifier)
    check = _Check(_folder(path))
    check.chain()
    check.evidence(anchor=check.anchor(root, key))
    check.calls()
    check.rollouts()
    check.audits()
    check.files()
    if verifier is not None:
        await check.verdicts(verifier, timeout_s)
    else:
        check.found.notes.append("verdicts were not given again: no verifier was named")
    return check.found


def _folder(path: str | Path) -> Path:
    path = Path(path).absolute()
    if not (path / "run.json").is_file():
        raise RunFolderError(f"{path} holds no run (it has no run.json); give the output_dir of a run")
    if not (path / EVIDENCE).is_file():
        raise RunFolderError(
            f"{path} has no {EVIDENCE}: the run was written before toolbake kept evidence, or its evidence was "
            "removed; nothing in it can be verified"
        )
    return path


def _start_of(file: Path) -> bytes:
    """As much of a file as a root or a signature may have: of a larger one not all, which is then none."""
    with open(file, "rb") as opened:
        return opened.read(1 << 16)


def sign_run(path: str | Path, found: Verification, key_file: Path) -> None:
    """Sign the root that a verification found, into `evidence.sig.json`.

    What a later resume adds is not under the signature, and `verify_run` names it; sign again where it is right. Raises
    `RunFolderError` where the evidence does not hold, `ConfigError` for the key.
    """
    if not found.holds:
        raise RunFolderError(
            f"{path} is not signed: {len(found.findings)} things in it are not as its evidence has them"
        )
    write_bytes(Path(path) / SIGNATURE, signature_of(found.root, found.entries, key_file))


class _Check:
    """One verification, part by part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found = Verification(folder=str(path))
        self._entries: list[Entry] = []
        self._expected = Expected()
        self._written: set[str] = set()
        self._called: set[str] = set()
        self._readable = True
        try:
            self._info = read_json(path / "run.json")
        except RunFolderError as error:
            self._info, self._readable = {}, False
            self._wrong(Finding("changed", "run.json", None, str(error)))
        config = self._info.get("config")
        self._verifier: Any = config.get("verifier") if isinstance(config, dict) else None

    def _wrong(self, *findings: Finding) -> None:
        self.found.findings += findings

    def chain(self) -> None:
        self._entries, findings = read_chain(self.path / EVIDENCE, EVIDENCE, evidence_entry)
        self._wrong(*findings)

    def evidence(self, *, anchor: int) -> None:
        self._expected = expected = replay(self._entries, anchor=anchor)
        self._after_the_anchor()
        self._wrong(*(Finding("changed", EVIDENCE, line, text) for line, text in expected.problems))
        self.found.root = self._entries[-1].hash if self._entries else START
        self.found.entries = len(self._entries)
        stored = {stage: sum(not one.lost for one in here) for stage, here in expected.rollouts.items()}
        self.found.rollouts = {stage: count for stage, count in stored.items() if count}
        self.found.notes += [
            f"announced and never stored, because the run was killed: {what}" for what in expected.lost
        ]
        if not expected.closed:
            self.found.notes.append(
                "the run was not closed: it is being written, or was killed; the same command goes on from it, and "
                "settles what was under way"
            )

    def calls(self) -> None:
        entries, findings = read_chain(self.path / CALLS, CALLS, call_entry)
        self._wrong(*findings)
        self.found.calls = len(entries)
        self._written = {digest(entry.data) for entry in entries}
        self._called = {str(entry.data.get("rollout")) for entry in entries}
        if findings:
            return
        for lines, head, entry in self._expected.calls:
            if lines > len(entries):
                text = f"it ends after line {len(entries)}; {EVIDENCE}, line {entry}, was written when it had {lines}"
                self._wrong(Finding("missing", CALLS, len(entries) + 1, text))
                return
            if (entries[lines - 1].hash if lines else START) != head:
                text = f"the lines up to here are not those that {EVIDENCE}, line {entry}, was written after"
                self._wrong(Finding("changed", CALLS, lines, text))
                return
        last, _, entry = self._expected.calls[-1] if self._expected.calls else (0, START, 1)
        if self._expected.closed and len(entries) > last:  # a run that was killed may have lines that none announced
            text = f"the run was closed when it had {last} lines, see {EVIDENCE}, line {entry}"
            self._wrong(Finding("added", CALLS, last + 1, text))

    def rollouts(self) -> None:
        expected = self._expected
        files = {file.name for file in (self.path / "rollouts").glob("*.jsonl")}
        for stage in {*expected.rollouts, *expected.set_aside}:
            files |= {f"{stage}.jsonl", f"{stage}.discarded.jsonl"}
        for name in sorted(files):
            stage, aside = name.removesuffix(".jsonl"), name.endswith(".discarded.jsonl")
            known_of = expected.set_aside if aside else expected.rollouts
            announced = known_of.get(stage.removesuffix(".discarded"), [])
            name = f"rollouts/{name}"
            unseen: list[Finding] = []
            look = None if aside else partial(self._look_at_calls, unseen, name)
            compared = compare_rollouts(self.path / name, name, announced, look)
            known = {finding.line for finding in compared}
            self._wrong(*compared, *(one for one in unseen if one.kind != "changed" or one.line not in known))

    def _look_at_calls(self, unseen: list[Finding], name: str, number: int, line: dict[str, Any]) -> None:
        try:
            kept = line["id"] in self._called
            faults = calls_not_made(line, kept=kept)
            if kept:
                faults += lines_not_written(line, self._written)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # The comparison with the evidence names it, too, unless somebody made that anew.
            text = f"its calls have not the form of a rollout's: {error!r}"
            unseen.append(Finding("changed", name, number, text, str(line.get("id", ""))))
            return
        unseen += [Finding("unearned", name, number, fault, str(line["id"])) for fault in faults]

    def audits(self) -> None:
        if audit_verifier_of(self._info) is not None:
            self._wrong(*wrong_golds(self.path, self._info))

    def files(self) -> None:
        expected = self._expected
        if not self._readable:
            pass  # named already, and it may have no end
        elif expected.run_sha256 and file_sha256(self.path / "run.json") != expected.run_sha256:
            self._wrong(Finding("changed", "run.json", None, "it is not the one that the run was opened with"))
        elif expected.anchor and expected.covered_run_sha256 not in self._earlier_run_files():
            text = "more of it than the list of resumes is other than what the signature or root that was given covers"
            self._wrong(Finding("changed", "run.json", None, text))
        self._root_file()
        for stage, (sha, entry) in expected.finished.items():
            problems = compare_file(self.path, f"stages/{stage}.json", sha, entry)
            if not problems and stage in _FILE_OF:
                facts = read_json(self.path / "stages" / f"{stage}.json")["data"]
                problems = compare_file(self.path, _FILE_OF[stage], facts["sha256"], entry) if facts["found"] else []
            self._wrong(*problems)
        for file in sorted((self.path / "stages").glob("*.json")):
            if file.stem not in expected.finished:
                self._wrong(Finding("added", f"stages/{file.name}", None, "no entry of the evidence announced it"))
        for compare in (compare_folders, compare_files, compare_weights):
            for told in compare(self.path, expected):
                if isinstance(told, Finding):
                    self._wrong(told)
                else:
                    self.found.notes.append(told)

    def _earlier_run_files(self) -> set[str]:
        """The SHA-256 of `run.json` as it is, and as it was before each of its resumes was added."""
        resumes = self._info.get("resumed")
        if not isinstance(resumes, list):
            return set()
        earlier = ({**self._info, "resumed": resumes[:count]} for count in range(len(resumes) + 1))
        return {sha256(json_file(info)) for info in earlier}

    def _root_file(self) -> None:
        last, file = self._expected.last_closed, self.path / ROOT
        if not file.is_file():
            if last is not None:
                self._wrong(Finding("missing", ROOT, None, "the run was closed, and this file says with which root"))
            return
        content = _start_of(file)
        entries, root = read_root(content)
        # Where entries are missing or added, the last has another line; that is named already.
        place_known = not any(finding.file == EVIDENCE for finding in self.found.findings)
        if last is not None and root == last.hash and (entries == last.line or not place_known):
            return
        if place_known and entries > len(self._entries) and all(entry.hash != root for entry in self._entries):
            text = f"it ends after line {len(self._entries)}; {ROOT} was written when it had {entries}"
            self._wrong(Finding("missing", EVIDENCE, len(self._entries) + 1, text))
            if last is not None and last.line == len(self._entries):
                # The evidence was closed where it ends: it may be whole, and this file the one that was changed.
                self._wrong(Finding("changed", ROOT, None, f"or else it: {EVIDENCE} was closed where it ends"))
        else:
            where = f"line {last.line}" if last is not None else "there is none"
            text = f"it is not of the last closing entry of {EVIDENCE} ({where})"
            self._wrong(Finding("changed", ROOT, None, text))

    def anchor(self, root: str | None, public_key: Ed25519PublicKey | None) -> int:
        """The line of the last entry that the given root or key vouches for; 0 where nothing is vouched for."""
        anchor = self._line_of(root, "--root", "the root that was given") if root is not None else 0
        signature = self.path / SIGNATURE
        if signature.is_file():
            content, fault = check_signature(_start_of(signature), public_key)
            if fault is not None:
                self._wrong(Finding("signature", SIGNATURE, None, fault))
                return anchor
            line = self._line_of(content["root"], SIGNATURE, "the root that was signed")
            if public_key is not None:
                self.found.notes.append("signed with the key that was given")
                return max(anchor, line)
            last = self._entries[-1].line if self._entries else 0
            upto = f" up to line {line}" if line < last else ""
            self.found.notes.append(
                f"signed{upto} with the key {content['public_key']}: compare it with one that you know is the "
                "signer's, or pass that with --public-key, which checks what was written later, too"
            )
        elif public_key is not None:
            self._wrong(Finding("signature", SIGNATURE, None, "the run is not signed"))
        return anchor

    def _line_of(self, root: str, where: str, what: str) -> int:
        for entry in self._entries:
            if entry.hash == root:
                return entry.line
        text = f"{what} ({root[:16]}...) is the hash of no entry of the evidence"
        self._wrong(Finding("signature", where, None, text))
        return 0

    def _after_the_anchor(self) -> None:
        expected, last = self._expected, self._entries[-1].line if self._entries else 0
        if not 0 < expected.anchor < last:
            return
        covered = f"the signature or root that was given covers {EVIDENCE} up to line {expected.anchor}"
        for line, what in expected.overruling:
            text = f"{covered}; this entry, written later, would change {what}: it was not followed"
            self._wrong(Finding("signature", EVIDENCE, line, text))
        if expected.later:
            kinds = Counter(
                f"{entry.kind} of {entry.data.get('stage')}" if entry.kind == "rollout" else entry.kind
                for entry in expected.later
            )
            added = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            text = (
                f"{covered}; what was written later is not covered: {added}; where that is right, sign again or note "
                "the new root"
            )
            self._wrong(Finding("signature", EVIDENCE, expected.later[0].line, text))
        if not expected.overruling and not expected.later:
            self.found.notes.append(f"{covered}; the run was opened again later, which changed nothing")

    async def verdicts(self, verifier: VerifierLike, timeout_s: float | None) -> None:
        own = verifier_identity(verifier)
        if own != self._verifier:
            recorded = self._verifier or "none"
            self.found.notes.append(f"the run's verifier is recorded as {recorded}; the one given is {own}")
        audited_by = audit_verifier_of(self._info)
        for stage in sorted(self._expected.rollouts):
            name = f"rollouts/{stage}.jsonl"
            judge = audited_by if stage == AUDIT and audited_by is not None else verifier
            count, findings = await rescore(self.path / name, name, judge, timeout_s=timeout_s)
            self.found.rescored += count
            self._wrong(*findings)
        if judges_groups(verifier):
            self.found.notes.append(
                f"{verifier_name(verifier)} is not deterministic: what its judge said of groups is taken as recorded, "
                "and all that follows from it was computed again"
            )


# ---------------------------------------------------------------------------------------------------------------------
# The signature over a run's root (Ed25519, RFC 8032): who holds the key vouches for what the run recorded.

SIGNATURE = "evidence.sig.json"


def signature_of(root: str, entries: int, key_file: Path) -> bytes:
    """The content of `evidence.sig.json`: a signature over the root after so many entries.

    What is signed are the ASCII bytes `toolbake evidence <entries> <root>`. Raises `ConfigError` for a file that is no
    Ed25519 private key in PEM without a passphrase.
    """
    key = _key(key_file, is_private=True)
    return _signature_file(root, entries, key.public_key().public_bytes_raw(), key.sign(_message(root, entries)))


def _signature_file(root: str, entries: int, public_key: bytes, signature: bytes) -> bytes:
    content = {
        "algorithm": "Ed25519",
        "entries": entries,
        "public_key": public_key.hex(),
        "root": root,
        "signature": signature.hex(),
    }
    return canonical(content) + b"\n"


def check_signature(raw: bytes, wanted: Ed25519PublicKey | None) -> tuple[dict[str, Any], str | None]:
    """The content of `evidence.sig.json`, and what is wrong with it; None where the signature is right.

    With `wanted` it must be that key's.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        content = parse(raw)
        root, entries = content["root"], content["entries"]
        if not isinstance(root, str) or not isinstance(entries, int):
            raise ValueError("root is not text, or entries is not a number")
        given, signature = bytes.fromhex(content["public_key"]), bytes.fromhex(content["signature"])
        Ed25519PublicKey.from_public_bytes(given).verify(signature, _message(root, entries))
        if _signature_file(root, entries, given, signature) != raw:
            return {}, "its bytes are not those of a signature that toolbake wrote"
    except InvalidSignature:
        return {}, "the signature is not one of this root by this key"
    except (ValueError, KeyError, TypeError) as error:
        return {}, f"it is damaged: {error}"
    if wanted is not None and wanted.public_bytes_raw() != given:
        return content, f"it was signed with another key ({content['public_key']}) than the one that was given"
    return content, None


def _message(root: str, entries: int) -> bytes:
    return f"toolbake evidence {entries} {root}".encode()


def _key(path: Path, *, is_private: bool) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

    what, how = "public key in PEM", "write it with: openssl pkey -in key.pem -pubout -out public.pem"
    if is_private:
        what, how = (
            "private key in PEM without a passphrase",
            "make one with: openssl genpkey -algorithm ed25519 -out key.pem",
        )
    try:
        pem = path.read_bytes()
        key = load_pem_private_key(pem, password=None) if is_private else load_pem_public_key(pem)
    except OSError as error:
        raise ConfigError(f"the key {path} cannot be read: {error.strerror or error}; {how}") from error
    except (ValueError, TypeError) as error:  # TypeError: it has a passphrase
        raise ConfigError(f"{path} holds no {what}; {how}") from error
    if not isinstance(key, Ed25519PrivateKey if is_private else Ed25519PublicKey):
        raise ConfigError(f"{path} holds a key of another kind ({type(key).__name__}); {how}")
    return key


# ---------------------------------------------------------------------------------------------------------------------
# The second scoring of a run: verdicts given again, from the evidence alone.


async def rescore(
    path: Path, name: str, verifier: VerifierLike, *, timeout_s: float | None = 60
) -> tuple[int, list[Finding]]:
    """Run `verifier` on every scored rollout of a file; how many, and each reward that it does not give again.

    Score and components must be equal. A verifier that disagrees is asked once more: one that then disagrees with
    itself is not deterministic, which the finding reports. Rollouts of a training step that a group verifier has judged
    together are judged together again, see `GroupVerifier.again`.
    """
    count, findings = 0, list[Finding]()
    again = _Again(verifier, timeout_s)
    for key, members in groupby(_scored(path), key=_group if judges_groups(verifier) else lambda one: one.number):
        group = list(members)
        faults = await again.of_group(group) if isinstance(key, str) else await again.of_each(group)
        findings += [Finding("unearned", name, one.number, fault, str(one.line["id"])) for one, fault in faults]
        count += len(group)
        if count % 100 < len(group):
            await anyio.lowlevel.checkpoint()
    return count, findings


@dataclass(frozen=True)
class _Scored:
    """A line of a file, without its verdict, and the verdict."""

    number: int
    line: dict[str, Any]
    recorded: Verdict

    def rollout(self) -> Rollout:
        return Rollout.model_validate(self.line)


def _group(one: _Scored) -> str | int:
    """Rollouts of a training step are judged in their groups, which are together in their file; others alone."""
    step = one.line.get("step")
    return str(one.line.get("group")) if isinstance(step, int) and step >= 0 else one.number


class _Again:
    """Verdicts given again, and what differs from those that were recorded."""

    def __init__(self, verifier: VerifierLike, timeout_s: float | None) -> None:
        self._verifier = verifier
        self._timeout_s = timeout_s

    async def of_each(self, scored: Sequence[_Scored]) -> list[tuple[_Scored, str]]:
        faults = [(one, await self._fault(one)) for one in scored]
        return [(one, fault) for one, fault in faults if fault is not None]

    async def of_group(self, group: Sequence[_Scored]) -> list[tuple[_Scored, str]]:
        """What each gets alone, and what follows from that and from what the group's judge had said."""
        assert judges_groups(self._verifier)
        faults: dict[int, str] = {}
        alone: dict[str, Verdict] = {}
        rollouts: list[Rollout] = []
        for one in group:
            try:
                rollouts.append(one.rollout().model_copy(update={"verdict": one.recorded}))
                alone[rollouts[-1].id] = await judge_evidence(self._verifier, one.rollout(), self._timeout_s)
            except ValidationError as error:
                faults[one.number] = _no_rollout(error)
            except VerifierError as error:
                faults[one.number] = _no_verdict(one.recorded, error)
        try:
            found = self._verifier.again(rollouts, alone)
        except VerifierError as error:
            found = {}
            faults |= {one.number: _no_verdict(one.recorded, error) for one in group if one.number not in faults}
        for one in group:
            own = alone.get(str(one.line["id"]))
            if own is not None and one.number not in faults:
                again = found.get(str(one.line["id"]), own)
                if not _same(again, one.recorded):
                    faults[one.number] = _differing(one.recorded, again)
        return [(one, faults[one.number]) for one in group if one.number in faults]

    async def _fault(self, one: _Scored) -> str | None:
        try:
            again = await judge_evidence(self._verifier, one.rollout(), self._timeout_s)
            if _same(again, one.recorded):
                return None
            once_more = await judge_evidence(self._verifier, one.rollout(), self._timeout_s)
        except ValidationError as error:
            return _no_rollout(error)
        except VerifierError as error:
            return _no_verdict(one.recorded, error)
        if not _same(again, once_more):
            return (
                f"the verifier is not deterministic: {one.recorded.score:g} was recorded, {again.score:g} and "
                f"{once_more.score:g} were given now; its rewards cannot be recomputed"
            )
        return _differing(one.recorded, again)


def _no_rollout(error: ValidationError) -> str:
    return f"it is not a rollout any more: {error.errors()[0]['msg']}"


def _no_verdict(recorded: Verdict, error: VerifierError) -> str:
    return f"the reward {recorded.score:g} was recorded, and from its evidence the verifier gives none: {error}"


def _differing(recorded: Verdict, again: Verdict) -> str:
    if again.score != recorded.score:
        return f"the reward {recorded.score!r} was recorded, and its evidence gives {again.score!r}"
    if again.components != recorded.components:
        return f"the components {recorded.components} were recorded, and its evidence gives {again.components}"
    if again.turn_rewards != recorded.turn_rewards:
        return f"the turn_rewards {recorded.turn_rewards} were recorded, and its evidence gives {again.turn_rewards}"
    return f"it was compared with {recorded.rests_on}, as recorded, and its group's evidence is {again.rests_on}"


_SAME = ("score", "components", "rests_on", "turn_rewards")


def _same(one: Verdict, other: Verdict) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _SAME)


def _scored(path: Path) -> Iterator[_Scored]:
    """Lines that are not rollouts are named elsewhere."""
    for number, line in _lines(path):
        try:
            if isinstance(line["id"], str) and line["verdict"] is not None and line["failure"] is None:
                yield _Scored(number, {**line, "verdict": None}, Verdict.model_validate(line["verdict"]))
        except (ValueError, KeyError):  # pydantic's among them
            continue
