"""A server that wants its tools called as tasks, on mcp 1.26, the release that can do so.

    python tasking.py [--done FILE] [--http PORT]

`--done`: a file that gets a line for each thing a tool has done, with the argument `label` of its call.
"""

import argparse
import asyncio
import os

import anyio
from mcp import types
from mcp.server.experimental.task_context import ServerTaskContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

parser = argparse.ArgumentParser()
parser.add_argument("--done")
parser.add_argument("--http", type=int)
options = parser.parse_args()
server = Server("tasking")
server.experimental.enable_tasks()

NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
NOTHING = {"type": "object"}
COLOUR = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


def note(line: str) -> None:
    if options.done:
        with open(options.done, "a") as done:
            done.write(f"{line}\n")


def text(words: str, **structured: object) -> types.CallToolResult:
    content = [types.TextContent(type="text", text=words)]
    return types.CallToolResult(content=content, structuredContent=structured or None)


shown: set[tuple[str, str | None]] = set()
"""The ids of tasks whose state was asked for, with the status that was answered."""
overtaken: set[str] = set()
"""The ids of tasks whose last state is answered after their result."""


@server.experimental.get_task()
async def get_task(request: types.GetTaskRequest) -> types.GetTaskResult:
    task = await server.experimental.task_support.store.get_task(request.params.taskId)
    shown.add((task.taskId, task.statusMessage))
    if task.taskId in overtaken and task.statusMessage == "in the oven":
        await anyio.sleep(0.3)
    return types.GetTaskResult(**task.model_dump())


async def bake(task: ServerTaskContext, arguments: dict[str, object]) -> types.CallToolResult:
    if arguments.get("overtaken"):
        overtaken.add(task.task_id)
    for step in ("mixing", "in the oven"):
        await task.update_status(step)
        while arguments.get("followed") and (task.task_id, step) not in shown:  # noqa: ASYNC110 - the SDK tells nobody
            await anyio.sleep(0.01)
    note(f"{arguments.get('label')} baked")
    return text("A cake.", number=1)


arrived: list[object] = []
all_there = anyio.Event()


async def meet(task: ServerTaskContext, arguments: dict[str, object]) -> types.CallToolResult:
    """Goes on once `count` are there."""
    arrived.append(arguments)
    if len(arrived) == arguments["count"]:
        all_there.set()
    await all_there.wait()
    note(f"{arguments.get('label')} met")
    return text("Met.")


async def miscount(task: ServerTaskContext, arguments: dict[str, object]) -> types.CallToolResult:
    return text("One.", number="one")


async def paint(task: ServerTaskContext, arguments: dict[str, object]) -> types.CallToolResult:
    answer = await task.elicit("Which colour?", COLOUR)
    return text(f"Painted {answer.content['colour']}." if answer.action == "accept" else f"The user: {answer.action}.")


async def spill(task: ServerTaskContext, arguments: dict[str, object]) -> types.CallToolResult:
    raise ValueError("the milk is gone")


async def refuse(task: ServerTaskContext, arguments: dict[str, object]) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text="No flour.")], isError=True)


async def wait(task: ServerTaskContext, arguments: dict[str, object]) -> types.CallToolResult:
    note(f"{arguments.get('label')} waiting")
    while not task.is_cancelled:
        stored = await server.experimental.task_support.store.get_task(task.task_id)
        if stored is not None and stored.status == "cancelled":
            break
        await asyncio.sleep(0.02)
    note(f"{arguments.get('label')} cancelled")
    # Not to its end: this release breaks where a task that was cancelled gives a result.
    await anyio.sleep_forever()
    return text("never")


async def die(task: ServerTaskContext, arguments: dict[str, object]) -> types.CallToolResult:
    note(f"{arguments.get('label')} dying")
    await anyio.sleep(0.3)
    os._exit(1)


WORK = {work.__name__: work for work in (bake, meet, miscount, paint, spill, refuse, wait, die)}


@server.list_tools()
async def list_tools() -> list[types.Tool]:
    required = types.ToolExecution(taskSupport="required")
    outputs = {"bake": NUMBER, "miscount": NUMBER}
    tasks = [
        types.Tool(name=name, inputSchema=NOTHING, outputSchema=outputs.get(name), execution=required) for name in WORK
    ]
    return [*tasks, types.Tool(name="plain", inputSchema=NOTHING)]


@server.call_tool(validate_input=False)
async def call_tool(name: str, arguments: dict[str, object]) -> types.CallToolResult | types.CreateTaskResult:
    context = server.request_context.experimental
    if name not in WORK:
        return text("plain")
    if not context.is_task:
        raise ValueError("call it as a task")
    return await context.run_task(lambda task: WORK[name](task, arguments))


async def over_stdio() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def over_http(port: int) -> None:
    import contextlib
    from collections.abc import AsyncIterator

    import uvicorn
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.applications import Starlette
    from starlette.routing import Mount

    manager = StreamableHTTPSessionManager(server)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    app = Starlette(routes=[Mount("/mcp", manager.handle_request)], lifespan=lifespan)
    uvicorn.run(app, host="127.0.0.1", port=port)


if __name__ == "__main__":
    if options.http is None:
        anyio.run(over_stdio)
    else:
        over_http(options.http)
