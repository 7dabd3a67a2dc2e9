"""The evidence of a run, written as it goes on: announced, then stored, so that a kill leaves nothing unexplained."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mcp_bridge.ledger import LedgerLine

from .canonical import START, canonical, digest, link, parse, rollout_links, sha256, weights_versions

if TYPE_CHECKING:
    from ..traces.journal import Journal

FORMAT = 2
EVIDENCE = "evidence.jsonl"
"""The run's chain: one entry a line, each with the hash of the one before it."""
ROOT = "evidence.root.json"
"""The root when the run was last closed: what to note elsewhere, and what shows that the end was cut off."""
CALL = "call"
STAGE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""What a stage may be called: its name is that of a file."""
_OF_THE_RUN = frozenset({"resumed", "closed", "tools", "published"})


class EvidenceLog:
    """The chain of a run and that of its calls. One writer; its threads may share it.

    An entry of `evidence.jsonl` is `{"data", "hash", "kind", "prev"}` in canonical form, `hash` being
    `link(prev, kind, digest(data))`. A line of `calls.jsonl` is the call's, with `prev` and `hash` of a chain of its
    own beside its fields. Entries record how long that chain was (`calls`), so neither can be cut short alone.
    """

    def __init__(
        self, entries: Journal, calls: Journal, *, verifier: Any, verifiers: Mapping[str, Any] | None = None
    ) -> None:
        """Goes on from what both files hold. `verifier`: the verifier's identity in the run's config; `verifiers`:
        those of stages that have another one, by stage."""
        self._entries = entries
        self._calls = calls
        self._verifier = verifier
        self._verifier_digest = digest(verifier)
        self._verifiers = dict(verifiers or {})
        self._lock = threading.RLock()
        self._head = START
        self._tools = ""
        self._weights: dict[str, dict[str, Any]] = {}
        self._published: dict[int, dict[str, Any]] = {}
        self._finished: dict[str, str] = {}
        self._lost: str | None = None
        self.last_announced: dict[str, Any] | None = None
        """The last entry that announced something to be stored; None where what became of it is recorded."""
        self.begun = False
        self._entries_lines = 0
        for line in entries.read():
            self._seen(line)
        self._calls_lines, self._calls_head = 0, START
        for line in calls.read():
            self._calls_lines += 1
            self._calls_head = str(line.get("hash", START))

    def _seen(self, entry: dict[str, Any]) -> None:
        self._head = str(entry.get("hash", START))
        self._entries_lines += 1
        self.begun = True
        kind = entry.get("kind")
        if kind == "tools":
            self._tools = digest(entry.get("data"))
        elif kind == "weights":
            self._weights[entry["data"]["folder"]] = entry["data"]
        elif kind == "published":
            self._published[entry["data"]["version"]] = entry["data"]
        elif kind == "finished":
            self._finished[entry["data"]["stage"]] = entry["data"]["sha256"]
        elif kind == "reopened":
            self._finished.pop(entry["data"]["stage"], None)
        if kind in ("rollout", "finished", "set_aside", "reopened"):
            self.last_announced = entry
        elif kind not in _OF_THE_RUN:
            self.last_announced = None

    # ---- the run

    def open(self, run_sha256: str) -> None:
        """The run begins, or goes on. `run_sha256`: of the bytes of `run.json`."""
        first: dict[str, Any] = {"format": FORMAT, "verifier": self._verifier} if not self.begun else {}
        if first and self._verifiers:
            first["verifiers"] = self._verifiers
        self._append("resumed" if self.begun else "begun", {**first, "run": run_sha256, "calls": self._calls_state()})

    def close(self) -> bytes:
        """The last entry; returns the content of `evidence.root.json`, see `root_file`."""
        self._append("closed", {"calls": self._calls_state()})
        return root_file(self._entries_lines, self._head)

    def tools(self, tools: Sequence[dict[str, Any]]) -> None:
        """The tools' records as plain data, from here on; nothing where they are those recorded last."""
        data = {"tools": list(tools)}
        with self._lock:
            if digest(data) != self._tools:
                self._append("tools", data)
                self._tools = digest(data)

    def weights(self, folder: str, version: int, files: dict[str, str]) -> None:
        """A saved model: the weights' version, and the SHA-256 of every file in `folder`; nothing where known."""
        if not self.has_weights(folder, version, files):
            self._append("weights", _saved(folder, version, files))

    def has_weights(self, folder: str, version: int, files: dict[str, str]) -> bool:
        """Whether this is what was recorded of the folder last."""
        return self._weights.get(folder) == _saved(folder, version, files)

    def published(self, version: int, weights: dict[str, Any]) -> None:
        """Weights that rollouts are sampled from, from here on; nothing where they are those of this version already.

        `weights`: their digest, see `sdk.evidence.saved_weights`, and what it is of.
        """
        data = {**weights, "version": version}
        with self._lock:
            if self._published.get(version) != data:
                self._append("published", data)

    # ---- what is stored

    @contextlib.contextmanager
    def rollout(self, stage: str, raw: bytes) -> Iterator[None]:
        """Announce a rollout; the block stores it. `raw`: its line as it will be written, line break included."""
        line = parse(raw)
        verifier = digest(self._verifiers[stage]) if stage in self._verifiers else self._verifier_digest
        links = rollout_links(line, stage=stage, tools=self._tools, verifier=verifier)
        # The digests of the weights that sampled it, by version; nothing where none was recorded.
        versions = weights_versions(line) if self._published else []
        weights = {str(one): self._published[one]["sha256"] for one in versions if one in self._published}
        data = {
            "stage": stage,
            "id": line["id"],
            "sha256": sha256(raw),
            "tools": self._tools,
            "verifier": verifier,
            "head": links.head,
            "inputs": links.inputs,
            "marks": list(links.marks),
            **({"weights": weights} if weights else {}),
        }
        with self._announced("rollout", data):
            yield

    @contextlib.contextmanager
    def finished(self, stage: str, raw: bytes) -> Iterator[None]:
        """Announce the end of a stage; the block writes its marker, `raw`."""
        with self._announced("finished", {"stage": stage, "sha256": sha256(raw)}):
            yield

    def has_finished(self, stage: str, sha256_of_marker: str) -> bool:
        """Whether this is the marker with which the stage was announced as finished last."""
        return self._finished.get(stage) == sha256_of_marker

    def set_aside(self, stage: str, digests: Sequence[str]) -> None:
        """Announce that lines, given by their SHA-256, move to the stage's discarded rollouts."""
        self._append("set_aside", {"stage": stage, "sha256": list(digests)})

    def reopened(self, stage: str) -> None:
        """Announce that a finished stage goes on: its marker is removed."""
        self._append("reopened", {"stage": stage})

    def lost(self, sha256_of_line: str) -> None:
        """What was announced last was never stored."""
        self._append("lost", {"sha256": sha256_of_line})

    def call(self, line: LedgerLine) -> None:
        """Write a line of the calls' ledger. The system has it when this returns."""
        fields = line.model_dump()
        with self._lock:
            head = link(self._calls_head, CALL, digest(fields))
            self._calls.append_raw(canonical({**fields, "prev": self._calls_head, "hash": head}) + b"\n")
            self._calls_head = head
            self._calls_lines += 1

    # ---- inside

    @contextlib.contextmanager
    def _announced(self, kind: str, data: dict[str, Any]) -> Iterator[None]:
        with self._lock:
            self._append(kind, {**data, "calls": self._calls_state()})
            self._lost = data["sha256"]
            yield
            self._lost = None

    def _append(self, kind: str, data: dict[str, Any]) -> None:
        with self._lock:
            if self._lost is not None:  # the one before could not be stored, for example because the disk was full
                lost, self._lost = self._lost, None
                self._append("lost", {"sha256": lost})
            head = link(self._head, kind, digest(data))
            entry = {"data": data, "hash": head, "kind": kind, "prev": self._head}
            self._entries.append_raw(canonical(entry) + b"\n")
            self._seen(entry)

    def _calls_state(self) -> dict[str, Any]:
        return {"lines": self._calls_lines, "head": self._calls_head}


def _saved(folder: str, version: int, files: dict[str, str]) -> dict[str, Any]:
    """The data of a `weights` entry; `whole`: `files` are all files of the folder."""
    return {"folder": folder, "version": version, "files": files, "whole": True}


def root_file(entries: int, root: str) -> bytes:
    """The content of `evidence.root.json`: how many entries there were, and the hash of the last."""
    return canonical({"entries": entries, "root": root}) + b"\n"


def read_root(content: bytes) -> tuple[int, str]:
    """What a root file says: how many entries, and the hash of the last; `(-1, "")` for bytes of another form."""
    try:
        parsed = parse(content)
        entries, root = int(parsed["entries"]), str(parsed["root"])
    except (ValueError, KeyError, TypeError):
        return -1, ""
    return (entries, root) if content == root_file(entries, root) else (-1, "")
