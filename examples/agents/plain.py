"""An agent with the openai client and an MCP client, as a function: `toolbake rollout ... --agent plain.py:agent`."""

import json

import httpx2
import openai
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

import sdk


def as_function(tool):
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


async def agent(task: sdk.Task, endpoint: sdk.AgentEndpoint) -> str | None:
    async with (
        openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as model,
        httpx2.AsyncClient(headers=endpoint.mcp_headers, timeout=60) as http,
        Client(streamable_http_client(endpoint.mcp_url, http_client=http)) as desk,
    ):
        tools = [as_function(tool) for tool in (await desk.list_tools()).tools]
        messages = [message.as_openai() for message in task.opening()]
        while True:
            reply = await model.chat.completions.create(model=endpoint.model, messages=messages, tools=tools)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                try:
                    result = await desk.call_tool(call.function.name, json.loads(call.function.arguments))
                    text = "".join(part.text for part in result.content if part.type == "text")
                except ValueError as error:  # the model's slip: it reads of it, and may call again
                    text = f"the arguments are not valid JSON: {error}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
