"""What a server answers counts, whatever the code of the error; what it does not answer is unscored and reported."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk.policies.scripted import ScriptedAgent

SHOP = """
import os
import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

SCHEMA = {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]}

async def list_tools(context, params):
    return types.ListToolsResult(tools=[types.Tool(name="query", input_schema=SCHEMA)])

async def call_tool(context, params):
    table = params.arguments["sql"].rpartition(" ")[2]
    if table == "crash":
        os._exit(3)
    if table != "orders":
        raise MCPError(types.INTERNAL_ERROR, f'relation "{table}" does not exist')
    return types.CallToolResult(content=[types.TextContent(text="7 orders")])

async def main():
    server = Server("shop", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


def says_seven(rollout: sdk.Rollout) -> bool:
    return "7 orders" in rollout.answer


def asking(*, corrects: bool) -> ScriptedAgent:
    """An agent that queries the table that the task names; where that does not exist, it `corrects` the name."""

    def reply(messages: list[sdk.Message], seed: int) -> Any:
        said = messages[-1].content
        if messages[-1].role == "tool" and not (corrects and "does not exist" in said):
            return said
        table = "orders" if messages[-1].role == "tool" else said.rpartition(" ")[2]
        return sdk.ToolCall(id="", name="query", arguments={"sql": f"SELECT * FROM {table}"})

    return ScriptedAgent(reply, "corrects" if corrects else "gives up")


def tasks(*tables: str) -> list[dict[str, Any]]:
    return [{"id": f"t{n}", "prompt": f"How many are in {table}"} for n, table in enumerate(tables)]


@pytest.fixture
def shop(tmp_path: Path) -> list[str]:
    path = tmp_path / "shop.py"
    path.write_text(SHOP)
    return [sys.executable, str(path)]


async def test_an_internal_error_of_a_server_is_read_by_the_policy_and_its_rollout_counts(shop: list[str]) -> None:
    given = tasks("orders", "order", "Order", "ordres")
    models = {"corrects": asking(corrects=True), "gives up": asking(corrects=False)}
    report = await sdk.evaluate_async(shop, given, says_seven, models=models)
    rates = {name: (c.unscored, c.success and c.success.interval.estimate) for name, c in report.conditions.items()}
    assert rates == {"corrects": (0, 1.0), "gives up": (0, 0.25)}
    assert report.conditions["gives up"].errors["tool_error"].rollouts == 3
    assert "unscored." not in str(report)
    assert "at worst" not in str(report)


async def test_a_report_with_many_unscored_rollouts_begins_with_them_and_shows_the_worst_case(shop: list[str]) -> None:
    report = await sdk.evaluate_async(
        shop, tasks("orders", "crash", "crash", "crash"), says_seven, model=asking(corrects=True)
    )
    (condition,) = report.conditions.values()
    assert condition.unscored == 3
    assert condition.success is not None
    assert (condition.success.interval.estimate, condition.success.worst_case) == (1.0, 0.25)
    first = str(report).splitlines()[0]
    assert "3 of 4 rollouts are unscored, all for one reason: " in first
    assert "If they count as failed, success is 25.0 %, not 100.0 %." in first
    assert "100.0 % (20.7 to 100.0 %), at worst 25.0 %" in str(report)
    assert "3 of 4 rollouts are unscored" in "\n".join(report.markdown().splitlines()[:6])
    assert re.search(r"\| corrects *\| *100.0 % \| *20.7 to 100.0 % \| *25.0 % \|", report.markdown())
