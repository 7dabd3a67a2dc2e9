"""A database server, with a fresh database for each rollout: wrong SQL is read, and rollouts count."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from other_environments import python_of

import sdk
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Message, ToolCall
from sdk.traces import RunFolder

STOCK = 7


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """An `mcp.json`: mcp-server-sqlite over a copy of `seed/shop.db` for each world."""
    (tmp_path / "seed").mkdir()
    with sqlite3.connect(tmp_path / "seed" / "shop.db") as database:
        database.execute("CREATE TABLE lamps (stock INTEGER)")
        database.execute("INSERT INTO lamps VALUES (?)", (STOCK,))
    database.close()
    python = python_of("popular-servers")
    program = [str(python.with_name("mcp-server-sqlite")), "--db-path", "${TOOLBAKE_WORLD_DIR}/shop.db"]
    entry = {"command": str(python), "args": program, "toolbake": {"world": {"folder": "seed"}, "warm": 0}}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"shop": entry}}))
    return config


def sells_one(number: int) -> dict[str, Any]:
    """A task whose demonstration asks of a table that is not there, reads the error, and goes on with the right one."""
    statements = [
        ("write_query", "UPDATE lamp SET stock = stock - 1"),
        ("write_query", "UPDATE lamps SET stock = stock - 1"),
        ("read_query", "SELECT stock FROM lamps"),
    ]
    turns: list[dict[str, Any]] = [
        {"role": "assistant", "tool_calls": [{"id": "c", "name": name, "arguments": {"query": query}}]}
        for name, query in statements
    ]
    return {
        "prompt": f"Sale {number}: take one lamp out of stock. How many are left?",
        "demonstration": [*turns, {"role": "assistant", "content": f"{STOCK - 1} are left."}],
    }


def sold_one(rollout: sdk.Rollout) -> float:
    """The stock that the last query found: 6 in a database of the rollout's own, less in one that it shares."""
    chance = sum(map(ord, rollout.id)) % 2  # so that the groups of a random model have a signal
    return float(bool(rollout.calls) and f"'stock': {STOCK - 1}" in rollout.calls[-1].result.text) or 0.01 * chance


@pytest.mark.timeout(300)
def test_wrong_sql_is_read_and_corrected_and_no_rollout_of_the_training_is_unscored(
    shop: Path, tiny_model_dir: Path, tmp_path: Path
) -> None:
    options = {
        "warm_start": {"max_steps": 1, "batch_size": 2},
        "grpo": {"max_steps": 1, "prompts_per_step": 2, "num_generations": 2},
        "evaluation": {"heldout": 1, "validation": 0, "max_served": 0},
        "limits": {"max_turns": 4, "max_turn_tokens": 6},
        "probes.tasks": 0,
    }
    tasks = [sells_one(number) for number in range(4)]  # each world is a process of the server
    run = sdk.train(shop, tasks, sold_one, str(tiny_model_dir), tmp_path / "run", options)
    conditions = run.report.conditions.values()
    assert [one.unscored for one in conditions] == [0, 0, 0]
    grpo = RunFolder.open_to_read(run.run_dir).read_rollouts("grpo")
    assert len(grpo) == 4
    assert all(rollout.scored for rollout in grpo)


def test_a_policy_reads_the_databases_error_and_corrects_its_sql(shop: Path) -> None:
    def reply(messages: Sequence[Message], _seed: int) -> ToolCall | str:
        heard = messages[-1].content
        if messages[-1].role == "user":
            return ToolCall(id="", name="write_query", arguments={"query": "UPDATE lamp SET stock = stock - 1"})
        if "no such table: lamp" in heard:
            return ToolCall(id="", name="write_query", arguments={"query": "UPDATE lamps SET stock = stock - 1"})
        if "affected_rows" in heard:
            return ToolCall(id="", name="read_query", arguments={"query": "SELECT stock FROM lamps"})
        return f"{STOCK - 1} are left."

    tasks = [{"prompt": sells_one(number)["prompt"]} for number in range(4)]
    report = sdk.evaluate(shop, tasks, sold_one, model=ScriptedAgent(reply))
    (condition,) = report.conditions.values()
    assert (condition.scored, condition.unscored, condition.success.interval.estimate) == (4, 0, 1.0)
