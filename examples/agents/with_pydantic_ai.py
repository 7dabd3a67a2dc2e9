"""An agent of pydantic-ai, as a program: `--agent 'python with_pydantic_ai.py'`."""

import asyncio
import os

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel


def tool_of(desk: Client, tool) -> Tool:
    async def call(**arguments):
        result = await desk.call_tool(tool.name, arguments)
        return "".join(part.text for part in result.content if part.type == "text")

    return Tool.from_schema(call, tool.name, tool.description, tool.input_schema)


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['MCP_API_KEY']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(os.environ["MCP_URL"], http_client=http)) as desk,
    ):
        tools = [tool_of(desk, tool) for tool in (await desk.list_tools()).tools]
        model = OpenAIChatModel(os.environ["OPENAI_MODEL"])  # reads OPENAI_BASE_URL and OPENAI_API_KEY
        agent = Agent(model, tools=tools, instructions="Be brief.")
        print((await agent.run(os.environ["TOOLBAKE_PROMPT"])).output)


asyncio.run(main())
