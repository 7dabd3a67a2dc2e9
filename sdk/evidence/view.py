"""What a verifier sees of a rollout: what its evidence stores, and nothing else."""

from __future__ import annotations

import json
import math
from operator import countOf
from typing import Any

from mcp_bridge.ledger.lines import LedgerLine
from mcp_bridge.toolsets.plain import is_plain

from ..records import Rollout, TokenRow
from ..traces.json_text import dump_json

_dumped, _read = Rollout.__pydantic_serializer__.to_python, Rollout.__pydantic_validator__.validate_python


def stored_view(rollout: Rollout) -> Rollout:
    """The rollout as it is read back from a run folder, without a verdict. It shares nothing with the original that
    can be changed.

    A verifier that sees this sees the same when it runs again on the evidence alone. Raises what cannot be stored
    raises: `TypeError` or `ValueError`.
    """
    aside: dict[str, list[Any]] = {}
    if all(map(_read_back_equal, rollout.rows)):
        aside["rows"] = [row.copied() for row in rollout.rows]
    if all(map(_is_plain_line, rollout.ledger)):
        aside["ledger"] = list(rollout.ledger)  # lines cannot be changed
    bare = rollout.model_copy(update={"verdict": None, **{name: [] for name in aside}})
    fields = _dumped(bare)
    for record in fields["calls"]:
        record["result"]["notes"] = list(record["result"]["notes"])
    # Writing JSON and reading it takes three times as long, and gives plain data back as it is.
    view: Rollout = _read(fields if is_plain(fields) else json.loads(dump_json(bare)))
    for name, records in aside.items():
        setattr(view, name, records)
    return view


def _is_plain_line(line: LedgerLine) -> bool:
    return type(line) is LedgerLine and f"{line.rollout}{line.call}{line.key}{line.tool}{line.note}".isascii()


def _read_back_equal(row: TokenRow) -> bool:
    """Whether JSON gives back the row's numbers as they are; most of a rollout's JSON is these."""
    prompt, tokens, sampled, logprobs, versions = _columns(row)
    return (
        len(tokens) == len(sampled) == len(logprobs) == len(versions)
        and _are_all(int, prompt)
        and _are_all(int, tokens)
        and _are_all(int, versions)
        and _are_all(bool, sampled)
        and _are_all(float, logprobs)
        and math.isfinite(sum(logprobs))
    )


def _are_all(kind: type, values: list[Any]) -> bool:
    return countOf(map(type, values), kind) == len(values)


def _columns(row: TokenRow) -> tuple[list[Any], ...]:
    return row.prompt_ids, row.completion_ids, row.sampled, row.logprobs, row.versions
