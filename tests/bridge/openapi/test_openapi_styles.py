"""Whatever a model gives, the server decodes the same: every style in every place, over real HTTP."""

from __future__ import annotations

import base64
import itertools
import json
import string
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

import mcp_bridge
from mcp_bridge import ToolResult

Call = Callable[[str, dict[str, Any]], ToolResult]

OBJECT = {"type": "object", "additionalProperties": {"type": ["string", "integer", "boolean"]}}
SCHEMAS = {
    "scalar": {"type": ["string", "integer", "boolean", "number"]},
    "list": {"type": "array", "items": {}},
    "object": OBJECT,
}
STYLES = {
    "path": ["simple", "label", "matrix"],
    "query": ["form", "spaceDelimited", "pipeDelimited"],
    "header": ["simple"],
    "cookie": ["form"],
}
CASES = [
    (location, style, explode, kind)
    for location, styles in STYLES.items()
    for style, explode, kind in itertools.product(styles, (False, True), SCHEMAS)
    if not (style in {"spaceDelimited", "pipeDelimited"} and kind == "scalar")
] + [("query", "deepObject", True, "object")]


def _document(echo: str) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for location, style, explode, kind in CASES:
        name = f"{location}_{style}_{explode}_{kind}"
        parameter = {"name": "it", "in": location, "style": style, "explode": explode, "schema": SCHEMAS[kind]}
        path = f"/{name}/{{it}}/end" if location == "path" else f"/{name}"
        paths[path] = {"get": {"operationId": name, "parameters": [parameter]}}
    anything = {"type": "object", "properties": {"text": {}, "list": {"type": "array"}, "object": {"type": "object"}}}
    for kind in ("application/json", "application/x-www-form-urlencoded", "multipart/form-data"):
        name = kind.partition("/")[2].replace("-", "_")
        paths[f"/{name}"] = {"post": {"operationId": name, "requestBody": {"content": {kind: {"schema": anything}}}}}
    upload = {
        "type": "object",
        "properties": {"file": {"type": "string", "format": "binary"}, "note": {"type": "string"}},
    }
    paths["/upload"] = {
        "post": {"operationId": "upload", "requestBody": {"content": {"multipart/form-data": {"schema": upload}}}}
    }
    return {"openapi": "3.1.0", "info": {"title": "S", "version": "1"}, "servers": [{"url": echo}], "paths": paths}


@pytest.fixture(scope="module")
def call(echo: str) -> Iterator[Call]:
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(
            mcp_bridge.connect({"mcpServers": {"e": {"openapi": _document(echo)}}}, max_result_chars=1_000_000)
        ) as toolset:
            yield lambda name, arguments: portal.call(toolset.call, name, arguments)


CHARACTERS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.sampled_from("&=+#?;,%./ []|'\"\\{}"), max_size=8
)
PRINTABLE = st.text(string.ascii_letters + string.digits + "&=+#?;%./[]|'\"\\{}~!", max_size=8)


