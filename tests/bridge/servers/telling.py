"""A server that tells without being asked: its log, changes of a resource and of its tools. Over stdio."""

from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged

ICON = types.Icon(src="data:image/png;base64,iVBORw0KGgo=", mime_type="image/png")
NOTE = "note://1"
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def make() -> Server[Any]:
    bus, subscribed, level = InMemorySubscriptionBus(), set(), ["warning"]

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        tools = [types.Tool(name=name, input_schema={"type": "object"}, icons=[ICON]) for name in ("work", "change")]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name == "change":
            await bus.publish(ResourceUpdated(NOTE))
            await bus.publish(ToolsListChanged())
            if NOTE in subscribed:
                await context.session.send_resource_updated(NOTE)
            await context.session.send_tool_list_changed()
        else:
            wanted = (context.meta or {}).get(types.LOG_LEVEL_META_KEY, level[0])
            for number, said in enumerate(LEVELS[:4]):
                if number >= LEVELS.index(wanted):
                    told = types.LoggingMessageNotificationParams(level=said, data={"step": number}, logger="work")
                    await context.session.send_notification(
                        types.LoggingMessageNotification(params=told), related_request_id=context.request_id
                    )
        return types.CallToolResult(content=[types.TextContent(text="done")])

    async def read(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text="a note")])

    async def list_resources(_: Any, __: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(name="note", uri=NOTE)])

    async def subscribe(_: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        subscribed.add(str(params.uri))
        return types.EmptyResult()

    async def unsubscribe(_: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        subscribed.discard(str(params.uri))
        return types.EmptyResult()

    async def set_level(_: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        level[0] = params.level
        return types.EmptyResult()

    server: Server[Any] = Server(
        "telling",
        version="3",
        title="The telling server",
        description="It tells.",
        website_url="https://telling.example",
        icons=[ICON],
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(bus),
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    return server


async def main() -> None:
    server = make()
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (read, write):
        await server.run(read, write, options)


if __name__ == "__main__":
    anyio.run(main)
