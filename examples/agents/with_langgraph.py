"""An agent as a graph of LangGraph, as a program: `--agent 'python with_langgraph.py'`."""

import asyncio
import os

import httpx2
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


def tool_of(desk: Client, tool) -> StructuredTool:
    async def call(**arguments):
        result = await desk.call_tool(tool.name, arguments)
        return "".join(part.text for part in result.content if part.type == "text")

    return StructuredTool(
        name=tool.name, description=tool.description or "", args_schema=tool.input_schema, coroutine=call
    )


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['MCP_API_KEY']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(os.environ["MCP_URL"], http_client=http)) as desk,
    ):
        tools = [tool_of(desk, tool) for tool in (await desk.list_tools()).tools]
        # ChatOpenAI reads OPENAI_API_KEY and OPENAI_BASE_URL.
        model = ChatOpenAI(model=os.environ["OPENAI_MODEL"]).bind_tools(tools)

        async def ask(state: MessagesState):
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", ask)
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        state = await graph.compile().ainvoke({"messages": [("user", os.environ["TOOLBAKE_PROMPT"])]})
        print(state["messages"][-1].content)


asyncio.run(main())