def scalars(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return text | st.integers(-(10**20), 10**20) | st.booleans()


def values(kind: str, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    if kind == "list":
        return st.lists(scalars(text), min_size=1, max_size=4)
    if kind == "object":
        return st.dictionaries(text.filter(bool), scalars(text), min_size=1, max_size=4)
    return scalars(text)


def words(value: Any) -> Any:
    """What a server sees of a value without knowing its type."""
    if isinstance(value, list):
        return [words(one) for one in value]
    if isinstance(value, dict):
        return {key: words(one) for key, one in value.items()}
    return value if isinstance(value, str) else json.dumps(value)


def paired(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def split_pair(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return unquote(key), unquote(value)


def joined(raw: str, delimiter: str, explode: bool, kind: str) -> Any:
    """What stands in one place of a path, a header or a cookie, decoded by the rules of OpenAPI."""
    if kind == "scalar":
        return unquote(raw)
    parts = raw.split(delimiter)
    if kind == "list":
        return [unquote(part) for part in parts]
    return dict(split_pair(part) for part in parts) if explode else paired([unquote(part) for part in parts])


def in_path(raw: str, style: str, explode: bool, kind: str) -> Any:
    if style == "simple":
        return joined(raw, ",", explode, kind)
    if style == "label":
        assert raw[0] == "."
        return joined(raw[1:], "." if explode else ",", explode, kind)
    assert raw[0] == ";"
    if kind == "object" and explode:
        return joined(raw[1:], ";", True, kind)
    if kind == "list" and explode:
        pairs = [split_pair(part) for part in raw[1:].split(";")]
        assert {name for name, _ in pairs} == {"it"}
        return [value for _, value in pairs]
    assert raw.startswith(";it=")
    return joined(raw[4:], ",", False, kind)


def in_query(raw: str, style: str, explode: bool, kind: str) -> Any:
    pairs = parse_qsl(raw, keep_blank_values=True, strict_parsing=True)
    if style == "deepObject":
        assert all(name.startswith("it[") and name.endswith("]") for name, _ in pairs)
        return {name[3:-1]: value for name, value in pairs}
    if kind == "scalar":
        return dict(pairs)["it"]
    if explode:
        return dict(pairs) if kind == "object" else [value for _, value in pairs]
    assert raw.startswith("it=")
    delimiter = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}[style]
    return joined(raw[3:], delimiter, False, kind)


@pytest.mark.parametrize(("style", "explode", "kind"), [case[1:] for case in CASES if case[0] == "query"])
@given(data=st.data())
@settings(max_examples=10)
def test_a_server_decodes_from_the_query_what_was_given(
    call: Call, style: str, explode: bool, kind: str, data: st.DataObject
) -> None:
    banned = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(style, "") if not explode else ""
    text = CHARACTERS.filter(lambda one: not banned or banned not in one)
    value = data.draw(values(kind, text))
    result = call(f"query_{style}_{explode}_{kind}", {"it": value})
    assert in_query(result.structured["query"], style, explode, kind) == words(value)


@pytest.mark.parametrize(("style", "explode", "kind"), [case[1:] for case in CASES if case[0] == "path"])
@given(data=st.data())
@settings(max_examples=10)
def test_a_server_decodes_from_the_path_what_was_given(
    call: Call, style: str, explode: bool, kind: str, data: st.DataObject
) -> None:
    # Empty values and slashes are refused, and a step of dots alone too; that is tested where they are.
    dull = CHARACTERS.filter(lambda one: bool(one) and not set(one) & set("/\\") and one.strip("."))
    text = dull if style != "label" or kind == "scalar" else dull.filter(lambda one: "." not in one)
    value = data.draw(values(kind, text))
    result = call(f"path_{style}_{explode}_{kind}", {"it": value})
    assert not result.is_error, result.text
    empty, _, raw, end = result.structured["path"].split("/")
    assert (empty, end) == ("", "end")
    assert in_path(raw, style, explode, kind) == words(value)


@pytest.mark.parametrize(("explode", "kind"), [case[2:] for case in CASES if case[0] == "header"])
@given(data=st.data())
@settings(max_examples=10)
def test_a_server_decodes_from_a_header_what_was_given(
    call: Call, explode: bool, kind: str, data: st.DataObject
) -> None:
    text = PRINTABLE.filter(lambda one: "=" not in one)
    value = data.draw(values(kind, text))
    result = call(f"header_simple_{explode}_{kind}", {"it": value})
    raw = dict(result.structured["headers"])["it"]
    parts = raw.split(",")
    if kind == "object":
        got: Any = dict(tuple(part.split("=")) for part in parts) if explode else paired(parts)
    else:
        got = raw if kind == "scalar" else parts
    assert got == words(value)


@pytest.mark.parametrize(("explode", "kind"), [case[2:] for case in CASES if case[0] == "cookie"])
@given(data=st.data())
@settings(max_examples=10)
def test_a_server_decodes_from_a_cookie_what_was_given(
    call: Call, explode: bool, kind: str, data: st.DataObject
) -> None:
    value = data.draw(values(kind, CHARACTERS))
    result = call(f"cookie_form_{explode}_{kind}", {"it": value})
    name, _, raw = dict(result.structured["headers"])["cookie"].partition("=")
    assert name == "it"
    assert joined(raw, ",", False, kind) == words(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | CHARACTERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CHARACTERS, inner, max_size=3),
    max_leaves=8,
)


@given(text=JSON, items=st.lists(JSON, max_size=3), inner=st.dictionaries(CHARACTERS, JSON, max_size=3))
@settings(max_examples=40)
def test_a_server_decodes_from_a_json_body_what_was_given(
    call: Call, text: Any, items: list[Any], inner: dict[str, Any]
) -> None:
    given_ = {"text": text, "list": items, "object": inner}
    result = call("json", given_)
    assert json.loads(result.structured["body"]) == given_
    assert ["content-type", "application/json"] in result.structured["headers"]


@given(
    text=CHARACTERS,
    items=st.lists(CHARACTERS, max_size=3),
    inner=st.dictionaries(CHARACTERS, JSON, min_size=1, max_size=3),
)
def test_a_server_decodes_from_a_form_what_was_given(
    call: Call, text: str, items: list[str], inner: dict[str, Any]
) -> None:
    result = call("x_www_form_urlencoded", {"text": text, "list": items, "object": inner})
    pairs = parse_qsl(result.structured["body"], keep_blank_values=True)
    assert [value for name, value in pairs if name == "text"] == [text]
    assert [value for name, value in pairs if name == "list"] == items
    assert [json.loads(value) for name, value in pairs if name == "object"] == [inner]


@given(text=CHARACTERS, items=st.lists(CHARACTERS, max_size=3), inner=st.dictionaries(CHARACTERS, JSON, max_size=3))
@settings(max_examples=40)
def test_a_server_decodes_from_a_multipart_body_what_was_given(
    call: Call, text: str, items: list[str], inner: dict[str, Any]
) -> None:
    form = call("form_data", {"text": text, "list": items, "object": inner}).structured["form"]
    assert [value for name, value in form if name == "text"] == [text]
    assert [value for name, value in form if name == "list"] == items
    assert [json.loads(value) for name, value in form if name == "object"] == [inner]


@given(content=st.binary(max_size=50), note=CHARACTERS)
@settings(max_examples=40)
def test_a_file_arrives_byte_by_byte(call: Call, content: bytes, note: str) -> None:
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    form = dict(call("upload", {"file": url, "note": note}).structured["form"])
    assert form == {"file": ["file", "image/png", base64.b64encode(content).decode()], "note": note}


def test_a_file_may_be_given_as_text(call: Call) -> None:
    form = dict(call("upload", {"file": "plain words"}).structured["form"])
    assert form == {"file": ["file", "application/octet-stream", base64.b64encode(b"plain words").decode()]}


WILD = st.text(max_size=12) | st.sampled_from(
    [
        "../x",
        "..",
        ".",
        "a/../b",
        "..%2f..",
        "%2e%2e",
        "a?b=c",
        "a#b",
        "a\r\nX: y",
        "\\..\\",
        "a;b=c",
        "//evil.example/",
        "",
        "@evil",
    ]
)


@given(value=WILD)
@settings(max_examples=60)
def test_no_argument_changes_the_path_around_it(call: Call, value: str) -> None:
    result = call("path_simple_False_scalar", {"it": value})
    if result.is_error:
        assert result.error_kind == "invalid_arguments"
        return
    received = result.structured
    assert received["query"] == ""
    empty, first, raw, end = received["path"].split("/")
    assert (empty, first, end) == ("", "path_simple_False_scalar", "end")
    assert unquote(raw) == value
    assert unquote(raw) not in {".", "..", ""}


@pytest.mark.parametrize("value", ["..", ".", "", "a/b", "a\\b", "../../admin", "x\r\nHost: evil", "a\x00b"])
def test_a_value_that_is_no_step_of_a_path_is_refused(call: Call, value: str) -> None:
    result = call("path_simple_False_scalar", {"it": value})
    assert result.error_kind == "invalid_arguments"
    assert "nothing was called" in result.text


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", " a", "a ", "ä", "a\x00", "\x7f"])
def test_a_value_that_is_no_header_is_refused(call: Call, value: str) -> None:
    assert call("header_simple_False_scalar", {"it": value}).error_kind == "invalid_arguments"


@given(value=st.text(max_size=12))
@settings(max_examples=40)
def test_no_argument_adds_a_header(call: Call, value: str) -> None:
    plain = {name for name, _ in call("header_simple_False_scalar", {"it": "x"}).structured["headers"]}
    result = call("header_simple_False_scalar", {"it": value})
    if not result.is_error:
        assert {name for name, _ in result.structured["headers"]} == plain
        assert dict(result.structured["headers"])["it"] == value


def test_half_a_surrogate_pair_is_refused_everywhere(call: Call) -> None:
    for name in ("query_form_True_scalar", "path_simple_False_scalar", "cookie_form_True_scalar"):
        assert call(name, {"it": "\ud800"}).error_kind == "invalid_arguments"
    assert call("json", {"text": "\ud800"}).error_kind == "invalid_arguments"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("query_spaceDelimited_False_list", ["a b"]),
        ("query_pipeDelimited_False_list", ["a|b"]),
        ("header_simple_False_list", ["a,b"]),
        ("header_simple_True_object", {"a": "b=c"}),
        ("query_form_True_list", [None]),
        ("path_simple_False_list", []),
        ("path_label_False_list", [""]),
        ("path_matrix_True_object", {}),
    ],
)
def test_what_a_server_could_not_tell_apart_is_refused(call: Call, name: str, value: Any) -> None:
    result = call(name, {"it": value})
    assert result.error_kind == "invalid_arguments"
    assert "it: " in result.text


