"""Twelve of the most used servers, each by the plain SDK client and by the bridge: the same tools, the same results."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import TextContent
from other_environments import python_of

import mcp_bridge

pytestmark = pytest.mark.timeout(180)
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Server:
    """`program`: of the environment "popular-servers", or a package of npm with its file. `{folder}` in arguments,
    environment and calls is a folder of its own. `calls`: as (tool, arguments)."""

    program: str
    calls: tuple[Call, ...]
    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    package: str | None = None

    def command(self, npm_program: Callable[[str, str], list[str]]) -> list[str]:
        if self.package is not None:
            return npm_program(self.package, self.program)
        python = python_of("popular-servers")
        return [str(python), str(python.with_name(self.program))]


SERVERS = {
    "git": Server(
        "mcp-server-git",
        (
            ("git_status", {"repo_path": "{folder}/repository"}),
            ("git_log", {"repo_path": "{folder}/repository", "max_count": 1}),
            ("git_show", {"repo_path": "{folder}/repository", "revision": "nowhere"}),
        ),
    ),
    "sqlite": Server(
        "mcp-server-sqlite",
        (
            ("create_table", {"query": "CREATE TABLE orders (id INTEGER, item TEXT)"}),
            ("write_query", {"query": "INSERT INTO orders VALUES (1, 'lamp'), (2, 'rug')"}),
            ("read_query", {"query": "SELECT * FROM order"}),
            ("read_query", {"query": "SELECT * FROM orders"}),
            ("describe_table", {"table_name": "orders"}),
        ),
        ("--db-path", "{folder}/shop.db"),
    ),
    "fetch": Server("mcp-server-fetch", (("fetch", {"url": "http://127.0.0.1:9/nobody"}),)),
    "excel": Server(
        "excel-mcp-server",
        (
            ("create_workbook", {"filepath": "{folder}/book.xlsx"}),
            ("write_data_to_excel", {"filepath": "{folder}/book.xlsx", "sheet_name": "Sheet", "data": [["a", 1]]}),
            ("read_data_from_excel", {"filepath": "{folder}/book.xlsx", "sheet_name": "Sheet"}),
            ("get_workbook_metadata", {"filepath": "{folder}/none.xlsx"}),
        ),
        ("stdio",),
    ),
    "calculator": Server(
        "mcp-server-calculator",
        (("calculate", {"expression": "6 * 7"}), ("calculate", {"expression": "1 / 0"})),
    ),
    "alchemy": Server(
        "mcp-alchemy",
        (
            ("execute_query", {"query": "CREATE TABLE people (name TEXT)"}),
            ("execute_query", {"query": "SELECT nobody FROM people"}),
            ("all_table_names", {}),
            ("schema_definitions", {"table_names": ["people"]}),
        ),
        env={"DB_URL": "sqlite:///{folder}/people.db"},
    ),
    "sequential thinking": Server(
        "dist/index.js",
        (
            (
                "sequentialthinking",
                {"thought": "first", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
            ),
        ),
        package="@modelcontextprotocol/server-sequential-thinking",
    ),
    "task manager": Server(
        "dist/index.js",
        (
            ("request_planning", {"originalRequest": "tidy up", "tasks": [{"title": "a", "description": "b"}]}),
            ("get_next_task", {"requestId": "req-1"}),
            ("get_next_task", {"requestId": "req-9"}),
        ),
        env={"TASK_MANAGER_FILE_PATH": "{folder}/tasks.json"},
        package="@kazuph/mcp-taskmanager",
    ),
    "github": Server(
        "dist/index.js",
        (("search_repositories", {"query": "x"}),),
        env={"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_none"},
        package="@modelcontextprotocol/server-github",
    ),
    "notion": Server("bin/cli.mjs", (), env={"NOTION_TOKEN": "ntn_none"}, package="@notionhq/notion-mcp-server"),
    "playwright": Server("cli.js", (("browser_close", {}),), package="@playwright/mcp"),
    "context7": Server("dist/index.js", (), package="@upstash/context7-mcp"),
}


def in_folder(value: Any, folder: Path) -> Any:
    """`value` with the folder's path in place of `{folder}`."""
    if isinstance(value, str):
        return value.replace("{folder}", str(folder))
    if isinstance(value, dict):
        return {name: in_folder(one, folder) for name, one in value.items()}
    return [in_folder(one, folder) for one in value] if isinstance(value, list | tuple) else value


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal folders, each with a repository of one commit."""
    first, second = tmp_path / "a" / "world", tmp_path / "b" / "world"
    repository = first / "repository"
    repository.mkdir(parents=True)
    (repository / "notes.txt").write_text("hello\n")
    author = ("-c", "user.name=A", "-c", "user.email=a@b.test", "-c", "commit.gpgsign=false")
    for words in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "--message", "first")):
        subprocess.run(["git", *words], cwd=repository, check=True)
    shutil.copytree(first, second)
    return first, second


def alike(text: str, folder: Path) -> str:
    """Without the folder's path, which some servers put into what they describe and answer."""
    return text.replace(str(folder), "{folder}")


async def by_the_sdk(command: list[str], env: dict[str, str], calls: list[Call], folder: Path) -> tuple[Any, Any]:
    """The tools, and for each call whether it failed and its text; a refusal by the protocol is a failure, too."""
    from mcp import MCPError

    parameters = StdioServerParameters(command=command[0], args=command[1:], env=env, cwd=folder)
    async with Client(stdio_client(parameters)) as client:
        listed, cursor = [], None
        while True:
            page = await client.list_tools(cursor=cursor)
            listed += page.tools
            if (cursor := page.next_cursor) is None:
                break
        results = []
        for name, arguments in calls:
            try:
                result = await client.call_tool(name, arguments)
            except MCPError as error:
                results.append((True, error.message))
                continue
            texts = [part.text for part in result.content if isinstance(part, TextContent)]
            results.append((bool(result.is_error), alike("\n".join(texts), folder)))
    described = {tool.name: alike(tool.description or "", folder) for tool in listed}
    tools = {tool.name: (described[tool.name], tool.input_schema, tool.output_schema) for tool in listed}
    return tools, results


async def by_the_bridge(command: list[str], env: dict[str, str], calls: list[Call], folder: Path) -> tuple[Any, Any]:
    entry = {"command": command[0], "args": command[1:], "env": env, "cwd": str(folder)}
    async with mcp_bridge.connect({"mcpServers": {"one": entry}}, connect_timeout_s=60) as toolset:
        assert toolset.left_out == []
        results = [await toolset.call(name, arguments) for name, arguments in calls]
        described = {tool.name: alike(tool.description, folder) for tool in toolset.tools}
        tools = {tool.name: (described[tool.name], tool.input_schema, tool.output_schema) for tool in toolset.tools}
    return tools, [(result.is_error, alike(result.text, folder)) for result in results]


@pytest.mark.parametrize("name", SERVERS)
async def test_the_tools_and_results_of_a_popular_server_are_those_of_the_plain_client(
    name: str, folders: tuple[Path, Path], npm_program: Callable[[str, str], list[str]]
) -> None:
    server = SERVERS[name]
    found = []
    for folder, ask in zip(folders, (by_the_sdk, by_the_bridge), strict=True):
        command = [*server.command(npm_program), *in_folder(server.arguments, folder)]
        calls = [(tool, in_folder(arguments, folder)) for tool, arguments in server.calls]
        found.append(await ask(command, in_folder(server.env, folder), calls, folder))
    (tools, results), (bridged_tools, bridged_results) = found
    assert tools
    assert bridged_tools == tools
    assert bridged_results == results
