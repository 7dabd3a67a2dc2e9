"""A rollout as a chain of links: from the task over every call and result to the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .canonical import START, digest, link

_START_FIELDS = ("id", "policy", "group", "seed", "step", "initial_state")
_LISTS = (("messages", "message"), ("calls", "call"), ("ledger", "ledger line"), ("rows", "row"))
_OWN_LINKS = frozenset({"task", "shown_tools", "verdict", *_START_FIELDS, *(name for name, _ in _LISTS)})
_MARK_CHARS = 16


@dataclass(frozen=True)
class RolloutLinks:
    """A rollout's chain. `head` stands for all of it; `inputs` for all that the verifier saw, before its verdict."""

    head: str
    inputs: str
    marks: tuple[str, ...]
    """`kind:digest` of each link's data, the digest cut to 16 characters: not what the chain rests on, but what names
    the part that was changed."""


def rollout_links(line: dict[str, Any], *, stage: str, tools: str, verifier: str) -> RolloutLinks:
    """The chain of a stored rollout. `line`: its line of `rollouts/<stage>.jsonl`, parsed.

    `tools`: the digest of the tools' entry that was recorded last, empty where there is none; `verifier`: the digest
    of the verifier's identity in the run's config, which is that of None where it names none.

    Links, in order: `task`; `tools` (schemas, and which were shown); `start` (stage, id, policy, seed, initial state);
    each `message`, `call` (with its result), `ledger line` and token `row`; `weights` (the versions that sampled);
    `end` (the final state and every other field); `verdict`, with the verifier's identity.
    """
    head, marks = START, list[str]()
    for kind, data in _inputs(line, stage, tools):
        head = _joined(head, kind, data, marks)
    inputs = head
    head = _joined(head, "verdict", {"verdict": line.get("verdict"), "verifier": verifier}, marks)
    return RolloutLinks(head, inputs, tuple(marks))


def _joined(head: str, kind: str, data: Any, marks: list[str]) -> str:
    data_digest = digest(data)
    marks.append(f"{kind}:{data_digest[:_MARK_CHARS]}")
    return link(head, kind, data_digest)


def _inputs(line: dict[str, Any], stage: str, tools: str) -> Iterator[tuple[str, Any]]:
    yield "task", line.get("task")
    yield "tools", {"schemas": tools, "shown": line.get("shown_tools")}
    yield "start", {"stage": stage, **{name: line.get(name) for name in _START_FIELDS}}
    for name, kind in _LISTS:
        for item in _items(line.get(name)):
            yield kind, item
    yield "weights", weights_versions(line)
    yield "end", {name: value for name, value in line.items() if name not in _OWN_LINKS}


def weights_versions(line: dict[str, Any]) -> list[int]:
    """The versions of the weights that sampled a rollout's tokens, ascending; none for a policy without tokens."""
    rows = [row for row in _items(line.get("rows")) if isinstance(row, dict)]
    found = {version for row in rows for version in _items(row.get("versions")) if isinstance(version, int)}
    return sorted(found - {-1})


def _items(value: Any) -> list[Any]:
    # A file that was tampered with may hold anything; it is hashed all the same.
    return value if isinstance(value, list) else [] if value is None else [value]


def differing(recorded: tuple[str, ...], found: tuple[str, ...]) -> list[str]:
    """Which parts differ between the marks of two rollouts: `call 2`, `verdict`, `4 messages where 5 were recorded`."""
    then, now = _by_kind(recorded), _by_kind(found)
    parts: list[str] = []
    for kind in dict.fromkeys([*then, *now]):
        old, new = then.get(kind, []), now.get(kind, [])
        if len(old) != len(new):
            parts.append(f"{len(new)} {kind}s where {len(old)} were recorded")
        elif len(old) == 1 and old != new:
            parts.append(kind if kind in _SINGLE else f"{kind} 1")
        else:
            parts += [f"{kind} {n}" for n, (a, b) in enumerate(zip(old, new, strict=True), start=1) if a != b]
    return parts


_SINGLE = frozenset({"task", "tools", "start", "weights", "end", "verdict"})


def _by_kind(marks: tuple[str, ...]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for mark in marks:
        kind, _, rest = mark.rpartition(":")
        kinds.setdefault(kind, []).append(rest)
    return kinds
