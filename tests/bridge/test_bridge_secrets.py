"""Secrets of a command, its environment, its headers or a URL: kept out of errors, and out of what a policy reads."""

import json
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from listening_servers import serving
from mcp import Client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import mcp_bridge
from mcp_bridge import SourceError, ToolFailure, ToolResult
from mcp_bridge.access.redaction import (
    Hiding,
    is_secret_name,
    redacted,
    shown_arguments,
    shown_text,
    shown_value,
    text_secrets,
)
from mcp_bridge.sources.connecting import identify
from mcp_bridge.sources.specs import StdioSpec


def stdio(*args: str, env: dict[str, str] | None = None) -> StdioSpec:
    [spec] = identify({"mcpServers": {"a": {"command": "x", "args": list(args), "env": env or {}}}})
    assert isinstance(spec, StdioSpec)
    return spec


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--api-key", "sk-secret-123"], "--api-key ***"),
        (["--token=abcdefgh"], "--token=***"),
        (["--token", "abc"], "--token ***"),
        (["--token=a b c"], "--token=***"),
        (["--apiKey", "sk-secret-123", "serve"], "--apiKey *** serve"),
        (["-e", "GITHUB_TOKEN=ghp_123456", "image"], "-e GITHUB_TOKEN=*** image"),
        (["--header", "Authorization: Bearer abcdefgh"], "--header ***"),
        (["-H", "X-Trace: abcdefgh"], "-H ***"),
        (["postgresql://orders:passw0rd@db:5432/orders"], "postgresql://***@db:5432/orders"),
        # The password is a word, and the server's program has it in its name.
        (["mcp-server-postgres", "postgresql://postgres:postgres@db/x"], "mcp-server-postgres postgresql://***@db/x"),
        (["--dsn=postgres://u:p%40ssw0rd@db/x"], "--dsn=postgres://***@db/x"),
        (["https://ghp_123456@host/repo"], "https://***@host/repo"),
        (["--url=https://host/x?api_key=abcdefgh&page=2"], "--url=https://host/x?api_key=***&page=2"),
        (["-c", "run --api-key sk-secret-123 --port 80"], "-c run --api-key *** --port 80"),
        (["-c", "env API_KEY='a b c' run"], "-c env API_KEY=*** run"),
        (['{"password": "passw0rd"}'], '{"password": ***}'),
        (["--auth", "--verbose"], "--auth --verbose"),
        (["--max-tokens", "100", "--keyboard=us", "--port=8080"], "--max-tokens 100 --keyboard=us --port=8080"),
        (["--tokenizer", "bytes", "C:\\x", "http://host:80/a"], "--tokenizer bytes C:\\x http://host:80/a"),
    ],
)
def test_a_label_shows_the_arguments_without_their_secrets(args: list[str], shown: str) -> None:
    [command] = identify(["x", *args])
    assert isinstance(command, StdioSpec)
    assert command.label == f"x {shown}"
    assert stdio(*args).label == f"a (x {shown})"
    assert repr(stdio(*args)) == f"StdioSpec({stdio(*args).label!r})"
    assert shown_arguments(args) == shown_arguments(tuple(args))


@pytest.mark.parametrize(
    ("args", "printed"),
    [
        (["--api-key", "sk-secret-123"], "sk-secret-123"),
        (["--token=abcdefgh"], "abcdefgh"),
        (["--header", "Authorization: Bearer abcdefgh"], "abcdefgh"),
        (["--header", "X-Thing:abcdefgh", "--api-key=abcdefgh"], "abcdefgh"),
        (["postgresql://orders:passw0rd@db/orders"], "passw0rd"),
        (["postgres://u:p%40ssw0rd@db/x"], "p@ssw0rd"),
        (["-c", "env API_KEY='a b c d' run"], "a b c d"),
    ],
)
def test_a_secret_of_the_arguments_is_redacted_wherever_it_is_printed(args: list[str], printed: str) -> None:
    assert redacted(f"bad {printed}!", stdio(*args).secrets) == "bad ***!"


