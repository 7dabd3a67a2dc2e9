"""What `connect` accepts, and what it says about everything else."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcp_bridge
from mcp_bridge import SourceError
from mcp_bridge.access.redaction import redacted
from mcp_bridge.sources.connecting import identify
from mcp_bridge.sources.specs import HttpSpec, StdioSpec


class Kettle:
    def boil(self) -> str:
        return "hot"


class Simulated:
    def __init__(self) -> None:
        self.tools: list[Any] = []

    def open_world(self, world_id: str, setup: Any = None) -> Any: ...


def servers(**entries: Any) -> dict[str, Any]:
    return {"mcpServers": entries}


async def test_an_mcp_json_is_read_with_env_and_a_cwd_relative_to_the_file(
    breaking: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_TEST_PLACE", "the harbour")
    folder = tmp_path / "project"
    folder.mkdir()
    env = {"PLACE": "at ${BRIDGE_TEST_PLACE}", "OTHER": "${BRIDGE_TEST_UNSET:-by default}"}
    entry = {"command": breaking[0], "args": breaking[1:], "env": env, "cwd": "project"}
    (tmp_path / "mcp.json").write_text(json.dumps(servers(breaking=entry)))
    async with mcp_bridge.connect(str(tmp_path / "mcp.json")) as toolset:
        assert (await toolset.call("environment", {"name": "PLACE"})).text == "at the harbour"
        assert (await toolset.call("environment", {"name": "OTHER"})).text == "by default"
        assert (await toolset.call("folder", {})).text == str(folder)


def test_a_default_may_name_another_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST_TOKEN", "tok-first")
    for text in ("${FIRST_TOKEN:-${SECOND}}", "${SECOND:-${FIRST_TOKEN}}", "${SECOND:-${THIRD:-${FOURTH:-tok-first}}}"):
        [spec] = identify(servers(one={"command": "a", "args": [f"--key={text}!"]}))
        assert isinstance(spec, StdioSpec)
        assert spec.args == ("--key=tok-first!",)
        assert ("tok-first" in spec.credentials) is ("FIRST_TOKEN" in text)


def test_a_home_folder_and_a_default_cwd_are_what_they_are_on_the_command_line() -> None:
    [spec] = identify(servers(one={"command": "~/bin/server", "cwd": "~/data"}))
    assert isinstance(spec, StdioSpec)
    assert spec.command == os.path.expanduser("~/bin/server")
    assert spec.cwd == os.path.expanduser("~/data")
    [plain] = identify(["python", "server.py", "--flag"])
    assert plain == StdioSpec("", "python", ("server.py", "--flag"))


def test_a_list_of_urls_and_json_files_is_a_list_of_sources(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps(servers(one={"command": "a"})))
    specs = identify(["https://one.example/mcp", str(path)])
    assert [type(spec) for spec in specs] == [HttpSpec, StdioSpec]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, r'must have "command" \(stdio\) or "url" \(HTTP\), exactly one of them; it has neither'),
        ({"command": "a", "url": "http://b"}, "exactly one of them; it has both"),
        ({"comand": "a"}, "unknown key 'comand'. Did you mean 'command'"),
        (
            {"command": "a", "connect_timeout_s": 60},
            """'connect_timeout_s'. It belongs in the entry's object "toolbake": {"connect_timeout_s": 60}. Known:""",
        ),
        ({"url": "http://a", "isolaton": "shared"}, """'isolaton'. It belongs .* "toolbake": {"isolation": ...}."""),
        ({"openapi": "a.json", "deny": ["a"]}, r"""'deny'. It belongs .* "toolbake": {"deny": \["a"\]}."""),
        ({"command": ""}, "command is ''"),
        ({"command": "a", "args": "b c"}, "args is 'b c'; it must be a list of strings"),
        ({"command": "a", "env": {"N": 1}}, "env.N is an int; write it as a string"),
        ({"command": "a", "headers": {"N": "1"}}, "'headers', which does nothing beside 'command'"),
        ({"command": "a", "env": {"KEY": "${BRIDGE_TEST_UNSET}"}}, "variable BRIDGE_TEST_UNSET is not set"),
        ({"url": "ftp://a"}, "must begin with http:// or https://"),
        ({"url": "https://[your-domain]/mcp"}, "the host or port of the URL is not valid"),
        ({"url": "https://a:port/mcp"}, "the host or port of the URL is not valid"),
        ({"url": "https://a", "proxy": "http://[::1"}, "proxy: the host or port of the URL is not valid"),
        ({"command": "a", "type": "sse"}, "type 'sse', which does not fit 'command'"),
        ({"url": "http://a", "type": "carrier pigeon"}, "known are 'stdio', 'http' and 'sse'"),
        ({"url": "http://a", "toolbake": {"isolation": "process"}}, 'needs a "command"'),
        ({"command": "a", "toolbake": {"isolation": "none"}}, "choices are 'process', 'session', 'shared'"),
        ({"command": "a", "toolbake": {"isolate": "process"}}, "unknown key 'isolate'. Did you mean 'isolation'"),
        ({"command": "a", "disabled": True}, "is disabled"),
        ({"command": "a", "enabled": False}, "is disabled"),
        ({"command": "a", "envFile": "missing.env"}, r"envFile '.*missing\.env' cannot be read: No such file"),
        ({"command": "a", "env": {"KEY": "${input:key}"}}, r"env.KEY uses \$\{input:key\}, .* write \$\{env:NAME\}"),
        ({"serverUrl": "http://a", "url": "http://a"}, "has two addresses, 'serverUrl' and another one"),
        ("python server.py", 'it must be an object with "command", "url" or "openapi"'),
    ],
)
async def test_a_wrong_entry_is_named_with_its_place_and_the_fix(entry: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message.replace("(HTTP)", "(HTTP)")) as raised:
        async with mcp_bridge.connect(servers(orders=entry)):
            pass
    assert "the dict" in str(raised.value)


