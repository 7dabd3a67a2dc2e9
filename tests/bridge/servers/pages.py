"""A server whose lists come in pages of two: seven tools, five resources, three prompts. On the installed SDK."""

from collections.abc import Sequence
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server

PAGE = 2
TOOLS = [types.Tool(name=f"tool_{number}", input_schema={"type": "object"}) for number in range(6)]
TOOLS.append(
    types.Tool(name="read_resource", description="A tool of the server's own.", input_schema={"type": "object"})
)
RESOURCES = [types.Resource(uri=f"note://{number}", name=f"note {number}", size=number) for number in range(5)]
TEMPLATES = [types.ResourceTemplate(uri_template="page://{number}", name="page", description="One page.")]
PROMPTS = [
    types.Prompt(name=f"prompt_{number}", arguments=[types.PromptArgument(name="who", required=True)])
    for number in range(3)
]


def page(everything: Sequence[Any], params: Any) -> tuple[list[Any], str | None]:
    begin = int(params.cursor) if params is not None and params.cursor else 0
    end = begin + PAGE
    return list(everything[begin:end]), str(end) if end < len(everything) else None


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    tools, more = page(TOOLS, params)
    return types.ListToolsResult(tools=tools, next_cursor=more)


async def call_tool(context: Any, params: Any) -> types.CallToolResult:
    link = types.ResourceLink(uri="note://3", name="note 3", mime_type="text/plain")
    return types.CallToolResult(content=[types.TextContent(text=params.name), link])


async def list_resources(context: Any, params: Any) -> types.ListResourcesResult:
    resources, more = page(RESOURCES, params)
    return types.ListResourcesResult(resources=resources, next_cursor=more)


async def list_templates(context: Any, params: Any) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(resource_templates=TEMPLATES)


async def read_resource(context: Any, params: Any) -> types.ReadResourceResult:
    number = params.uri.partition("://")[2]
    if not number.isdigit():
        raise types_error(params.uri)
    text = types.TextResourceContents(uri=params.uri, mime_type="text/plain", text=f"text {number}")
    # The same as JSON, but as bytes: {"number": 1}.
    data = types.BlobResourceContents(uri=params.uri, mime_type="application/json", blob="eyJudW1iZXIiOiAxfQ==")
    image = types.BlobResourceContents(uri=params.uri, mime_type="image/png", blob="aGVsbG8=")
    return types.ReadResourceResult(contents=[text, data, image])


def types_error(uri: str) -> Exception:
    from mcp.shared.exceptions import MCPError

    return MCPError(-32002, f"there is no {uri}")


async def list_prompts(context: Any, params: Any) -> types.ListPromptsResult:
    prompts, more = page(PROMPTS, params)
    return types.ListPromptsResult(prompts=prompts, next_cursor=more)


async def get_prompt(context: Any, params: Any) -> types.GetPromptResult:
    words = types.TextContent(text=f"Greet {(params.arguments or {}).get('who')} by {params.name}.")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=words)])


server = Server(
    "pages",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
)
