"""What the policy reads: errors it can act on, and results as text."""

import enum
import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

import mcp_bridge
from mcp_bridge import Tool, ToolResult
from mcp_bridge.records import capped
from mcp_bridge.sessions.listing import from_mcp
from mcp_bridge.toolsets.validation import ArgumentChecker, unknown_tool

REFUND = Tool(
    name="refund_order",
    input_schema={
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "pattern": "^A-"},
            "amount": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "reason": {"enum": ["late", "broken"]},
            "lines": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["order_id", "reason"],
        "additionalProperties": False,
    },
)
CHECKER = ArgumentChecker([REFUND])

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
argument_names = st.sampled_from(["order_id", "amount", "reason", "lines", "ordre_id"]) | st.text(max_size=6)


def test_the_report_names_path_value_expectation_and_the_arguments() -> None:
    arguments = {"ordre_id": "A-1", "amount": "ten", "reason": "tired", "lines": [1, "two"]}
    assert CHECKER.problem("refund_order", arguments) == (
        "Invalid arguments for refund_order; nothing was called.\n"
        "- unknown argument \"ordre_id\" (did you mean 'order_id'?)\n"
        "- missing required argument 'order_id'\n"
        '- amount is "ten"; expected number or null\n'
        '- lines[1] is "two"; expected integer\n'
        '- reason is "tired"; expected one of "late", "broken"\n'
        "Arguments of refund_order: order_id (string, required), amount (number or null, optional), "
        'reason (one of "late", "broken", required), lines (array of integer, optional).'
    )


def test_a_value_that_fits_no_choice_is_told_what_the_nearest_one_misses() -> None:
    def named(kind: str, **properties: Any) -> dict[str, Any]:
        says = {"kind": {"const": kind}, **properties}
        return {"type": "object", "properties": says, "required": list(says), "additionalProperties": False}

    to = {
        "anyOf": [
            named("mail", address={"type": "string"}),
            named("phone", number={"type": "integer"}),
            {"type": "null"},
        ]
    }
    one = {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]}
    checker = ArgumentChecker(
        [Tool(name="send", input_schema={"type": "object", "properties": {"to": to, "one": one}})]
    )

    def first_problem(**arguments: Any) -> str:
        return (checker.problem("send", arguments) or "").splitlines()[1]

    nearest = "; of 3 choices the nearest says: "
    assert first_problem(to={"kind": "phone"}).endswith(f"{nearest}in to: missing required argument 'number'")
    assert first_problem(to={"kind": "mail", "address": 7}).endswith(f"{nearest}to.address is 7; expected string")
    choices = 'object {kind: "mail", address: string} or object {kind: "phone", number: integer} or null'
    assert first_problem(to=3) == f"- to is 3; expected {choices}"
    assert first_problem(one={"a": 1, "b": 2}).endswith("; it fits several of 2 choices, and must fit one alone")


def test_every_missing_argument_has_a_line_of_its_own() -> None:
    problem = CHECKER.problem("refund_order", {}) or ""
    assert problem.count("missing required argument") == 2
    assert "missing required argument 'reason'\n" in problem


def test_a_value_that_breaks_another_keyword_is_told_with_it() -> None:
    problem = CHECKER.problem("refund_order", {"order_id": "B-1", "reason": "late"}) or ""
    assert 'order_id is "B-1"; expected a text that matches "^A-"' in problem


@pytest.mark.parametrize(
    ("schema", "value", "told"),
    [
        ({"exclusiveMinimum": 0}, 0, "a number above 0"),
        ({"maximum": 9.5}, 10, "a number of at most 9.5"),
        ({"minLength": 1}, "", "a text with a length of at least 1"),
        ({"maxItems": 1}, [1, 2], "a list with a length of at most 1"),
        ({"uniqueItems": True}, [1, 1], "a list without repeated items"),
        ({"not": {"const": 3}}, 3, 'not {"const": 3}'),
    ],
)
def test_what_a_keyword_asks_for_is_told_in_words(schema: dict[str, Any], value: Any, told: str) -> None:
    tool = Tool(name="weigh", input_schema={"type": "object", "properties": {"it": schema}})
    problem = ArgumentChecker([tool]).problem("weigh", {"it": value}) or ""
    assert f"- it is {json.dumps(value)}; expected {told}\n" in problem