def test_every_longer_value_of_env_is_redacted_and_short_ones_are_left() -> None:
    env = {"USER_ID": "customer-77", "DEBUG": "1", "STRICT": "true", "DB": "postgres://u:passw0rd@db/x"}
    secrets = stdio(env=env).secrets
    told = redacted("customer-77 failed at line 1: true, passw0rd", secrets)
    assert told == "*** failed at line 1: true, ***"


async def test_a_dying_server_with_literal_secrets_is_told_without_them() -> None:
    code = "import os, sys; sys.exit(f'bad {sys.argv[2]} for {os.environ[\"ACCOUNT\"]} line 1')"
    args = ["-c", code, "--api-key", "sk-secret-123"]
    entry = {"command": sys.executable, "args": args, "env": {"ACCOUNT": "customer-77", "DEBUG": "1"}}
    with pytest.raises(SourceError, match=r"bad \*\*\* for \*\*\* line 1") as raised:
        async with mcp_bridge.connect({"mcpServers": {"one": entry}}):
            pass
    assert "sk-secret" not in str(raised.value)
    assert "customer" not in str(raised.value)


TOKEN = "sk-secret-9f8e7d6c5b4a"
"""In the wrong place."""


@pytest.mark.parametrize(
    "source",
    [
        "server --api-key sk-secret-123",
        "server --api-key=sk-secret-123",
        "postgresql://orders:sk-secret-123@db/orders",
        ["", "--api-key", "sk-secret-123"],
        ["no-such-program", "--api-key", "sk-secret-123"],
        ["no-such-program --api-key sk-secret-123"],
        {"mcpServers": {"a": {"command": "x", "args": ["--api-key", "sk-secret-123", 7]}}},
        {"mcpServers": {"a": {"command": "x", "args": "--api-key sk-secret-123"}}},
        {"mcpServers": {"a": "x --api-key sk-secret-123"}},
        *(
            {"mcpServers": {"a": {"command": "x", **entry}}}
            for entry in (
                {"type": TOKEN},
                {TOKEN: "x", "url": "x"},
                {"args": TOKEN},
                {"cwd": [TOKEN]},
                {"toolbake": TOKEN},
                *({"toolbake": {name: TOKEN}} for name in ("isolation", "protocol", "allow", "retries", "world")),
                {"toolbake": {"isolation": [TOKEN]}},
                {"toolbake": {TOKEN: 1}},
            )
        ),
    ],
)
async def test_a_refused_source_is_told_without_its_secrets(source: Any) -> None:
    with pytest.raises(SourceError) as raised:
        async with mcp_bridge.connect(source):
            pass
    assert "sk-secret" not in str(raised.value)


def test_a_secret_at_the_cut_of_a_long_label_is_not_shown_in_part() -> None:
    spec = stdio("y" * 190, "sk-secret-123", env={"ANY": "sk-secret-123"})
    assert "sk-" not in spec.label


@given(st.lists(st.text(), max_size=5), st.text(alphabet="abcdefghij0123456789", min_size=6))
def test_no_arguments_before_it_make_a_flags_value_visible(before: list[str], value: str) -> None:
    assume(not any(value in one for one in before))
    spec = StdioSpec("", "x", (*before, f"--password={value}"))
    assert value not in spec.label


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "HF_TOKEN",
        "--header",
        "db-password",
        "PGPASSWORD",
        "PGPASS",
        "DB_PASS",
        "clientSecret",
        "USER_PW",
        "otp",
    ],
)
def test_names_of_secrets_are_recognized(name: str) -> None:
    assert is_secret_name(name)


LEAKING = """
import json, os, sys

LEAK = f"{os.environ['ORDERS_TOKEN']} and {os.environ['DB']} as {sys.argv[2]} in {os.environ['MODE']}"
SCHEMA = {"type": "object", "properties": {"dsn": {"type": "string", "default": os.environ["DB"]}}}
ANSWERS = {
    "text": {"content": [{"type": "text", "text": LEAK}]},
    "values": {"content": [], "structuredContent": {"deep": [{LEAK: LEAK}], "other": 7}},
    "fault": {"content": [{"type": "text", "text": LEAK}], "isError": True},
}

for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked["method"], asked.get("params", {})
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    if (token := params.get("_meta", {}).get("progressToken")) is not None:
        told = {"progressToken": token, "progress": 1, "message": LEAK}
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": told}), flush=True)
    if method == "initialize":
        about = {"name": "leaking", "version": "1"}
        answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    elif method == "tools/list":
        names = [*ANSWERS, "refusal", "failure"]
        answer["result"] = {"tools": [{"name": one, "description": LEAK, "inputSchema": SCHEMA} for one in names]}
    elif params["name"] in ANSWERS:
        answer["result"] = ANSWERS[params["name"]]
    else:
        answer["error"] = {"code": -32602 if params["name"] == "refusal" else -32603, "message": LEAK}
    print(json.dumps(answer), flush=True)
"""


