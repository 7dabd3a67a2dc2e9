"""A program that runs rollouts against a server whose calls never end: `rollout_loop.py FILE HOW`.

The server is started by a shell, as npx starts one, and starts processes itself that ignore the end of their input and
SIGTERM, two of them outside its group. FILE gets the ids of all of them. HOW it ends: `return`, `raise`, `exit`
(without any goodbye), or `wait` for a signal. `up` on stdout says that every rollout and every spare session has its
process.
"""

import os
import shlex
import signal
import sys
from pathlib import Path

import anyio

from mcp_bridge import connect
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Message, Task, ToolCall
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job

# Whoever starts tests in the background hands on that Ctrl-C is not heard; at a terminal it is.
signal.signal(signal.SIGINT, signal.default_int_handler)

FILE, HOW = Path(sys.argv[1]), sys.argv[2]
ROLLOUTS, SPARES = 2, 2
SERVER = [sys.executable, str(Path(__file__).with_name("breaking.py")), "--grandchild", str(FILE)]


def all_started() -> bool:
    return FILE.exists() and len(FILE.read_text().split()) >= 4 * (ROLLOUTS + SPARES)


async def main() -> None:
    # `; true` keeps the shell from becoming the server.
    entry = {"command": "sh", "args": ["-c", f"{shlex.join(SERVER)}; true"]}
    config = {"mcpServers": {"breaking": {**entry, "toolbake": {"warm": SPARES, "protocol": "2026-07-28"}}}}
    calls = [
        Message(role="assistant", tool_calls=[ToolCall(id="", name=name, arguments={})]) for name in ("read", "hang")
    ]
    async with connect(config) as toolset:
        engine = RolloutEngine(agent=ScriptedAgent([*calls, "done"]), source=toolset, verifier=lambda rollout: 1.0)
        async with anyio.create_task_group() as group:
            jobs = [Job(id=f"r{number}", task=Task(prompt="go"), seed=number) for number in range(ROLLOUTS)]
            group.start_soon(lambda: engine.run(jobs, sampling=Sampling()))
            while not all_started():  # noqa: ASYNC110 - another process cannot set an event of ours
                await anyio.sleep(0.01)
            print("up", flush=True)
            if HOW == "raise":
                raise RuntimeError("out of the rollout loop")
            if HOW == "exit":
                os._exit(7)
            if HOW == "wait":
                await anyio.sleep_forever()
            group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