def test_configurations_of_other_clients_are_read_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STOCK_TOKEN", "the-token-of-the-stock")
    (tmp_path / ".env").write_text("# of the editor\nexport API_KEY='the key=1 '\nMODE=from the file\n\nEMPTY=\n")
    entries = {
        "editor": {
            "type": "stdio",
            "command": "a",
            "envFile": ".env",
            "env": {"MODE": "own", "T": "${env:STOCK_TOKEN}"},
        },
        "agent": {"type": "local", "command": "b", "args": [], "tools": ["*"], "trust": True},
        "first": {"serverUrl": "https://first.example/mcp", "headers": {"Authorization": "Bearer ${env:STOCK_TOKEN}"}},
        "second": {"httpUrl": "https://second.example/mcp", "includeTools": ["get"], "oauth": {"clientId": "c"}},
        "third": {"type": "http", "url": "https://third.example/mcp", "gallery": "x"},
    }
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"inputs": [], "servers": entries}))
    editor, agent, first, second, third = identify(file)
    assert isinstance(editor, StdioSpec)
    assert editor.env == {"API_KEY": "the key=1 ", "MODE": "own", "EMPTY": "", "T": "the-token-of-the-stock"}
    assert {"the key=1 ", "the-token-of-the-stock"} <= set(editor.credentials)
    assert isinstance(agent, StdioSpec)
    assert isinstance(first, HttpSpec)
    assert first.headers == {"Authorization": "Bearer the-token-of-the-stock"}
    assert [one.url for one in (first, second, third)] == [
        f"https://{n}.example/mcp" for n in ("first", "second", "third")
    ]
    told = [record.getMessage() for record in caplog.records]
    assert [re.findall(r"server '(\w+)'.*: '(\w+)' does nothing here", one)[0] for one in told] == [
        ("second", "includeTools"),
        ("second", "oauth"),
        ("third", "gallery"),
    ]
    assert '"toolbake": {"allow": [...]} chooses tools' in told[0]


