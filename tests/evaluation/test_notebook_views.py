"""What a notebook shows of results, and text that tries to break out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rollout_making import make_condition, make_rollout

import mcp_bridge
import sdk
from mcp_bridge.records import Tool, ToolAnnotations, ToolResult
from sdk.distillation import DistilledData, Selection
from sdk.evaluation import build_report
from sdk.probing.certificate import Certificate, Earned, Finding
from sdk.probing.probes import PROBES
from sdk.records import Failure, Message, ToolCall, Verdict
from sdk.synthesis.task_checks import Problem

ATTACK = "```\n# Injected\n\n<img src=x onerror=alert(1)> ![b](https://evil.example) | b | $\\href{x}{y}$\n1. a\n=="
PARSER = MarkdownIt("commonmark").enable("table")


def _earned(rollout: sdk.Rollout) -> Earned:
    return Earned(PROBES[0], [1.0], 0, [Finding(PROBES[0], rollout)])


def shown(value: Any) -> str:
    """What Jupyter displays of a cell's value."""
    return str(value._repr_markdown_())


def parsed(markdown: str) -> list[Token]:
    return [inner for token in PARSER.parse(markdown) for inner in (token, *(token.children or []))]


def require_harmless(markdown: str, *, tables: int = 0) -> None:
    kinds = [token.type for token in parsed(markdown)]
    assert {"html_inline", "html_block", "link_open", "image", "heading_open"}.isdisjoint(kinds)
    assert kinds.count("table_open") == tables
    outside_blocks = "".join(token.content for token in PARSER.parse(markdown) if token.type == "inline")
    assert outside_blocks.count("$") == outside_blocks.count("\\$")  # which would begin a formula


class Hostile:
    """A source whose tools a stranger named and described."""

    tools = (
        Tool(
            name=ATTACK, description=ATTACK, input_schema={"type": "object", "properties": {ATTACK: {"const": ATTACK}}}
        ),
        Tool(name="read", description="Reads.", annotations=ToolAnnotations(read_only=True)),
    )
    can_setup = has_state = False

    def open_world(self, world_id: str, setup: Any = None) -> Any:
        raise NotImplementedError  # nobody opens one


async def test_tools_are_a_table_of_what_can_be_called() -> None:
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    async with mcp_bridge.connect([add]) as toolset:
        head, rule, row = shown(toolset).splitlines()
    assert [cell.strip() for cell in head.split("|")[1:-1]] == ["tool", "description", "behaviour", "from"]
    assert rule.startswith("| ---")
    assert [cell.strip() for cell in row.split("|")[1:-2]] == [
        "add(a: integer, b?: integer = 1)",
        "Add two numbers.",
        "no annotations",
    ]


async def test_a_tool_that_is_left_out_is_said_with_the_reason() -> None:
    unusable = Tool(name="odd", input_schema={"type": "object", "properties": {"a": {"type": "nonsense"}}})

    class Odd(Hostile):
        tools = (*Hostile.tools[1:], unusable)

    async with mcp_bridge.connect(Odd()) as toolset:
        assert [one.tool for one in toolset.left_out] == ["odd"]
        assert shown(toolset).splitlines()[-1].startswith("- left out: odd of ")


async def test_tools_of_a_stranger_cannot_break_out() -> None:
    async with mcp_bridge.connect(Hostile()) as toolset:
        require_harmless(shown(toolset), tables=1)


def test_a_report_is_a_table_with_its_comparisons_below() -> None:
    report = build_report({"untrained": make_condition("0000"), "after GRPO": make_condition("011x")})
    lines = shown(report).splitlines()
    assert lines[0].startswith("**after GRPO: 1 of 4 rollouts are unscored")
    assert lines[2].split("|")[1].strip() == "condition"
    assert "66.7 % (" in lines[5]
    assert lines[-1].startswith("- untrained → after GRPO: +66.7 points")
    assert lines[-1] == f"- {str(report).splitlines()[-1]}"


def test_names_and_reasons_in_a_report_cannot_break_out() -> None:
    broken = [make_rollout("t", None, failure=Failure(boundary="tools", kind=ATTACK, message=ATTACK))]
    report = build_report({ATTACK: broken, f"{ATTACK}2": make_condition("1")}, run={"handed_over": ATTACK})
    require_harmless(shown(report), tables=1)


def test_a_trained_model_is_shown_with_its_report_and_where_everything_is(tmp_path: Path) -> None:
    run = tmp_path / "runs | <b>"
    run.mkdir()
    report = build_report({"untrained": make_condition("01")})
    report.write(run)
    result = sdk.TrainResult(model_dir=run / "model", run_dir=run, report=report)
    require_harmless(shown(result), tables=2)
    assert shown(result).startswith(shown(report))
    assert "report.md" in shown(result)
    assert "learning_curve.png" not in shown(result)


def test_a_rollout_is_its_conversation_and_its_verdict() -> None:
    lines = shown(make_rollout("t1", 0.5)).splitlines()
    assert lines[1:4] == [
        "user:      Where is order t1?",
        'call:      get_order {"order_id": "t1"}',
        'result:    {"status": "shipped"}',
    ]
    assert lines[-4:-1] == [
        "ended: answered after 2 turns and 1 call, 1.5 s",
        "verdict: 0.5 (answer 0.5)",
        "         the answer scored 0.5",
    ]


@pytest.mark.parametrize("failed", [False, True])
def test_what_a_model_and_its_tools_wrote_cannot_break_out(failed: bool) -> None:
    rollout = make_rollout(
        ATTACK,
        None if failed else 0.0,
        messages=[
            Message(role="user", content=ATTACK),
            Message(role="assistant", content=ATTACK, tool_calls=[ToolCall(id="1", name=ATTACK)]),
            Message(role="tool", content=ATTACK, tool_call_id="1"),
        ],
        result=ToolResult(text=ATTACK),
        **({"failure": Failure(boundary="tools", kind="x", message=ATTACK)} if failed else {}),
        **({} if failed else {"verdict": Verdict(score=0, components={ATTACK: 1.0}, explanation=ATTACK)}),
    )
    markdown = shown(rollout)
    assert [token.type for token in PARSER.parse(markdown)] == ["fence"]
    assert ("unscored: ```" in markdown) == failed


@pytest.mark.parametrize(
    "value",
    [
        sdk.SynthesizedTasks([], wanted=3, attempts=5, left_out={ATTACK: 2}, unused_tools={ATTACK: ATTACK}),
        sdk.CheckedTasks([], [Problem(ATTACK, ATTACK, ATTACK)]),
        DistilledData(Path(ATTACK), Selection()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_results_are_what_print_shows_as_a_list(value: Any) -> None:
    markdown = shown(value)
    require_harmless(markdown)
    said = [line.lstrip() for line in str(value).splitlines() if line.strip()]
    assert len([line for line in markdown.splitlines() if line]) == len(said)
    assert parsed(markdown)[1].content.startswith(said[0][:20])


def test_a_certificate_is_shown_as_a_table_of_its_probes_and_a_list() -> None:
    value = Certificate(1, [], [_earned(make_rollout("t", 1.0, answer=ATTACK))], not_called=[ATTACK])
    require_harmless(shown(value), tables=1)
