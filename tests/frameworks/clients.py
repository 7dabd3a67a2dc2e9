"""The agents of frameworks, as their own tutorials write them: `clients.py FRAMEWORK,... URL FORM_URL`.

Each asks at URL a question that takes a call, runs the tool, hears the answer, and asks again in the same conversation,
whole and streamed. Those of `STRUCTURED` ask at FORM_URL for an answer in the form of a class. Prints `[talks, forms]`,
by the agent's name `{"answers": [...], "called": [...]}` or `{"error": ...}`. Runs in an environment that has the
frameworks alone. `DESK_MODEL` and `DESK_KEY` are the model's name and the key, where they are not "desk" and "none".
"""

import asyncio
import json
import os
import sys
import traceback

from pydantic import BaseModel

QUESTION, AGAIN = "Where is my order 4417?", "And order 4418?"
MODEL, KEY = os.environ.get("DESK_MODEL", "desk"), os.environ.get("DESK_KEY", "none")
PLACE = {"city": "Rome", "orders": 3}
"""What an answer in the form of `Place` is to hold."""
called = []


class Place(BaseModel):
    city: str
    orders: int


def get_order(order_id: str) -> str:
    """Read an order."""
    called.append(order_id)
    return f"order {order_id}: shipped"


def openai_agents(url, api="OpenAIResponsesModel"):
    import agents
    from agents import Agent, Runner, function_tool
    from openai import AsyncOpenAI

    async def talk():
        async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            model = getattr(agents, api)(model=MODEL, openai_client=client)
            agent = Agent(name="desk", instructions="Be brief.", tools=[function_tool(get_order)], model=model)
            first = await Runner.run(agent, QUESTION)
            history = [*first.to_input_list(), {"role": "user", "content": AGAIN}]
            second = Runner.run_streamed(agent, history)
            async for _ in second.stream_events():
                pass
            return [first.final_output, second.final_output]

    return asyncio.run(talk())


def pydantic_ai(url):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def talk():
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key=KEY))
        agent = Agent(model, tools=[get_order], instructions="Be brief.")
        first = await agent.run(QUESTION)
        async with agent.run_stream(AGAIN, message_history=first.all_messages()) as second:
            return [first.output, await second.get_output()]

    return asyncio.run(talk())


def litellm(url, provider="openai"):
    import litellm

    parameters = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
    function = {"name": "get_order", "description": "Read an order.", "parameters": parameters}
    options = {
        "model": f"{provider}/{MODEL}",
        "api_base": url,
        "api_key": KEY,
        "num_retries": 0,
        "tools": [{"type": "function", "function": function}],
    }

    def ask(stream):
        if not stream:
            return litellm.completion(messages=messages, **options)
        return litellm.stream_chunk_builder(list(litellm.completion(messages=messages, stream=True, **options)))

    def answer(stream):
        message = ask(stream).choices[0].message
        messages.append(message)
        for call in message.tool_calls or []:
            result = get_order(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": result})
        return answer(stream) if message.tool_calls else message.content

    messages = [{"role": "user", "content": QUESTION}]
    answers = [answer(False)]
    messages.append({"role": "user", "content": AGAIN})
    return [*answers, answer(True)]


def langchain(url, responses=None, **bound):
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    order = tool(get_order)
    chat = ChatOpenAI(model=MODEL, base_url=url, api_key=KEY, max_retries=0, use_responses_api=responses)
    model = chat.bind_tools([order], **bound)

    def ask(stream):
        if not stream:
            return model.invoke(messages)
        whole = None
        for chunk in model.stream(messages):
            whole = chunk if whole is None else whole + chunk
        return whole

    def answer(stream):
        message = ask(stream)
        messages.append(message)
        messages.extend(order.invoke(call) for call in message.tool_calls)
        return answer(stream) if message.tool_calls else message.text

    messages = [HumanMessage(QUESTION)]
    answers = [answer(False)]
    messages.append(HumanMessage(AGAIN))
    return [*answers, answer(True)]


def langgraph(url):
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(ChatOpenAI(model=MODEL, base_url=url, api_key=KEY, max_retries=0), [get_order])
    first = agent.invoke({"messages": [("user", QUESTION)]})["messages"]
    streamed = agent.stream({"messages": [*first, ("user", AGAIN)]}, stream_mode="messages")
    said = "".join(chunk.content for chunk, _ in streamed if chunk.type == "AIMessageChunk")
    return [first[-1].content, said]


def llamaindex(url):
    from llama_index.core.agent.workflow import AgentStream, FunctionAgent
    from llama_index.core.memory import Memory

    async def talk():
        agent = FunctionAgent(tools=[get_order], llm=_llamaindex_model(url), system_prompt="Be brief.")
        memory = Memory.from_defaults()
        first = await agent.run(QUESTION, memory=memory)
        second = agent.run(AGAIN, memory=memory)
        said = [event.delta async for event in second.stream_events() if isinstance(event, AgentStream)]
        await second
        return [first.response.content, "".join(said)]

    return asyncio.run(talk())


def _llamaindex_model(url):
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model=MODEL, api_base=url, api_key=KEY, is_chat_model=True, is_function_calling_model=True, max_retries=0
    )


