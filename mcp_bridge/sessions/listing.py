"""What a session offers: the server's tools, and its resources and prompts as tools where the user wants them."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import mcp_types as types
from mcp import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from ..control import CALL_META
from ..errors import ToolFailure
from ..records import ToolResult
from ..sources.options import ServerOptions
from ..toolsets.result_checks import ResultCheck, result_check
from ..toolsets.results import error as error_result
from .content import from_mcp
from .eras import is_handshake
from .messages import unwritable
from .reading import ReadingTools
from .tasks import TaskCalls, takes_tasks, wants_task

if TYPE_CHECKING:
    from .answering import Answers

logger = logging.getLogger(__name__)

_CLOSED = (anyio.ClosedResourceError, anyio.BrokenResourceError)
_MOST_PAGES = 1000
_CONFIRM_S = 5.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 60.0
_NO_SUCH = ("unknown", "not found")
"""How servers say in words that they have no such tool."""


class Notices:
    """What one session was told of its server's lists."""

    def __init__(self) -> None:
        self.changes = 0
        """How often the tools have changed."""
        self.is_followed = False
        """Whether a session listens to what the server tells all of them."""

    async def hear(self, message: types.ServerNotification | Exception) -> None:
        """The SDK's `message_handler`."""
        self.changes += isinstance(message, types.ToolListChangedNotification)


def tells_of_changes(client: Client) -> bool:
    """Whether the server says that it tells when its tools change."""
    tools = client.server_capabilities.tools
    return tools is not None and bool(tools.list_changed)


@contextlib.asynccontextmanager
async def watched(client: Client, notices: Notices) -> AsyncIterator[None]:
    """Hear of changed tools while the block runs. Before the newest revision servers tell without being asked."""
    if is_handshake(client.protocol_version) or not tells_of_changes(client) or notices.is_followed:
        yield
        return
    notices.is_followed = True
    try:
        async with anyio.create_task_group() as group:
            with anyio.move_on_after(_CONFIRM_S) as limit:
                await group.start(_follow, client, notices)
            if limit.cancelled_caught:
                logger.warning("a server says that it tells of changed tools and does not confirm it; not listening")
            yield
            group.cancel_scope.cancel()
    finally:
        notices.is_followed = False


async def _follow(client: Client, notices: Notices, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Listen, and again after each end of it, for as long as the session lives."""
    is_first, pause = True, _FIRST_PAUSE_S
    while True:
        try:
            async with client.listen(tools_list_changed=True) as events:
                if is_first:
                    task_status.started()
                else:
                    # Whatever changed while nobody listened.
                    notices.changes += 1
                is_first, pause = False, _FIRST_PAUSE_S
                async for _ in events:
                    notices.changes += 1
        except (MCPError, SubscriptionLost, *_CLOSED) as error:
            logger.debug("the subscription to changes of tools ended: %s", error)
            if is_first:
                task_status.started()
                is_first = False
        await anyio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class Catalogue:
    """The tools of one session. `tools` is as the server last listed them; `load` lists them."""

    def __init__(
        self, client: Client, options: ServerOptions, notices: Notices, answers: Answers, *, label: str
    ) -> None:
        self.client = client
        self._label = label
        self._notices = notices
        self._answers = answers
        self._extra = ReadingTools(client, resources=options.resources, prompts=options.prompts)
        self._reading: frozenset[str] = frozenset()
        self._tasks = TaskCalls(client, label)
        self._as_tasks: frozenset[str] = frozenset()
        self._relisting: anyio.Lock | None = None
        self._vanished: frozenset[str] = frozenset()
        self._seen = 0
        self.tools: list[types.Tool] = []
        self._result_checks: dict[str, ResultCheck] = {}
        # The SDK's own matches the patterns of an output schema without a time limit.
        client.session.validate_tool_result = self._check_result  # type: ignore[method-assign]

    @property
    def takes_tasks(self) -> bool:
        """Whether the server takes calls as tasks."""
        return takes_tasks(self.client)

    async def load(self) -> None:
        """List the tools. Raises the SDK's errors, and `NotOffered` for an option that the server has nothing for."""
        seen = self._notices.changes
        listed = await _list_tools(self.client)
        before, names = {tool.name for tool in self.tools}, {tool.name for tool in listed}
        extra = self._extra.tools(taken=names)
        self._reading = frozenset(tool.name for tool in extra)
        self._vanished = (self._vanished | before) - names - self._reading
        self.tools = [*listed, *extra]
        self._as_tasks = frozenset(tool.name for tool in listed if wants_task(tool))
        self._seen = seen
        self._result_checks = {}

    async def _check_result(self, name: str, result: types.CallToolResult) -> None:
        """As `ClientSession.validate_tool_result`, in a limited time."""
        check = self._result_checks.get(name)
        if check is None:
            schema = next((tool.output_schema for tool in self.tools if tool.name == name), None)
            if schema is None:
                return
            try:
                check = self._result_checks[name] = result_check(name, json.dumps(schema))
            except ValueError as error:
                raise RuntimeError(str(error)) from error
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        if problem := check.problem(result.structured_content):
            raise RuntimeError(problem)

    @property
    def is_outdated(self) -> bool:
        """Whether the server said that its tools changed since they were listed."""
        return self._notices.changes != self._seen

    async def load_changes(self) -> bool:
        """List the tools again where the server said that they changed. Whether it had."""
        if not self.is_outdated:
            return False
        if self._relisting is None:
            self._relisting = anyio.Lock()
        async with self._relisting:
            if self.is_outdated:
                await self.load()
        return True

    async def call(self, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> ToolResult:
        """Call a tool. Raises the SDK's errors, and `ToolFailure` where the server no longer has the tool."""
        try:
            json.dumps(arguments, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError):
            # The SDK's transports do not survive it.
            return error_result(unwritable("tools/call"), "invalid_arguments")
        if name in self._vanished:
            raise self._gone(name, "not_sent")
        answers = self._answers
        if name in self._reading:
            result = await self._extra.call(name, arguments, meta)
        else:
            progress = answers.progress_for(name, meta.get(CALL_META))
            try:
                if name in self._as_tasks:
                    answer = await self._tasks.call(name, arguments, progress, meta)
                else:
                    answer = await self.client.call_tool(name, arguments, progress_callback=progress, meta=meta)  # type: ignore[arg-type]
                result = from_mcp(answer, reader=self._extra.reader)
            except MCPError as error:
                answers.raise_failure()
                if error.code == INVALID_PARAMS and name in error.message:
                    await self._raise_if_gone(name)
                raise
            if result.is_error and name in result.text and any(words in result.text.lower() for words in _NO_SUCH):
                await self._raise_if_gone(name)
        if answers.has_heard:
            if answers.is_behind:
                await answers.tell()
            answers.raise_failure()
        return result

    async def _raise_if_gone(self, name: str) -> None:
        """Servers say in words that they have no such tool; only a new listing tells that from a mistaken argument."""
        with contextlib.suppress(MCPError):
            await self.load()
        if name in self._vanished:
            raise self._gone(name, "refused")

    def _gone(self, name: str, delivery: Any) -> ToolFailure:
        return ToolFailure(
            f"{self._label} no longer offers the tool {name!r}, which it had when this world was opened. Its list of "
            "tools has changed; new worlds see the new one.",
            delivery=delivery,
        )


async def _list_tools(client: Client) -> list[types.Tool]:
    tools: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        tools.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise RuntimeError(f"tools/list has not ended after {_MOST_PAGES} pages")