async def test_a_server_that_repeats_its_credentials_shows_them_to_nobody(
    script: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("A_TOKEN", 'tok-"12345')
    program, path = script(LEAKING)
    env = {"ORDERS_TOKEN": "${A_TOKEN}", "DB": "postgres://ann:pass-67890@db/orders", "MODE": "production"}
    entry = {"command": program, "args": [path, "--api-key", "key-13579"], "env": env}
    caplog.set_level("DEBUG")
    shown: list[Any] = []
    reported: list[str | None] = []
    config = {"mcpServers": {"a": {**entry, "toolbake": {"protocol": "2025-06-18"}}}}

    async def hear(_: float, __: float | None, message: str | None) -> None:
        reported.append(message)

    async with mcp_bridge.connect(config) as toolset, toolset.open_world("w") as world:
        async with Client(mcp_bridge.publish(toolset), mode="legacy") as client:
            await client.call_tool("text", {}, progress_callback=hear)
        for name in ("text", "values", "fault", "refusal", "failure"):
            shown.append((await world.call(name, {})).model_dump())
        shown += [repr(toolset), toolset.servers]
        shown += [tool.model_dump() for tool in world.tools]
        shown += [line.model_dump_json() for line in world.ledger.lines]
    assert len(reported) == 1
    told = f"{shown} {reported} {caplog.text}"
    for secret in ("12345", "67890", "13579"):
        assert secret not in told
    # What is no credential for certain is left as it is: a policy may need to read it.
    assert shown[0]["text"] == "*** and postgres://***@db/orders as *** in production"
    assert shown[1]["structured"]["other"] == 7


REFUSING = """
import json, os, sys

TOLD = "x" * int(os.environ["BEFORE"]) + "postgres://app:" + os.environ["DB_PASSWORD"] + "@db"
VERBS = os.environ.get("VERBS", "").split()
TOOLS = [{"name": verb, "_meta": {"toolbake/control": verb}} for verb in VERBS]
TOOLS += [{"name": "dump", "annotations": {"readOnlyHint": True}}]

for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked["method"], asked.get("params", {})
    if "id" not in asked:
        continue
    if method == "initialize":
        about = {"name": "refusing", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    elif method == "tools/list":
        result = {"tools": [{"inputSchema": {"type": "object"}, **tool} for tool in TOOLS]}
    else:
        is_fine = params["name"] == "open_world" and not params["arguments"]["setup"]
        result = {"content": [{"type": "text", "text": TOLD}], "isError": not is_fine}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.mark.parametrize("before", [0, 190, 280, 480])
@pytest.mark.parametrize("password", ["hx7Qp93kLm21Zz8w", "password1"])
async def test_a_state_a_setup_and_a_close_that_fail_tell_no_credential_in_errors_and_logs(
    script: Callable[[str], list[str]], caplog: pytest.LogCaptureFixture, before: int, password: str
) -> None:
    program, path = script(REFUSING)
    env = {"DB_PASSWORD": password, "BEFORE": str(before)}
    verbs = "open_world close_world world_state fork_world"
    plain = {"env": env, "toolbake": {"protocol": "2025-06-18", "world": {"state": "dump"}}}
    controlled = {"env": {**env, "VERBS": verbs}, "toolbake": {"protocol": "2025-06-18"}}
    told = []
    for entry in (plain, controlled):
        config = {"mcpServers": {"a": {"command": program, "args": [path], **entry}}}
        async with mcp_bridge.connect(config) as toolset:
            async with toolset.open_world("w") as world:
                with pytest.raises(ToolFailure) as failure:
                    await world.state()
                told.append(str(failure.value))
                if entry is controlled:
                    with pytest.raises(ToolFailure) as failure:
                        await world.fork()
                    told.append(str(failure.value))
            if entry is controlled:
                with pytest.raises(SourceError) as refusal:
                    async with toolset.open_world("w2", {"seed": 1}):
                        pass
                told.append(str(refusal.value))
    assert "closing world" in caplog.text
    assert all("xxx" in one or "***" in one for one in told)
    for text in (*told, caplog.text):
        assert password[:4] not in text


STRAYING = """
import json, os, sys

KEY = os.environ["API_KEY"]
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        about = {"name": "straying", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    elif asked["method"] == "tools/list":
        result = {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]}
    else:
        print("x" * int(os.environ["BEFORE"]) + KEY, flush=True)
        result = {"content": {"n": KEY * 3}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.mark.parametrize("before", [0, 190, 195])
async def test_a_line_and_a_result_in_a_wrong_form_tell_no_part_of_a_credential(
    script: Callable[[str], list[str]], caplog: pytest.LogCaptureFixture, before: int
) -> None:
    program, path = script(STRAYING)
    env = {"API_KEY": "hx7Qp93kLm21Zz8w", "BEFORE": str(before)}
    entry = {"command": program, "args": [path], "env": env, "toolbake": {"protocol": "2025-06-18"}}
    async with mcp_bridge.connect({"mcpServers": {"a": entry}}) as toolset:
        with pytest.raises(ToolFailure, match="content: Input should be a valid list") as failure:
            await toolset.call("act", {})
    assert "is not an MCP message" in caplog.text
    for part in (env["API_KEY"][:4], env["API_KEY"][-4:]):
        assert part not in caplog.text + str(failure.value)


@pytest.mark.parametrize("token", ["ghp_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "sk-9f8a7b6c5d4e"])
async def test_an_error_in_a_wrong_form_tells_no_part_of_a_token(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    async def answer(request: Request) -> Response:
        asked = await request.json() if request.method == "POST" else {}
        if "id" not in asked:
            return Response(status_code=202)
        about = {"name": "refusing", "version": "1"}
        told: dict[str, Any] = {
            "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about},
            "tools/list": {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]},
        }
        end: dict[str, Any] = {"result": told.get(asked["method"])}
        if asked["method"] == "tools/call":
            end = {"error": {"code": "E_AUTH", "message": f"invalid {request.headers['authorization']}"}}
        return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], **end})

    monkeypatch.setenv("STOCK_TOKEN", token)
    with serving(Starlette(routes=[Route("/mcp", answer, methods=["GET", "POST", "DELETE"])])) as port:
        entry = {
            "url": f"http://127.0.0.1:{port}/mcp",
            "headers": {"Authorization": "Bearer ${STOCK_TOKEN}"},
            "toolbake": {"protocol": "2025-06-18"},
        }
        async with mcp_bridge.connect({"mcpServers": {"a": entry}}) as toolset:
            with pytest.raises(ToolFailure, match="JSONRPCError") as failure:
                await toolset.call("act", {})
    told = "".join(traceback.format_exception(failure.value))
    told += "".join(logging.Formatter().format(record) for record in caplog.records)
    assert "Error parsing JSON response" in told
    for part in (token[-4:], token[:8]):
        assert part not in told


SECRET = "tok-12345"
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.text().map(lambda text: f"{text}{SECRET}{text}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just(SECRET), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("written", ["k/3+Q=8z-9", "k\\/3+Q=8z-9", "k/3\\u002BQ\\u003d8z-9", "k\\u002f3+Q=8z\\u002D9"])
def test_a_secret_is_hidden_however_the_json_around_it_is_escaped(written: str) -> None:
    hiding = Hiding(lambda: ("k/3+Q=8z-9",), "a")
    assert hiding.text(f'{{"key": "{written}"}}') == '{"key": "***"}'


@given(JSON_VALUES, st.text())
def test_no_value_however_deep_keeps_a_credential_and_all_else_stays(value: Any, text: str) -> None:
    result = ToolResult(text=text, structured=value)
    shown = Hiding(lambda: (SECRET,), "a").result(result)
    assert SECRET not in json.dumps(shown.model_dump())
    expected = json.loads(json.dumps(value).replace(SECRET, "***"))
    assert shown.structured == expected
    if SECRET not in json.dumps(value) + text:
        assert shown is result


def test_the_credentials_of_a_url_are_its_headers_its_user_and_what_the_login_gave() -> None:
    url = "https://ann:pass-67890@host/mcp?api_key=key-13579&page=seventeen"
    login = {"Authorization": "Basic YW5uOnBhc3MtYmFzaWM=", "X-Api-Key": "key-86420"}
    headers = {**login, "X-Tenant": "northern", "Accept": "application/json"}
    [spec] = identify({"mcpServers": {"a": {"url": url, "headers": headers}}})
    spec.learn("tok-24680")  # type: ignore[union-attr]
    hiding = Hiding(lambda: spec.credentials, "a")  # type: ignore[union-attr]
    hidden = "pass-67890 key-13579 YW5uOnBhc3MtYmFzaWM= pass-basic key-86420 tok-24680"
    shown = "northern application/json seventeen host"
    assert hiding.result(ToolResult(text=f"{hidden} {shown}")).text == f"*** *** *** *** *** *** {shown}"


def test_a_secret_variable_is_a_credential_in_a_header_of_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_TOKEN", "tk-0a1b2c3d4e5f6071")
    entry = {"url": "https://host/mcp", "headers": {"X-Workspace": "acme:${ACME_TOKEN}"}}
    [spec] = identify({"mcpServers": {"a": entry}})
    hiding = Hiding(lambda: spec.credentials, "a")  # type: ignore[union-attr]
    assert hiding.result(ToolResult(text="you sent acme:tk-0a1b2c3d4e5f6071")).text == "you sent acme:***"


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("postgresql+psycopg://shop:pa/ss?w#rd77@db:5432/shop", "pa/ss?w#rd77"),
        ("https://ann:pass-67890@host/@scope/package", "pass-67890"),
    ],
)
def test_the_password_of_a_url_is_found_whatever_letters_it_has(url: str, password: str) -> None:
    assert password in text_secrets(url)
    assert password not in shown_text(f"connecting to {url}")


