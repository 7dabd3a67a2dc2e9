"""Tools that a server wants called as tasks: it takes the call at once, and the result is asked for later.

Revision 2025-11-25 of MCP, "Tasks". Revisions since have them as an extension, which nobody is told of here, so that
their servers answer at once.
"""

from __future__ import annotations

import logging
from typing import Any

import anyio
import anyio.abc
import mcp_types as types
from mcp import Client
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from ..errors import ungrouped
from ..ledger import current_call

logger = logging.getLogger(__name__)

_REVISION = "2025-11-25"
_ENDED = frozenset({"completed", "failed", "cancelled"})
_USUAL_INTERVAL_S = 1.0
_SHORTEST_INTERVAL_S = 0.05
_LONGEST_INTERVAL_S = 30.0
_CANCEL_S = 1.0
"""How long a server may take to hear that a task is no longer wanted: the call's time limit has passed by then."""
_LAST_STATE_S = 1.0
"""How long a result waits for a state that was asked for before it came."""
_KEPT_MS = 24 * 60 * 60 * 1000
"""How long a server is asked to keep a result: longer than any call waits for it."""
_TAKEN_OR_ANSWERED = TypeAdapter[types.CreateTaskResult | types.CallToolResult](
    types.CreateTaskResult | types.CallToolResult
)
_MOST_REFUSALS = 2
"""How often the result of a task that has ended is asked for: the first answer may have been lost."""


class TaskInterrupted(Exception):
    """The server took a call as a task, and then its result could not be had. What the task does is not known."""

    def __init__(self, task_id: str, cause: Exception) -> None:
        super().__init__(f"task {task_id}: {cause}")
        self.task_id = task_id
        self.cause = cause


def wants_task(tool: types.Tool) -> bool:
    """Whether a tool can only be called as a task."""
    return tool.execution is not None and tool.execution.task_support == "required"


def takes_tasks(client: Client) -> bool:
    """Whether a server says that tools may be called as tasks. `client` is entered."""
    offered = client.server_capabilities.tasks
    if client.protocol_version != _REVISION or offered is None or offered.requests is None:
        return False
    # Not its field `call` too: the SDK's servers leave that out.
    return offered.requests.tools is not None