class Kind(enum.Enum):
    CAT = "cat"
    DOG = "dog"


class Pet(pydantic.BaseModel):
    name: str
    kind: Kind
    parent: "Pet | None" = None


async def test_allowed_values_and_fields_behind_references_are_told() -> None:
    def add(pet: Pet, kind: Kind | None = None) -> str:
        return pet.name

    async with mcp_bridge.connect(add) as toolset:
        told = (await toolset.call("add", {"pet": 3, "kind": "bean"})).text
    assert '- kind is "bean"; expected one of "cat", "dog" or null\n' in told
    pet = 'object {name: string, kind: one of "cat", "dog", parent?: object {name: string, kind: one of "cat", "dog", '
    assert f"- pet is 3; expected {pet}" in told
    assert f"Arguments of add: pet ({pet}" in told
    assert 'required), kind (one of "cat", "dog" or null, optional).' in told


def test_references_that_lead_back_nowhere_or_to_thousands_of_others_are_told_shortly() -> None:
    many = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{m % 40}"} for m in range(n, n + 30)]} for n in range(40)}
    definitions = {
        "loop": {"$ref": "#/$defs/loop"},
        "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
        "a/b": {"enum": [1, 2]},
        **many,
    }
    fields = {
        "loop": {"$ref": "#/$defs/loop"},
        "tree": {"allOf": [{"$ref": "#/$defs/tree"}]},
        "slash": {"$ref": "#/$defs/a~1b"},
        "wide": {"$ref": "#/$defs/d0"},
        "gone": {"$ref": "#/$defs/no_such"},
        "far": {"$ref": "https://elsewhere.example/schema"},
    }
    schema = {"type": "object", "properties": fields, "required": ["it"], "$defs": definitions}
    told = (ArgumentChecker([Tool(name="t", input_schema=schema)]).problem("t", {}) or "").splitlines()[-1]
    assert told.startswith("Arguments of t: loop (anything, optional), tree (array of array of array of ")
    assert "slash (one of 1, 2, optional), wide (anything, optional), gone (anything, optional)" in told
    assert len(told) < 500


def test_a_misspelled_name_is_shown_where_the_schema_tolerates_it() -> None:
    tool = Tool(name="t", input_schema={"type": "object", "properties": {"text": {}}, "required": ["text"]})
    problem = ArgumentChecker([tool]).problem("t", {"txt": "a"}) or ""
    assert "missing required argument 'text' (given, but not known: \"txt\")" in problem


def test_a_name_that_another_part_of_the_schema_knows_is_no_misspelled_one() -> None:
    parts = [{"properties": {"name": {}}}, {"$ref": "#/$defs/dog"}]
    schema = {"type": "object", "allOf": parts, "$defs": {"dog": {"properties": {"bark": {}}, "required": ["bark"]}}}
    problem = ArgumentChecker([Tool(name="t", input_schema=schema)]).problem("t", {"name": "Rex"}) or ""
    assert "missing required argument 'bark'\n" in problem


