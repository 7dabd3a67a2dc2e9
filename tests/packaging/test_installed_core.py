"""The built wheel, installed without extras into an empty environment, outside the repository."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from clean_process import run

MOST_DISTRIBUTIONS = 50
MOST_MEGABYTES = 100
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def python(install: Callable[..., Path]) -> Path:
    return install()


def test_the_core_is_small_and_brings_no_torch(python: Path, tmp_path: Path) -> None:
    code = """
import importlib.metadata, json, os
found = {}
for one in importlib.metadata.distributions():
    sizes = [one.locate_file(file) for file in one.files or []]
    found[one.name] = sum(os.path.getsize(path) for path in sizes if os.path.exists(path))
print(json.dumps(found))
"""
    found = json.loads(run(python, "-c", code, cwd=tmp_path).stdout)
    assert "torch" not in found
    assert "numpy" not in found
    assert len(found) <= MOST_DISTRIBUTIONS, sorted(found)
    assert sum(found.values()) < MOST_MEGABYTES * 1_000_000


def test_the_core_connects_a_server_and_calls_it(python: Path, tmp_path: Path) -> None:
    code = """
import anyio, mcp_bridge, sys
async def main():
    server = {"mcpServers": {"desk": {"command": sys.executable, "args": ["-m", "sandboxes.helpdesk"]}}}
    async with mcp_bridge.connect(server) as tools, tools.open_world("one") as world:
        result = await world.call("get_policy", {"topic": "returns"})
        print(len(tools.tools), result.is_error)
anyio.run(main)
"""
    done = run(python, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["9", "False"]


def test_every_public_name_is_there_without_extras(python: Path, tmp_path: Path) -> None:
    code = """
import sdk, mcp_bridge, sandboxes, toolbake
for package in (sdk, mcp_bridge, sandboxes):
    for name in package.__all__:
        assert getattr(toolbake, name) is getattr(package, name)
from toolbake import *
assert (connect, SqlSandbox, train) == (mcp_bridge.connect, sandboxes.SqlSandbox, sdk.train)
"""
    done = run(python, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("sdk.train([f], ['x'], lambda r: 1.0)", "sdk.train needs toolbake[train]"),
        ("sdk.serve('folder')", "sdk.serve needs toolbake[serve]"),
        ("sdk.evaluate([f], ['x'], lambda r: 1.0)", "a local model needs toolbake[serve]"),
        ("sandboxes.api.ApiTwin({})", "ApiTwin needs toolbake[twins]"),
    ],
)
def test_what_needs_an_extra_names_it(python: Path, tmp_path: Path, call: str, told: str) -> None:
    code = f"""
import sdk, sandboxes, sandboxes.api
def f(a: int) -> int:
    return a
try:
    {call}
except (sdk.ToolbakeError, __import__('mcp_bridge').SourceError) as error:
    print(error)
"""
    done = run(python, "-c", code, cwd=tmp_path)
    assert done.stdout.startswith(told), done.stderr
    extra = told.split("[")[1].rstrip("]")
    assert f"pip install 'toolbake[{extra}]'" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("train", "mcp.json", "tasks.jsonl", "--verifier", "expected"), "toolbake train needs toolbake[train]"),
        (("serve", "run"), "sdk.serve needs toolbake[serve]"),
        (("export", "run", "--to", "vllm", "--output-dir", "out"), "toolbake export needs toolbake[serve]"),
    ],
)
def test_commands_that_need_an_extra_name_it(python: Path, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"desk": {"command": "true"}}}')
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "a", "expected": {"answer": "b"}}\n')
    done = run(python.with_name("toolbake"), *words, cwd=tmp_path)
    assert done.returncode != 0
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_the_command_lists_tools_and_tells_that_tokens_are_not_counted(python: Path, tmp_path: Path) -> None:
    command = f"{python} -m sandboxes.helpdesk"
    done = run(python.with_name("toolbake"), "tools", "--command", command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "get_order" in done.stdout
    assert "toolbake[serve]" in done.stderr