@pytest.mark.parametrize(
    ("value", "pairs"),
    [
        (["a", "b"], [("it[0]", "a"), ("it[1]", "b")]),
        ([{"price": 5, "tags": ["x", "y"]}], [("it[0][price]", "5"), ("it[0][tags][0]", "x"), ("it[0][tags][1]", "y")]),
        ({"ids": [1, 2], "at": {"gte": 3}}, [("it[ids][0]", "1"), ("it[ids][1]", "2"), ("it[at][gte]", "3")]),
        (5, [("it", "5")]),
    ],
)
async def test_lists_under_deep_object_have_the_number_of_each_item(
    api: Callable[..., Any], value: Any, pairs: list[tuple[str, str]]
) -> None:
    deep = {"style": "deepObject", "explode": True}
    form = {"schema": {"type": "object", "properties": {"it": {}}}, "encoding": {"it": deep}}
    paths = {
        "/get": {"get": {"operationId": "get", "parameters": [{"name": "it", "in": "query", "schema": {}, **deep}]}},
        "/post": {
            "post": {"operationId": "post", "requestBody": {"content": {"application/x-www-form-urlencoded": form}}}
        },
    }
    async with api(paths) as toolset:
        assert parse_qsl((await toolset.call("get", {"it": value})).structured["query"]) == pairs
        assert parse_qsl((await toolset.call("post", {"it": value})).structured["body"]) == pairs


@pytest.mark.parametrize(("kind", "value"), [("list", []), ("object", {})])
def test_an_empty_list_or_object_is_left_out_where_it_has_no_form(call: Call, kind: str, value: Any) -> None:
    assert call(f"query_form_True_{kind}", {"it": value}).structured["query"] == ""
    assert "it" not in dict(call(f"header_simple_False_{kind}", {"it": value}).structured["headers"])
    assert "cookie" not in dict(call(f"cookie_form_True_{kind}", {"it": value}).structured["headers"])