@pytest.mark.parametrize(
    ("schema", "given_arguments", "told", "signature"),
    [
        (
            {"anyOf": [{"properties": {"id": {"type": "string"}}, "required": ["id"]}, {"$ref": "#/$defs/by_number"}]},
            {"number": "x"},
            'nearest says: number is "x"; expected integer',
            "id (string, optional), number (integer, optional)",
        ),
        (
            {"properties": {"note": {}, "id": {}}, "oneOf": [{"required": ["id"]}, {"required": ["number"]}]},
            {"note": "x"},
            "nearest says: missing required argument 'id'",
            "note (anything, optional), id (anything, optional)",
        ),
        (
            {"properties": {"way": {}, "to": {}}, "if": {"required": ["way"]}, "then": {"required": ["to"]}},
            {"way": "mail"},
            "missing required argument 'to'",
            "way (anything, optional), to (anything, optional)",
        ),
        (
            {"allOf": [{"$ref": "#/$defs/by_number"}]},
            {},
            "missing required argument 'number'",
            "number (integer, required)",
        ),
        (
            {
                "oneOf": [
                    {"properties": {"way": {"const": "card"}, "card": {}}, "required": ["way", "card"]},
                    {"properties": {"way": {"const": "cash"}}, "required": ["way", "sum"]},
                ]
            },
            {"way": "card"},
            "nearest says: missing required argument 'card'",
            'way ("card" or "cash", optional), card (anything, optional)',
        ),
        (
            {"anyOf": [{"required": ["id"]}, False], "properties": {"note": {}}},
            {"note": 1},
            "nearest says: missing required argument 'id'",
            "note (anything, optional)",
        ),
        (
            {"properties": {"card": {}}, "dependentSchemas": {"card": {"required": ["code"]}}},
            {"card": 1},
            "missing required argument 'code'",
            "card (anything, optional)",
        ),
    ],
)
def test_arguments_that_stand_in_choices_and_parts_of_the_schema_are_known(
    schema: dict[str, Any], given_arguments: dict[str, Any], told: str, signature: str
) -> None:
    by_number = {"properties": {"number": {"type": "integer"}}, "required": ["number"]}
    tool = Tool(name="t", input_schema={"type": "object", **schema, "$defs": {"by_number": by_number}})
    problem = ArgumentChecker([tool]).problem("t", given_arguments) or ""
    assert problem.endswith(f"{told}\nArguments of t: {signature}.")


def test_arguments_that_are_needed_together_are_each_named_once() -> None:
    needs = {"tags": ["name", "kind"], "name": ["kind"], "other": ["kind"]}
    tool = Tool(name="t", input_schema={"type": "object", "dependentRequired": needs})
    lines = (ArgumentChecker([tool]).problem("t", {"tags": [], "name": "a"}) or "").splitlines()
    assert sorted(lines[1:3]) == [
        "- missing argument 'kind', which must come with 'name'",
        "- missing argument 'kind', which must come with 'tags'",
    ]


@given(st.dictionaries(argument_names, json_values, max_size=6))
def test_exactly_the_arguments_against_the_schema_are_refused(arguments: dict[str, Any]) -> None:
    valid = jsonschema.Draft202012Validator(REFUND.input_schema).is_valid(arguments)
    problem = CHECKER.problem("refund_order", arguments)
    assert (problem is None) is valid
    if problem is not None:
        assert problem.startswith("Invalid arguments for refund_order")
        assert problem.endswith(".")
        assert "- " in problem


@given(json_values)
def test_arguments_that_are_no_object_are_refused(value: Any) -> None:
    if not isinstance(value, dict):
        assert "must be one JSON object" in (CHECKER.problem("refund_order", value) or "")


@given(st.text(min_size=1).map(lambda text: text * 10_000) | st.lists(st.integers(), min_size=1).map(lambda x: x * 999))
def test_a_huge_value_makes_a_short_report(value: Any) -> None:
    problem = CHECKER.problem("refund_order", {"order_id": value, "amount": value, "reason": value}) or ""
    assert 0 < len(problem) < 1_500


def test_unknown_tools_are_answered_with_near_names_and_all_names() -> None:
    text = unknown_tool("get_ordr", ["get_order", "list_orders", "cancel"])
    assert text == (
        'There is no tool "get_ordr". Did you mean get_order or list_orders? '
        "The tools are: get_order, list_orders, cancel."
    )


@given(st.text(), st.lists(st.text(min_size=1), min_size=1, max_size=100))
def test_an_unknown_tool_never_breaks_the_answer(name: str, names: list[str]) -> None:
    assert unknown_tool(name, names).startswith("There is no tool ")


