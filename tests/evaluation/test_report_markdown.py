"""The report as people read it, and text that tries to break out of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rollout_making import make_condition, make_rollout

from mcp_bridge.records import ToolResult
from mcp_bridge.safe_text import cut, fence, inline, table, visible
from sdk.evaluation import TrainingSummary, build_report
from sdk.records import Failure, Message, ToolCall, Verdict
from sdk.transcript import transcript

CONDITIONS = {
    "untrained": make_condition("0000000000"),
    "after warm start": make_condition("0001100x00"),
    "after GRPO": make_condition("1101111x10"),
}
ATTACKS = [
    "<script>alert(1)</script>",
    "```\n# Broken out\n```",
    "~~~~~~~~~~\n<img src=x>",
    "| a | b |\n\n## Injected heading",
    "![beacon](https://evil.example/x.png)",
    "\x1b[2J\x1b[31mred",
    "right\u202eleft\u2066",
    "a\r\nb\u2028c",
    "`````````````\n<b>",
]


PARSER = MarkdownIt("commonmark").enable("table")
"""CommonMark with raw HTML allowed and GitHub's tables: what breaks out here breaks out there."""


def parsed(markdown: str) -> list[Token]:
    """All tokens of the text, those inside of lines included."""
    tokens = PARSER.parse(markdown)
    return [inner for token in tokens for inner in (token, *(token.children or []))]


def test_the_short_form_shows_each_condition_and_each_comparison() -> None:
    assert str(build_report(CONDITIONS)).splitlines() == [
        "condition                          success (95 % interval)  score  turns  calls  unscored",
        "untrained                            0.0 % (0.0 to 27.8 %)  0.000    2.0    1.0   0 of 10",
        "after warm start   22.2 % (6.3 to 54.7 %), at worst 20.0 %  0.222    2.0    1.0   1 of 10",
        "after GRPO        77.8 % (45.3 to 93.7 %), at worst 70.0 %  0.778    2.0    1.0   1 of 10",
        "untrained → after warm start: +22.2 points (95 % interval -14.3 to +54.7) on 9 tasks of 9 families, "
        "p = 0.5000, 1 task left out",
        "after warm start → after GRPO: +55.6 points (95 % interval +9.0 to +81.1) on 9 tasks of 9 families, "
        "p = 0.0625 (0.1250 adjusted for all comparisons), 1 task left out",
        "untrained → after GRPO: +77.8 points (95 % interval +24.6 to +93.7) on 9 tasks of 9 families, "
        "p = 0.0156 (0.0469 adjusted for all comparisons), 1 task left out",
    ]


def test_the_report_says_all_that_it_promises() -> None:
    training = TrainingSummary.from_metrics(
        [{"step": 0, "reward": 0.25, "groups_with_signal": 3, "groups_without_signal": 1, "seconds/rollout": 75}]
    )
    markdown = build_report(CONDITIONS, run={"model": "small", "api_key": "sk-1"}, training=training).markdown()
    for said in (
        "**untrained → after GRPO: +77.8 points",
        "## Success on the measured tasks",
        "## The same tasks, compared",
        "## Success by tier",
        "## What a rollout costs",
        "## How rollouts ended",
        "after GRPO: 1 × tools/ServerDied, first: the helpdesk exited with 137",
        "| groups without signal (all rollouts scored the same) |",
        "1 min 15 s",
        "### 1. Newly solved: task t00 (tier 1)",
        "### 2. Still failing: task t02 (tier 1)",
        'call:      get_order {"order_id": "t00"}',
        "the answer scored 1.0",
        "Tango",
    ):
        assert said in markdown
    assert "sk-1" not in markdown
    assert "](learning_curve.png)" not in markdown


def test_the_picture_is_shown_where_it_is_there(tmp_path: Path) -> None:
    report = build_report({"untrained": make_condition("01")})
    (tmp_path / "learning_curve.png").write_bytes(b"")
    markdown, _ = report.write(tmp_path)
    assert "](learning_curve.png)" in markdown.read_text()


def test_one_condition_and_unscored_conditions_make_a_report_too() -> None:
    assert "**untrained: 50.0 %" in build_report({"untrained": make_condition("01")}).markdown()
    assert "no rollout was scored" in build_report({"untrained": make_condition("xx")}).markdown()
    assert "0 of 0" in str(build_report({"untrained": []}))


def test_unscored_rollouts_that_could_change_nothing_are_not_told_as_a_change() -> None:
    tries = [make_rollout("t1", None, rollout_id="t1-1"), make_rollout("t1", 0.0), make_rollout("t2", 1.0)]
    said = str(build_report({"only": tries})).splitlines()[0]
    assert said == "only: 1 of 3 rollouts are unscored. If they count as failed, success is 50.0 %, too."