def openai_parse(url):
    from openai import OpenAI

    with OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        messages = [{"role": "user", "content": QUESTION}]
        asked = {"model": MODEL, "messages": messages, "response_format": Place}
        said = client.chat.completions.parse(**asked).choices[0].message.parsed
        with client.chat.completions.stream(**asked) as stream:
            again = stream.get_final_completion().choices[0].message.parsed
    return [said.model_dump(), again.model_dump()]


def langchain_structured(url, **options):
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=MODEL, base_url=url, api_key=KEY, max_retries=0).with_structured_output(Place, **options)
    return [model.invoke(QUESTION).model_dump()]


def openai_responses_parse(url):
    from openai import OpenAI

    with OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        return [client.responses.parse(model=MODEL, input=QUESTION, text_format=Place).output_parsed.model_dump()]


def langgraph_structured(url):
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    model = ChatOpenAI(model=MODEL, base_url=url, api_key=KEY, max_retries=0)
    agent = create_react_agent(model, [], response_format=Place)
    return [agent.invoke({"messages": [("user", QUESTION)]})["structured_response"].model_dump()]


def llamaindex_structured(url):
    from llama_index.core.llms import ChatMessage

    model = _llamaindex_model(url).as_structured_llm(Place)
    return [model.chat([ChatMessage(QUESTION)]).raw.model_dump()]


def openai_agents_structured(url, api="OpenAIResponsesModel"):
    import agents
    from agents import Agent, Runner
    from openai import AsyncOpenAI

    async def talk():
        async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            model = getattr(agents, api)(model=MODEL, openai_client=client)
            return (await Runner.run(Agent(name="desk", output_type=Place, model=model), QUESTION)).final_output

    return [asyncio.run(talk()).model_dump()]


def pydantic_ai_structured(url, mode):
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key=KEY))
    output = getattr(pydantic_ai, mode)(Place)
    return [pydantic_ai.Agent(model, output_type=output).run_sync(QUESTION).output.model_dump()]


def litellm_structured(url):
    import litellm

    messages = [{"role": "user", "content": QUESTION}]
    options = {"model": f"openai/{MODEL}", "api_base": url, "api_key": KEY, "num_retries": 0, "response_format": Place}
    said = litellm.completion(messages=messages, **options).choices[0].message.content
    chunks = list(litellm.completion(messages=messages, stream=True, **options))
    again = litellm.stream_chunk_builder(chunks).choices[0].message.content
    return [Place.model_validate_json(text).model_dump() for text in (said, again)]


STRUCTURED = {
    "openai": openai_parse,
    "openai, responses": openai_responses_parse,
    "openai-agents": openai_agents_structured,
    "openai-agents, chat completions": lambda url: openai_agents_structured(url, "OpenAIChatCompletionsModel"),
    "pydantic-ai, by a tool": lambda url: pydantic_ai_structured(url, "ToolOutput"),
    "pydantic-ai, by the format": lambda url: pydantic_ai_structured(url, "NativeOutput"),
    "langchain": langchain_structured,
    "langchain, by a tool": lambda url: langchain_structured(url, method="function_calling"),
    "langchain, JSON": lambda url: langchain_structured(url, method="json_mode"),
    "langgraph": langgraph_structured,
    "llamaindex": llamaindex_structured,
    "litellm": litellm_structured,
}
"""Answers in the form of a class."""

FRAMEWORKS = {
    "openai-agents": openai_agents,
    "openai-agents, chat completions": lambda url: openai_agents(url, "OpenAIChatCompletionsModel"),
    "pydantic-ai": pydantic_ai,
    "litellm": litellm,
    "litellm, as for vLLM": lambda url: litellm(url, "hosted_vllm"),
    "langchain": langchain,
    "langchain, strict": lambda url: langchain(url, strict=True),
    "langchain, responses": lambda url: langchain(url, responses=True),
    "langgraph": langgraph,
    "llamaindex": llamaindex,
}


def told(ask, url):
    called.clear()
    try:
        return {"answers": ask(url), "called": called.copy()}
    except Exception:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    wanted, *urls = sys.argv[1:]
    found = [
        {name: told(ask, url) for name, ask in agents.items() if name.split(", ")[0] in wanted.split(",")}
        for agents, url in zip((FRAMEWORKS, STRUCTURED), urls, strict=True)
    ]
    print(json.dumps(found))