class TaskCalls:
    """Calls of one session that are made as tasks."""

    def __init__(self, client: Client, label: str) -> None:
        self._client = client
        self._label = label

    async def call(
        self, name: str, arguments: dict[str, Any], progress: ProgressFnT | None, meta: dict[str, Any]
    ) -> types.CallToolResult:
        """Call a tool and wait for its result. A cancelled call cancels the task in the server.

        `progress` hears what the server says of the task's state, too. Raises the SDK's errors where the call was not
        taken or the tool answered with one, and `TaskInterrupted` where it was taken and its result cannot be had.
        """
        created = await self._create(name, arguments, progress, meta)
        if isinstance(created, types.CallToolResult):
            return created
        task = created.task
        logger.debug("%s works on %r as task %s", self._label, name, task.task_id)
        if (call := current_call()) is not None and call.accepted is not None:
            call.accepted(f"task {task.task_id}")
        try:
            result = await self._followed(task, progress)
        except anyio.get_cancelled_exc_class():
            await self._cancel(task.task_id)
            raise
        if not result.is_error:
            await self._client.session.validate_tool_result(name, result)
        return result

    async def _create(
        self, name: str, arguments: dict[str, Any], progress: ProgressFnT | None, meta: dict[str, Any]
    ) -> types.CreateTaskResult | types.CallToolResult:
        wanted: Any = {"name": name, "arguments": arguments, "task": {"ttl": _KEPT_MS}, "_meta": meta or None}
        request = types.CallToolRequest(params=types.CallToolRequestParams.model_validate(wanted))
        try:
            return await self._client.session.send_request(request, _TAKEN_OR_ANSWERED, progress_callback=progress)
        except ValidationError as error:
            # The SDK takes nothing but a tool's result for an answer, and its error holds what came.
            came = [one["input"] for one in error.errors(include_url=False)]
            created = next((one for one in came if isinstance(one, dict) and "task" in one), None)
            if created is None:
                raise
        return types.CreateTaskResult.model_validate(created, by_name=False)

    async def _followed(self, task: types.Task, progress: ProgressFnT | None) -> types.CallToolResult:
        if progress is None:
            return await self._result(task)
        with ungrouped():
            async with anyio.create_task_group() as group:
                ended = anyio.Event()
                group.start_soon(self._tell, task, progress, ended)
                result = await self._result(task)
                ended.set()
                group.cancel_scope.deadline = anyio.current_time() + _LAST_STATE_S
        return result

    async def _result(self, task: types.Task) -> types.CallToolResult:
        """Ask for the result, which a server gives when there is one. Where it does not wait with that, ask again."""
        wanted = types.GetTaskPayloadRequest(params=types.GetTaskPayloadRequestParams(task_id=task.task_id))
        refusals = 0
        while True:
            try:
                return await self._client.session.send_request(wanted, types.CallToolResult)
            except (MCPError, ValidationError) as error:
                now = await self._state(task.task_id, error)
                if now.status == "failed":
                    if isinstance(error, MCPError):
                        raise  # what the tool itself answered
                    return _failed(now)
                refusals += now.status in _ENDED
                if now.status == "cancelled" or refusals >= _MOST_REFUSALS:
                    raise TaskInterrupted(task.task_id, error) from error
                await anyio.sleep(_interval(now))
            except Exception as error:
                raise TaskInterrupted(task.task_id, error) from error

    async def _state(self, task_id: str, otherwise: Exception) -> types.GetTaskResult:
        """How far the task is. Raises `TaskInterrupted` with `otherwise` where the server does not say."""
        asked = types.GetTaskRequest(params=types.GetTaskRequestParams(task_id=task_id))
        try:
            return await self._client.session.send_request(asked, types.GetTaskResult)
        except Exception as error:
            logger.debug("%s does not tell the state of task %s: %s", self._label, task_id, error)
            raise TaskInterrupted(task_id, otherwise) from error

    async def _tell(self, task: types.Task, progress: ProgressFnT, ended: anyio.Event) -> None:
        """Report what the server says of the state, each time that it says something else, until `ended` is set.

        A state that was asked for by then is reported too: its answer and the result come on ways of their own.
        """
        told, steps = task.status_message, 0
        state: types.Task | types.GetTaskResult = task
        while state.status not in _ENDED:
            with anyio.move_on_after(_interval(state)):
                await ended.wait()
            if ended.is_set():
                return
            try:
                state = await self._state(task.task_id, TimeoutError())
            except TaskInterrupted:
                return  # whoever waits for the result will see for itself
            if state.status_message and state.status_message != told:
                told, steps = state.status_message, steps + 1
                await progress(steps, None, told)

    async def _cancel(self, task_id: str) -> None:
        offered = self._client.server_capabilities.tasks
        if offered is None or offered.cancel is None:
            logger.warning("%s cannot cancel task %s, which goes on there", self._label, task_id)
            return
        unwanted = types.CancelTaskRequest(params=types.CancelTaskRequestParams(task_id=task_id))
        with anyio.move_on_after(_CANCEL_S, shield=True) as limit:
            try:
                await self._client.session.send_request(unwanted, types.CancelTaskResult)
            except Exception as error:
                # It may have ended by itself; there is nobody left to tell.
                logger.debug("%s did not cancel task %s: %s", self._label, task_id, error)
        if limit.cancelled_caught:
            logger.warning("%s did not say within %g s that it cancelled task %s", self._label, _CANCEL_S, task_id)


def _interval(task: types.Task | types.GetTaskResult) -> float:
    """Seconds until the state may be asked for again, as the server wishes."""
    wished = _USUAL_INTERVAL_S if task.poll_interval is None else task.poll_interval / 1000
    return min(max(wished, _SHORTEST_INTERVAL_S), _LONGEST_INTERVAL_S)


def _failed(task: types.GetTaskResult) -> types.CallToolResult:
    """For a task that failed and left no result."""
    said = f": {task.status_message}" if task.status_message else " and said no more."
    return types.CallToolResult(content=[types.TextContent(text=f"The tool failed{said}")], is_error=True)