async def test_unknown_tools_and_bad_arguments_come_back_as_results() -> None:
    def get_order(order_id: str) -> str:
        raise AssertionError("must not be called")

    async with mcp_bridge.connect(get_order) as toolset:
        unknown = await toolset.call("get_ordr", {"order_id": "A-1"})
        assert (unknown.is_error, unknown.error_kind) == (True, "unknown_tool")
        invalid = await toolset.call("get_order", {"order": "A-1"})
        assert (invalid.is_error, invalid.error_kind) == (True, "invalid_arguments")
        no_object = await toolset.call("get_order", ["A-1"])  # type: ignore[arg-type]
        assert no_object.error_kind == "invalid_arguments"


def test_every_kind_of_content_becomes_text() -> None:
    result = from_mcp(
        CallToolResult(
            content=[
                TextContent(text="first"),
                ImageContent(data="aGVsbG8=", mime_type="image/png"),
                AudioContent(data="aGVsbG8h", mime_type="audio/wav"),
                ResourceLink(uri="file:///a.txt", name="a.txt", mime_type="text/plain", size=12),
                EmbeddedResource(resource=BlobResourceContents(uri="file:///b", blob="aGk=")),
                EmbeddedResource(
                    resource=TextResourceContents(uri="file:///c.md", mime_type="text/markdown", text="# C")
                ),
                TextContent(text="last"),
            ],
            structured_content={"count": 3},
        )
    )
    assert result.text == (
        "first\n"
        "[image, image/png, 5 bytes]\n"
        "[audio, audio/wav, 6 bytes]\n"
        "[link file:///a.txt, a.txt, text/plain, 12 bytes]\n"
        "[resource file:///b, unknown type, 2 bytes]\n"
        "[resource file:///c.md, text/markdown, 3 characters]\n# C\n"
        'last\n{"count":3}'
    )
    assert result.structured == {"count": 3}


@pytest.mark.parametrize(
    ("given_result", "text", "kind"),
    [
        (CallToolResult(content=[], structured_content={"a": 1, "b": "ü"}), '{"a":1,"b":"ü"}', None),
        (CallToolResult(content=[]), "(empty result)", None),
        (CallToolResult(content=[TextContent(text="no")], is_error=True), "no", "tool_error"),
        (CallToolResult(content=[], is_error=True), "The tool reported an error without a message.", "tool_error"),
    ],
)
def test_results_without_text_and_errors_still_say_something(
    given_result: CallToolResult, text: str, kind: str | None
) -> None:
    result = from_mcp(given_result)
    assert (result.text, result.error_kind, result.is_error) == (text, kind, kind is not None)


@given(st.binary(max_size=50))
def test_sizes_are_those_of_the_decoded_bytes(data: bytes) -> None:
    import base64

    image = ImageContent(data=base64.b64encode(data).decode(), mime_type="image/png")
    assert from_mcp(CallToolResult(content=[image])).text == f"[image, image/png, {len(data)} bytes]"


@given(st.text(max_size=300), st.integers(min_value=1, max_value=200))
def test_the_cap_keeps_the_beginning_and_says_how_much_is_gone(text: str, limit: int) -> None:
    result = capped(ToolResult(text=text), limit, duration_s=0.5)
    assert result.truncated_chars == max(0, len(text) - limit)
    assert result.text[:limit] == text[:limit]
    if result.truncated_chars:
        assert result.text[limit:].startswith(f"\n[{result.truncated_chars} more characters were cut")
    else:
        assert result.text == text


async def test_a_long_result_of_a_server_is_capped(notes_url: Callable[[], str]) -> None:
    async with mcp_bridge.connect(notes_url(), max_result_chars=100) as toolset:
        result = await toolset.call("long_text", {"characters": 100_000})
        assert result.truncated_chars == 99_900
        assert result.text.startswith("x" * 100 + "\n[99900 more characters were cut")
        assert (await toolset.call("long_text", {"characters": 100})).truncated_chars == 0


def test_a_tool_has_the_form_that_chat_templates_read() -> None:
    assert json.loads(json.dumps(REFUND.as_openai()))["function"]["name"] == "refund_order"
