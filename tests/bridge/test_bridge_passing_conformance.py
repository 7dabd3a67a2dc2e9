"""The conformance suite of MCP tries the SDK's everything-server, directly and behind `record` and `serve-tools`."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import anyio
import pytest
from conformance_suite import needs_suite, requirements, suite_command
from free_ports import free_port
from listening_servers import listening
from other_environments import python_of

from mcp_bridge import serve_tools
from sandboxes.recorded.recorder import serve_recorder

NOT_RECORDED = {"no stream is resumed": ["server-sse-polling/*"]}
NOT_SERVED = {
    **NOT_RECORDED,
    "resources": ["resources-*", "caching/sep-2549-resources-*", "sep-2164-resource-not-found/*"],
    "prompts": ["prompts-*", "caching/sep-2549-prompts-*"],
    "completions": ["completion-complete/*"],
    "changes of tools": ["server-stateless/sep-2575-server-*subscription*", "server-stateless/*notification-filter"],
    "questions: handlers answer them, not the client": [
        "tools-call-sampling/*",
        "*elicitation*",
        "input-required-result-*",
        "server-stateless/sep-2575-*-capability*",
    ],
}
"""What docs/recorded-twins.md and docs/servers.md say is not passed on."""


@pytest.fixture(scope="module")
def everything() -> Iterator[str]:
    """The URL of the SDK's everything-server."""
    port = free_port()
    command = [str(python_of("everything-server")), "-m", "mcp_everything_server", "--port", str(port)]
    with listening(command, "Uvicorn running"):
        yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def directly(url: str, _: Path) -> AsyncIterator[str]:
    yield url


@asynccontextmanager
async def recorded(url: str, folder: Path) -> AsyncIterator[str]:
    async with started(serve_recorder, url, folder / "everything.jsonl", said="say") as behind:
        yield behind


@asynccontextmanager
async def served(url: str, _: Path) -> AsyncIterator[str]:
    async with started(serve_tools, url, said="ready") as behind:
        yield behind


@asynccontextmanager
async def started(serve: Callable[..., Any], *arguments: Any, said: str) -> AsyncIterator[str]:
    port, begun = free_port(), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(functools.partial(serve, *arguments, port=port, **{said: lambda *_: begun.set()}))
        await begun.wait()
        yield f"http://127.0.0.1:{port}/mcp"
        group.cancel_scope.cancel()


async def passed(url: str, revision: str, folder: Path) -> set[str]:
    """The checks that the server at `url` passes, as `scenario/check`."""
    command = [*suite_command("server"), "--url", url, "--requirements", revision, "--output-dir", str(folder)]
    ended = await anyio.run_process(command, check=False)  # it fails where any check does
    checks = _checks_in(folder)
    assert len(checks) > len(requirements()[revision]["server"]), ended.stdout.decode() + ended.stderr.decode()
    return {name for name, status in checks if status == "SUCCESS"}


def _checks_in(folder: Path) -> list[tuple[str, str]]:
    found = []
    for file in folder.glob("server-*/checks.json"):
        scenario = re.sub(r"-\d{4}-\d\d-\d\dT.*", "", file.parent.name.removeprefix("server-"))
        found += [(f"{scenario}/{check['id']}", check["status"]) for check in json.loads(file.read_text())]
    return found


@needs_suite
@pytest.mark.parametrize("revision", requirements() or [""])
async def test_behind_us_a_server_passes_each_check_that_it_passes_itself_but_what_is_not_passed_on(
    everything: str, revision: str, tmp_path: Path
) -> None:
    found = {}
    for way in (directly, recorded, served):
        folder = tmp_path / way.__name__
        async with way(everything, tmp_path) as url:
            found[way.__name__] = await passed(url, revision, folder)
    assert len(found["directly"]) > 80
    for way, listed in (("recorded", NOT_RECORDED), ("served", NOT_SERVED)):
        lost = found["directly"] - found[way]
        patterns = [pattern for several in listed.values() for pattern in several]
        unlisted = {name for name in lost if not any(fnmatch(name, pattern) for pattern in patterns)}
        assert not unlisted, way
