"""An agent as people write it, with the openai client and an MCP client, and nothing of this library."""

import json
import ssl
from contextlib import asynccontextmanager

import httpx2
import openai
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

CERTIFICATES = ssl.create_default_context()
"""Reading them takes a client a tenth of a second."""
PATIENCE_S = 3600
"""openai's clients connect within 5 s, or give up: where many begin at once on a busy machine, that is too little."""


def model_at(endpoint, **options):
    http = openai.DefaultAsyncHttpxClient(verify=CERTIFICATES)
    options = {"max_retries": 0, "timeout": PATIENCE_S, "api_key": endpoint.api_key, **options}
    return openai.AsyncOpenAI(base_url=endpoint.base_url, http_client=http, **options)


@asynccontextmanager
async def tools_at(endpoint, headers=None):
    async with (
        httpx2.AsyncClient(headers=headers or endpoint.mcp_headers, timeout=PATIENCE_S, verify=CERTIFICATES) as http,
        Client(streamable_http_client(endpoint.mcp_url, http_client=http)) as client,
    ):
        yield client


def as_function(tool):
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


async def result_of(client, call):
    try:
        result = await client.call_tool(call.function.name, json.loads(call.function.arguments))
        text = "".join(part.text for part in result.content if part.type == "text")
    except ValueError as error:
        text = f"the arguments are not valid JSON: {error}"
    return {"role": "tool", "tool_call_id": call.id, "content": text}


async def plain_agent(task, endpoint, own=()):
    """Asks, calls what the model wants called, and asks again, until it answers. `own`: functions that are answered
    here, and not by the world."""
    names = {one["function"]["name"] for one in own}
    async with model_at(endpoint) as model, tools_at(endpoint) as client:
        tools = [*map(as_function, (await client.list_tools()).tools), *own]
        messages = [message.as_openai() for message in task.opening()]
        while True:
            reply = await model.chat.completions.create(model=endpoint.model, messages=messages, tools=tools)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                noted = {"role": "tool", "tool_call_id": call.id, "content": "noted"}
                messages.append(noted if call.function.name in names else await result_of(client, call))
