"""An agent that does nothing but measure: asks and calls by plain sockets, and answers with milliseconds as JSON."""

import json
import os
import statistics
import sys
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

TOOL = {
    "type": "function",
    "function": {
        "name": "get_order",
        "description": "Read an order.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
    },
}


def main(turns):
    url, key = urlsplit(os.environ["OPENAI_BASE_URL"]), os.environ["OPENAI_API_KEY"]
    connection = HTTPConnection(url.hostname, url.port)
    accept = "application/json, text/event-stream"
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Accept": accept}

    def post(path, body):
        sent = json.dumps(body)
        began = time.perf_counter()
        connection.request("POST", path, sent, headers)
        answer = connection.getresponse().read()
        took = 1000 * (time.perf_counter() - began)
        event = next((line for line in answer.decode().splitlines() if line.startswith("data: ")), None)
        return json.loads(event.removeprefix("data: ") if event else answer), took

    messages = [{"role": "user", "content": os.environ["TOOLBAKE_PROMPT"]}]
    asked, called = [], []
    for turn in range(turns):
        body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": [TOOL]}
        reply, took = post("/v1/chat/completions", body)
        asked.append(took)
        message = reply["choices"][0]["message"]
        messages.append(message)
        for call in message["tool_calls"]:
            made = {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
            answer, took = post("/mcp", {"jsonrpc": "2.0", "id": turn, "method": "tools/call", "params": made})
            called.append(took)
            text = answer["result"]["content"][0]["text"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    print(json.dumps({"ask_ms": statistics.median(asked), "call_ms": statistics.median(called)}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
