"""An agent that keeps its context small: it drops what it read of papers that it did not cite.

toolbake evaluate examples/papers/mcp.json tasks.jsonl --agent examples/papers/compacting.py:agent \\
    --verifier examples/papers/paper_outcome.py:verify --policy tuned=runs/papers --limit max_turns=12 \\
    --limit max_turn_tokens=96 --limit max_tokens=768 --limit 'final_tools={"finish": "answer"}'
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

import sdk

CLOSED = "(closed; open it again to read it)"
MOST_OPEN = 1
"""So many papers that are not cited stay as they were read, the latest ones."""


def as_function(tool: Any) -> Any:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


async def agent(task: sdk.Task, endpoint: sdk.AgentEndpoint) -> str | None:
    """Ask the model and call the tools until it finishes."""
    async with (
        openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as model,
        httpx2.AsyncClient(headers=endpoint.mcp_headers, timeout=60) as http,
        Client(streamable_http_client(endpoint.mcp_url, http_client=http)) as library,
    ):
        tools = [as_function(tool) for tool in (await library.list_tools()).tools]
        messages: list[Any] = [message.as_openai() for message in task.opening()]
        opened: dict[str, str] = {}
        cited: set[str] = set()
        while True:
            reply = await model.chat.completions.create(model=endpoint.model, messages=messages, tools=tools)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                try:
                    arguments = json.loads(call.function.arguments)
                    result = await library.call_tool(call.function.name, arguments)
                    text = "".join(part.text for part in result.content if part.type == "text")
                except ValueError as error:  # the model's slip: it reads of it, and may call again
                    arguments, text = {}, f"the arguments are not valid JSON: {error}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
                if call.function.name == "open":
                    opened[call.id] = str(arguments.get("paper_id"))
                elif call.function.name == "cite":
                    cited.add(str(arguments.get("paper_id")))
                elif call.function.name == "finish":
                    return str(arguments.get("answer"))
            compact(messages, opened, cited)


def compact(messages: list[Any], opened: dict[str, str], cited: set[str]) -> None:
    """Replace the text of opened papers that are not cited, but for the latest."""
    idle = [call for call, paper in opened.items() if paper not in cited][:-MOST_OPEN]
    for message in messages:
        if message["role"] == "tool" and message["tool_call_id"] in idle:
            message["content"] = CLOSED