def test_tags_that_are_names_do_not_flood_the_report() -> None:
    rollouts = [make_rollout(f"t{i}", 1.0, tags={"customer": f"name{i}"}) for i in range(50)]
    report = build_report({"only": rollouts})
    assert "50 values: too many for a table; see `by_tag` in report.json" in report.markdown()
    assert len(report.conditions["only"].by_tag["customer"]) == 50


@pytest.mark.parametrize("attack", ATTACKS)
def test_text_from_models_and_tools_cannot_break_out(attack: str) -> None:
    hostile = make_rollout(
        attack,
        0.0,
        tags={attack: attack},
        verdict=Verdict(score=0, components={attack: 1.0}, explanation=attack),
        messages=[
            Message(role="user", content=attack),
            Message(role="assistant", content=attack, reasoning=attack, tool_calls=[ToolCall(id="1", name=attack)]),
            Message(role="tool", content=attack, tool_call_id="1"),
        ],
        result=ToolResult(text=attack),
    )
    broken = make_rollout("x", None, failure=Failure(boundary="tools", kind=attack, message=attack))
    conditions = {attack: [hostile, broken], "after": [hostile, broken]}
    report = build_report(conditions, run={attack: attack})
    markdown = report.markdown(curve="learning_curve.png")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e\u2066\u2028]", markdown)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e\u2066\u2028]", str(report))
    tokens = parsed(markdown)
    kinds = [token.type for token in tokens]
    harmless = parsed(build_report({"a": [make_rollout("t", 0.0)], "b": [make_rollout("t", 0.0)]}).markdown())
    assert {"html_inline", "html_block", "link_open"}.isdisjoint(kinds)
    assert [token.attrs["src"] for token in tokens if token.type == "image"] == ["learning_curve.png"]
    headings = [token.content for token in tokens if token.type == "inline" and token.level == 1 and token.map]
    assert "Broken out" not in headings
    assert "Injected heading" not in headings
    assert kinds.count("table_open") == [token.type for token in harmless].count("table_open") + 1  # `The run`


@given(st.text())
def test_a_fence_holds_any_text(text: str) -> None:
    tokens = parsed(fence(text))
    assert [token.type for token in tokens] == ["fence"]


@given(st.text(), st.text())
def test_a_table_cell_holds_any_text(left: str, right: str) -> None:
    made = table(("a", "b"), [(inline(left), inline(right))])
    kinds = [token.type for token in parsed(made)]
    assert {kind: kinds.count(kind) for kind in ("table_open", "tr_open", "td_open")} == {
        "table_open": 1,
        "tr_open": 2,
        "td_open": 2,
    }
    assert "html_inline" not in kinds


@given(st.text(st.characters()))
def test_visible_text_can_be_written_to_any_terminal(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", visible(text))
    visible(text).encode()


def test_ordinary_writing_stays_as_it_is() -> None:
    assert visible("Grüße, 注文, सत्य\u200dम\n\tok") == "Grüße, 注文, सत्य\u200dम\n\tok"
    assert inline("invalid_arguments") == "invalid_arguments"


def test_long_texts_are_cut_visibly() -> None:
    assert cut("x" * 1500, 1200) == "x" * 1200 + " … [300 more characters]"
    rollout = make_rollout("t1", messages=[Message(role="user", content="x" * 5000)])
    assert "[3,800 more characters]" in transcript(rollout)
    many = make_rollout("t1", messages=[Message(role="user", content=f"n{i}") for i in range(100)])
    shown = transcript(many)
    assert "… 60 pieces left out …" in shown
    assert "n19\n" in shown
    assert "n20\n" not in shown
    assert "n79\n" not in shown
    assert "n80\n" in shown


def test_a_transcript_tells_who_said_what_and_what_failed() -> None:
    calls = [
        ToolCall(id="c1", name="get_order", arguments={"order_id": "ü"}),
        ToolCall(id="c2", name="x", error="no JSON"),
    ]
    rollout = make_rollout(
        "t1",
        result=ToolResult(text="no such order", is_error=True, error_kind="tool_error"),
        messages=[
            Message(role="user", content="Where is it?\nPlease."),
            Message(role="assistant", reasoning="I look it up.", tool_calls=calls),
            Message(role="tool", content="no such order", tool_call_id="c1"),
            Message(role="assistant", content=""),
        ],
    )
    assert transcript(rollout).split("\n") == [
        "user:      Where is it?",
        "           Please.",
        "thinking:  I look it up.",
        'call:      get_order {"order_id": "ü"}',
        "call:      x {} (unreadable: no JSON)",
        "error:     no such order",
        "assistant:",
    ]
