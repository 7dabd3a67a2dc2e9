"""Users in run folders and commands: evidence, resuming, options; and a user behind an endpoint."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sdk
from sandboxes.helpdesk import Helpdesk
from sdk.cli.app import app
from sdk.evaluation.evaluation_run import evaluate_async, rollout_async
from sdk.evidence.run_verification import verify_run
from sdk.policies.scripted import ScriptedAgent
from sdk.traces import RunFolder

LOOKS = sdk.Fact(call={"name": "get_stock", "arguments": {"product": "lamp"}}, asked_by=["look into the shop"])
TASK = sdk.Task(
    prompt="Can I buy a lamp?",
    setup={"seed": 43},
    user=sdk.User(scenario="You stand in the shop.", facts={"stock": LOOKS, "size": "40"}, tools=["get_stock"]),
)
SCRIPT = ["Could you look into the shop?", "What is the size?", "Yes."]


def right(rollout: sdk.Rollout) -> float:
    return float(rollout.answer == "Yes.")


async def measure(folder: Path, **options: Any) -> None:
    await evaluate_async(Helpdesk(), [TASK], right, model=ScriptedAgent(SCRIPT), output_dir=folder, **options)


async def test_what_a_user_said_and_called_is_evidence_and_a_change_to_it_is_found(tmp_path: Path) -> None:
    await measure(tmp_path / "run")
    assert (await verify_run(tmp_path / "run", verifier=right)).findings == []
    [rollout] = RunFolder.open_to_read(tmp_path / "run").read_rollouts("evaluation")
    assert [turn.said for turn in rollout.user_turns][1:] == ["The size is 40.", ""]
    [file] = (tmp_path / "run" / "rollouts").glob("*.jsonl")
    file.write_text(file.read_text().replace('"told":["size"]', '"told":["stock"]'))
    found = await verify_run(tmp_path / "run", verifier=right)
    assert [one.kind for one in found.findings] == ["changed"]


async def test_a_run_goes_on_with_its_users_and_with_no_others(tmp_path: Path) -> None:
    await measure(tmp_path / "run")
    before = {file: file.read_bytes() for file in (tmp_path / "run" / "rollouts").iterdir()}
    await measure(tmp_path / "run")
    assert {file: file.read_bytes() for file in (tmp_path / "run" / "rollouts").iterdir()} == before
    with pytest.raises(sdk.RunFolderError, match="user_model is absent in the folder"):
        await measure(tmp_path / "run", user_model=ScriptedAgent(["x"], name="other"))


def test_a_file_of_tasks_is_enough_for_a_command(tmp_path: Path) -> None:
    tasks, agent = tmp_path / "tasks.jsonl", tmp_path / "desk.py"
    tasks.write_text(TASK.model_dump_json(exclude_defaults=True) + "\n")
    agent.write_text(
        "from sandboxes.helpdesk import Helpdesk\nfrom sdk.policies.scripted import ScriptedAgent\n"
        f"desk = Helpdesk()\nagent = ScriptedAgent({SCRIPT!r})\n"
    )
    words = ["evaluate", f"{agent}:desk", str(tasks), "--verifier", "expected", "--json", "--quiet"]
    failed = CliRunner().invoke(app, [*words, "--user-key", "HOST_KEY"])
    assert failed.exit_code == 1
    assert "--user-key does nothing without --user-model" in failed.stderr
    shown = CliRunner().invoke(
        app, ["rollout", f"{agent}:desk", "--tasks", str(tasks), "--user-model", "nowhere/at/all"]
    )
    assert shown.exit_code == 1
    assert "nowhere/at/all" in shown.stderr


class _Actor(BaseHTTPRequestHandler):
    """Plays a user: calls its tool once, then says what it saw, then ends the conversation."""

    asked: list[dict[str, Any]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append({**body, "key": self.headers.get("Authorization")})
        roles = [message["role"] for message in body["messages"]]
        message: dict[str, Any] = {"role": "assistant", "content": "###STOP###"}
        if roles.count("user") == 2:
            call = {"name": "get_stock", "arguments": '{"product": "lamp"}'}
            asks = {"tool_calls": [{"id": "own", "type": "function", "function": call}], "content": None}
            message |= asks if "tool" not in roles else {"content": "I saw some."}
        reply = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def actor() -> Iterator[str]:
    _Actor.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Actor) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


async def test_a_user_behind_an_endpoint_acts_speaks_and_ends_and_sees_nothing_of_the_policys_side(actor: str) -> None:
    script = [
        sdk.ToolCall(id="", name="get_policy", arguments={"topic": "returns"}),
        "Could you look into the shop?",
        "Then take one.",
    ]
    how = {"base_url": actor, "model": "actor", "api_key": "secret-of-the-user"}
    rollout = await rollout_async(Helpdesk(), TASK, model=ScriptedAgent(script), user_model=how)
    assert rollout.failure is None
    first, last = rollout.user_turns
    assert (first.by, first.said, [record.call.name for record in first.calls]) == (
        "actor",
        "I saw some.",
        ["get_stock"],
    )
    assert (last.said, last.ended, rollout.answer) == ("", True, "Then take one.")
    assert "secret-of-the-user" not in rollout.model_dump_json()
    asked = _Actor.asked
    assert [one["key"] for one in asked] == ["Bearer secret-of-the-user"] * 3
    assert [tool["function"]["name"] for tool in asked[0]["tools"]] == ["get_stock"]
    assert "get_policy" not in json.dumps(asked)
    assert [message["role"] for message in asked[-1]["messages"]] == [
        *("system", "user", "assistant", "user", "assistant", "tool", "assistant", "user")
    ]
