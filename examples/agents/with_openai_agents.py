"""An agent of the OpenAI Agents SDK, as a program: `--agent 'python with_openai_agents.py'`."""

import asyncio
import os

from agents import Agent, Runner
from agents.mcp import MCPServerStreamableHttp


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['MCP_API_KEY']}"}
    async with MCPServerStreamableHttp(params={"url": os.environ["MCP_URL"], "headers": headers}) as desk:
        # The SDK reads OPENAI_BASE_URL and OPENAI_API_KEY, and speaks the Responses API.
        agent = Agent(name="desk", instructions="Be brief.", model=os.environ["OPENAI_MODEL"], mcp_servers=[desk])
        result = await Runner.run(agent, os.environ["TOOLBAKE_PROMPT"])
        print(result.final_output)


asyncio.run(main())