@pytest.mark.parametrize(
    "url", ["https://host:8443/@scope/package", "https://host/at@home", "see https://host: it@once"]
)
def test_a_url_without_a_password_stays_as_it_is(url: str) -> None:
    assert shown_text(url) == url


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("before", "repeated"),
    [
        *[("", one) for one in ("a:", "a=", "token:", "token=[", "-", "eyJ.", "://a:b", "://a", "\\", "'", '"', "[{")],
        *[("://", "a:"), ("--flag ", "--token 'a"), ("token='", 'token="')],
    ],
)
def test_long_texts_of_a_server_are_shown_in_no_longer_than_their_reading(before: str, repeated: str) -> None:
    text = before + repeated * (300_000 // len(repeated))
    told = f"{text}\npassword=hunter2 -abc-123-xyz-9!"
    assert "hunter2" not in shown_text(told) + shown_value(told)
    assert "hunter2" in "".join(text_secrets(told))
    assert "xyz-9" not in Hiding(lambda: ("-abc-123-xyz-9!",), "a").text(told)


EVERYWHERE = r"""
import os, re
import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

KEY = os.environ["API_KEY"]
BY_JAVASCRIPT = re.sub(r"[.*+?^${}()|/\[\]\\]", r"\\\g<0>", KEY)
SCHEMA = {
    "type": "object",
    "properties": {
        KEY: {"type": "string"},
        "chosen": {"enum": ["a", KEY]},
        "fixed": {"const": {"key": KEY}},
        "matching": {"pattern": f"^{KEY}$"},
        "escaped": {"pattern": f"^{re.escape(KEY)}|{BY_JAVASCRIPT}$"},
        "usual": {"default": KEY, "examples": [KEY], "description": f"Not {KEY}", "title": KEY},
    },
    "patternProperties": {re.escape(KEY): {}},
    "required": [KEY],
    "dependentRequired": {KEY: ["chosen"]},
    "$defs": {KEY: {}},
}

async def list_tools(context, params):
    return types.ListToolsResult(tools=[types.Tool(name="show", input_schema=SCHEMA, output_schema=SCHEMA)])

async def call_tool(context, params):
    part = types.TextContent(text=f"{re.escape(KEY)} and {BY_JAVASCRIPT}")
    return types.CallToolResult(content=[part], is_error=True)

async def main():
    server = Server("everywhere", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


async def test_no_part_of_a_schema_tells_a_credential_also_not_to_a_cassette(
    script: Callable[[str], list[str]], tmp_path: Path
) -> None:
    program, path = script(EVERYWHERE)
    entry = {"command": program, "args": [path], "env": {"API_KEY": "key/8fe2b-41c9+0aa7d"}}
    config = {"mcpServers": {"all": entry}}
    async with mcp_bridge.connect(config, connect_timeout_s=60) as toolset:
        (tool,) = toolset.tools
        result = await toolset.call("show", {"***": "a", "chosen": "a"})
        told = json.dumps(tool.model_dump())
        assert "8fe2b" not in told
        assert tool.input_schema["properties"]["matching"] == {"pattern": "^***$"}
        assert tool.input_schema["properties"]["escaped"] == {"pattern": "^***|***$"}
        assert result.text == "*** and ***"
    # A recorder writes what the server itself listed.
    cassette = tmp_path / "all.jsonl"
    command = [sys.executable, "-m", "toolbake", "record", str(tmp_path / "mcp.json"), "--to", str(cassette)]
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    async with mcp_bridge.connect(command, connect_timeout_s=60):
        pass
    assert "8fe2b" not in cassette.read_text()
    assert '"escaped":{"pattern":"^***|***$"}' in cassette.read_text()


DATABASE = """
import json, os, sys
import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

ROWS = [{"postgres_id": 1, "password": "postgres", "name": "reporting", "hash": "fab12cd3e"}]
PASSWORD = os.environ["DB"].partition("://")[2].partition("@")[0].rpartition(":")[2]
PLACES = {"type": "object", "properties": {"place": {"type": "string", "enum": ["a", PASSWORD]}, PASSWORD: {}}}

async def list_tools(context, params):
    return types.ListToolsResult(tools=[types.Tool(name="query", input_schema=PLACES)])

async def call_tool(context, params):
    text = json.dumps(ROWS) + " in " + os.environ["DB"] + " with " + PASSWORD
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content={"rows": ROWS})