async def test_comments_and_last_commas_of_editors_are_no_part_of_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("""{
        // "inputs": [],
        "servers": {
            "one": {"command": "a", "args": ["http://b/*c*/", "\\\\", "// d \\" ,]",]}, /* the first
            "two": {"command": "e"}, */
        },
    }""")
    [spec] = identify(path)
    assert isinstance(spec, StdioSpec)
    assert (spec.name, spec.args) == ("one", ("http://b/*c*/", "\\", '// d " ,]'))


async def test_malformed_json_is_told_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {  // ours\n  "one": {"command" "a",}\n}}')
    with pytest.raises(SourceError, match=r"mcp\.json' is not valid JSON: .* at line 2, column 2\d"):
        async with mcp_bridge.connect(path):
            pass


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "holds a list"),
        ("{}", 'has no object "mcpServers"'),
        ('{"servers": {}}', '"servers" in .* is empty; add at least one server'),
        ('{"servers": {}, "mcpServers": {}}', 'has both "mcpServers" and "servers"'),
        ('{"mcpServers": {}}', "is empty; add at least one server"),
        ("", "is not valid JSON"),
        ("\x00", "is not valid JSON"),
        ('{"mcpServers": {"one": {"command": "a", "args": [,]}}}', "is not valid JSON.*at column 50"),
        pytest.param('{"mcpServers": {"one": "' + '\\"' * 50_000, "is not valid JSON: Unterminated", id="unterminated"),
        ('{"mcpServers": {"one": {"command": "a"}, "one": {"command": "b"}}}', "the key 'one' occurs twice; keep one"),
        (
            '{"mcpServers": {"one": {"command": "a", "toolbake": {"deny": ["delete_*"], "deny": ["x"]}}}}',
            "the key 'deny' occurs twice; keep one",
        ),
    ],
)
async def test_a_json_file_that_is_no_configuration_says_what_it_should_be(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=message):
        async with mcp_bridge.connect(path):
            pass


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gone.json", "there is no file 'gone.json'"),
        ("python server.py", r"give it as a list: \['python', 'server\.py'\]"),
        ("", "an empty string"),
        ([], "an empty list"),
        (["", "x"], "begin with a program"),
        (7, "is not a source of tools"),
        (None, "is not a source of tools"),
        ([["python", "s.py"], 3.5], "is not a source of tools"),
        (dict, "the class dict; give functions or an MCP server in its place"),
        (Simulated, "the class Simulated; give an instance of it"),
        (Kettle, r"the class Kettle; .*sandboxes\.objects\.ObjectTwin\(Kettle\).* such as \[one\.boil\]"),
        (os.path, r"is the module posixpath; give each rollout .*ObjectTwin\(posixpath\)"),
        (Kettle(), r"\(Kettle\) is not a source of tools; .*ObjectTwin\(Kettle\).* such as \[one\.boil\]"),
        ("http://", "name a host"),
        ("/", "'/' is a folder; give a file, such as '/mcp.json'"),
    ],
)
async def test_anything_else_is_refused(source: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        async with mcp_bridge.connect(source):
            pass


async def test_the_refusal_lists_what_is_accepted() -> None:
    with pytest.raises(SourceError) as raised:
        async with mcp_bridge.connect(object()):
            pass
    for form in ["mcp.json", "URL", "command as a list", "Python functions", "sandbox", "list of any"]:
        assert form in str(raised.value)


async def test_the_entry_of_a_server_says_how_long_it_may_take_to_start_and_the_error_how_to_give_it_more() -> None:
    entry = {"command": sys.executable, "args": ["-c", "import time; time.sleep(60)"]}
    fix = r'only slow, set "toolbake": {"connect_timeout_s": %s} in its entry of the mcp\.json'
    with pytest.raises(SourceError, match=rf"within 0\.4 s .*{fix % '1.2'}\."):
        async with mcp_bridge.connect(servers(slow={**entry, "toolbake": {"connect_timeout_s": 0.4}})):
            pass
    with pytest.raises(SourceError, match=rf"within 0\.3 s .*{fix % '0.9'}, connect_timeout_s=0.9 in Python"):
        async with mcp_bridge.connect(servers(slow=entry), connect_timeout_s=0.3):
            pass
    with pytest.raises(SourceError, match=r"give connect_timeout_s=0\.9 in Python, or --connect-timeout 0\.9 on the"):
        async with mcp_bridge.connect([entry["command"], *entry["args"]], connect_timeout_s=0.3):
            pass


async def test_a_server_is_waited_for_as_long_as_its_entry_says_whatever_holds_for_the_others(
    breaking: list[str],
) -> None:
    entry = {"command": breaking[0], "args": breaking[1:]}
    with pytest.raises(SourceError, match="did not answer within"):
        async with mcp_bridge.connect(servers(slow=entry), connect_timeout_s=0.001):
            pass
    patient = {**entry, "toolbake": {"connect_timeout_s": 60}}
    async with mcp_bridge.connect(servers(slow=patient), connect_timeout_s=0.001) as toolset:
        assert toolset.tools


def test_a_timeout_as_other_clients_have_it_does_nothing_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        identify(servers(one={"command": "a", "timeout": 30}))
    assert '"timeout" does nothing here. "toolbake": {"connect_timeout_s": 60} limits' in caplog.text


def test_a_disabled_server_is_left_out_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        specs = identify(servers(one={"command": "a", "disabled": True}, two={"command": "b", "alwaysAllow": []}))
    assert len(specs) == 1
    assert "server 'one' in the dict is left out" in caplog.text


def test_secrets_are_in_no_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_TEST_TOKEN", "s3cret-value")
    specs = identify(
        servers(
            one={"command": "a", "env": {"PLACE": "${BRIDGE_TEST_TOKEN}", "API_KEY": "l1teral-key"}},
            two={"url": "https://u:passw0rd@host/mcp?token=t0ken-in-url", "headers": {"A": "Bearer l1teral-header"}},
            three={"url": "https://host/${BRIDGE_TEST_TOKEN}/mcp"},
        )
    )
    shown = "".join(f"{spec!r}{spec.label}" for spec in specs)  # type: ignore[union-attr]
    for secret in ["s3cret", "l1teral", "passw0rd", "t0ken"]:
        assert secret not in shown


async def test_a_secret_that_a_dying_server_prints_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_TEST_TOKEN", "s3cret-value")
    code = "import os, sys; sys.exit('bad token ' + os.environ['TOKEN'])"
    entry = {"command": sys.executable, "args": ["-c", code], "env": {"TOKEN": "${BRIDGE_TEST_TOKEN}"}}
    with pytest.raises(SourceError, match=r"bad token \*\*\*") as raised:
        async with mcp_bridge.connect(servers(one=entry)):
            pass
    assert "s3cret" not in str(raised.value)


@given(st.text(), st.lists(st.text(min_size=6), max_size=4))
def test_redaction_leaves_no_secret_behind(text: str, secrets: list[str]) -> None:
    full = text + "".join(secrets)
    done = redacted(full, tuple(secrets))
    # What is left may only contain a secret where the replacement marks are part of it.
    assert not [secret for secret in secrets if secret in done and "*" not in secret]


def test_importing_the_bridge_loads_neither_the_sdk_nor_its_http_client() -> None:
    code = (
        "import sys, mcp_bridge; mcp_bridge.connect; mcp_bridge.Toolset; "
        "print([name for name in ('mcp', 'httpx2', 'torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_exported_name_is_there_and_others_are_refused() -> None:
    for name in mcp_bridge.__all__:
        assert getattr(mcp_bridge, name).__module__.startswith("mcp_bridge.")
        assert name in dir(mcp_bridge)
    with pytest.raises(AttributeError, match=r"no attribute 'conect'; it has: .*connect"):
        _ = mcp_bridge.conect


async def test_the_python_of_toolbake_can_be_named_in_mcp_json(tmp_path: Path) -> None:
    config = {
        "mcpServers": {"time": {"command": "${TOOLBAKE_PYTHON:-none}", "args": ["-m", "${MODULE:-mcp_server_time}"]}}
    }
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    async with mcp_bridge.connect(tmp_path / "mcp.json") as toolset:
        assert "get_current_time" in [tool.name for tool in toolset.tools]