async def main():
    server = Server("database", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://postgres:postgres@db/shop", "postgresql://***@db/shop with postgres"),
        ("postgresql://postgres:password@db/shop", "postgresql://***@db/shop with password"),
        ("postgresql://postgres:order_items@db/shop", "postgresql://***@db/shop with order_items"),
        ("postgresql://postgres:20260101@db/shop", "postgresql://***@db/shop with 20260101"),
        ("postgresql://reporting@db/shop", "postgresql://reporting@db/shop with reporting"),
        ("postgresql://svc-4711-reader@db/shop", "postgresql://svc-4711-reader@db/shop with svc-4711-reader"),
        ("postgresql://postgres:ab12cd3@db/shop", "postgresql://***@db/shop with ***"),
    ],
)
async def test_what_a_database_holds_is_read_as_it_is_though_its_password_is_a_word_of_it(
    script: Callable[[str], list[str]], url: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    program, path = script(DATABASE)
    config = {"mcpServers": {"shop": {"command": program, "args": [path], "env": {"DB": url}}}}
    rows = [{"postgres_id": 1, "password": "postgres", "name": "reporting", "hash": "fab12cd3e"}]
    async with mcp_bridge.connect(config) as toolset:
        result = await toolset.call("query", {})
        assert result.text == f"{json.dumps(rows)} in {said}"
        assert result.structured == {"rows": rows}
        schema = json.dumps(toolset.tools[0].input_schema)
        assert ("ab12cd3" in schema) == ("ab12cd3" in said)
    warned = [record.message for record in caplog.records if "an ordinary word" in record.message]
    assert len(warned) == (1 if said.endswith(("postgres", "password", "order_items", "20260101")) else 0)
    assert not any(url in message for message in warned)
