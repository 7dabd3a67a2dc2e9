"""Each command does its work, with results on stdout."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from command_line import start_toolbake, toolbake

import sdk
from sdk.traces import RunFolder

SHOP = """
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("shop", log_level="ERROR")
destructive = ToolAnnotations(read_only_hint=False, destructive_hint=True)
server.tool(name="get_order", structured_output=False)(lambda: "")
server.tool(name="cancel_order", annotations=destructive, structured_output=False)(lambda: "")
server.tool(name="close_shop", annotations=destructive, structured_output=False)(lambda: "")
server.run("stdio")
"""
SMALL = [
    *("--set", "grpo.prompts_per_step=2", "--set", "warm_start.max_steps=1", "--set", "limits.max_turn_tokens=4"),
    *("--set", "evaluation.heldout=1", "--set", "evaluation.max_served=1", "--set", "probes.tasks=1"),
    *("--set", 'probes.allow=["guesses"]'),  # "shipped" is looked for anywhere in the answer
]
HELPDESK = shlex.join([sys.executable, "-m", "sandboxes.helpdesk"])


def test_tools_of_the_helpdesk_are_listed_as_the_model_sees_them(desk):
    result = toolbake("tools", "mcp.json")
    assert result.exit_code == 0, result.stderr
    assert "refund_order(order_id: string, amount: integer)" in result.stdout
    assert "    Refund an order.\n    (not read-only, destructive, not idempotent, closed world)" in result.stdout
    assert result.stdout.count(" tokens]") == 9
    assert result.stdout.splitlines()[-1].startswith("9 tools, ")
    table = result.stdout[result.stdout.index("\ntool ") :]
    assert re.search(r"^refund_order +helpdesk +destructive +\d+$", table, flags=re.MULTILINE)
    assert re.search(r"^get_order +helpdesk +read-only +\d+$", table, flags=re.MULTILINE)
    blocks = result.stdout.removesuffix(table)
    assert toolbake("tools", "--command", HELPDESK).stdout.startswith(blocks)


def test_tools_that_are_left_out_renamed_or_refused_in_training_are_shown_as_such(desk):
    (desk / "shop.py").write_text(SHOP)
    shop = {"command": sys.executable, "args": ["shop.py"], "toolbake": {"deny": ["close_shop"]}}
    (desk / "mcp.json").write_text(json.dumps({"mcpServers": {"shop": shop}}))
    (desk / "both.py").write_text("def get_order() -> str: return ''\ntools = ['mcp.json', get_order]\n")
    result = toolbake("tools", "both.py:tools")
    assert result.exit_code == 0, result.stderr
    wanted = r"^shop__get_order \(get_order there\) +shop +not said +\d+$"
    assert re.search(wanted, result.stdout, flags=re.MULTILINE)
    assert re.search(
        r"^cancel_order +shop +destructive and live: refused in training +\d+$", result.stdout, re.MULTILINE
    )
    fresh = (
        r"^Each rollout has:\nfrom +world +begins +takes a setup +tells its state +live +tokens\n"
        r"shop +a process of its own +fresh if it keeps no state elsewhere +no +no +yes +\d+\nfunctions +the same"
    )
    assert re.search(fresh, result.stdout, re.MULTILINE)
    assert "\nLeft out:\nclose_shop  shop  deny has 'close_shop'\n" in result.stdout
    told = json.loads(toolbake("tools", "both.py:tools", "--json").stdout)
    assert told["model"] == "SmolLM2-135M-Instruct"
    assert [tool["name"] for tool in told["tools"]] == ["shop__get_order", "cancel_order", "functions__get_order"]
    assert [tool["refused_in_training"] for tool in told["tools"]] == [False, True, False]
    assert told["tools"][0]["name_at_source"] == "get_order"
    assert told["tools"][1]["annotations"] == {"read_only": False, "destructive": True}
    assert [(one["tool"], one["reason"]) for one in told["left_out"]] == [("close_shop", "deny has 'close_shop'")]
    assert told["tokens"]["total"] == told["tokens"]["around"] + sum(tool["tokens"] for tool in told["tools"])
    assert f"3 tools, {told['tokens']['total']} tokens of every prompt" in result.stdout
    assert [one["live_tools"] for one in told["worlds"]] == [
        ["shop__get_order", "cancel_order"],
        ["functions__get_order"],
    ]


def test_each_source_has_a_line_on_its_worlds(desk):
    (desk / "seed").mkdir()
    (desk / "shop.py").write_text(SHOP)
    shop = {
        "command": sys.executable,
        "args": ["shop.py"],
        "env": {"SHOP_DATA": "${TOOLBAKE_WORLD_DIR}/shop.json"},
        "toolbake": {"world": {"folder": "seed", "state": "get_order"}, "read_only": ["get_order"]},
    }
    served = {"command": sys.executable, "args": HELPDESK.split()[1:]}
    (desk / "mcp.json").write_text(json.dumps({"mcpServers": {"shop": shop, "desk": served}}))
    (desk / "several.py").write_text("from sandboxes.helpdesk import Helpdesk\ntools = ['mcp.json', Helpdesk()]\n")
    result = toolbake("tools", "several.py:tools")
    assert result.exit_code == 0, result.stderr
    for line in (
        r"^shop +a process and a folder of its own +fresh +no +yes +no +\d+$",
        r"^desk +a world of its own in the server \(control tools\) +fresh +yes +yes +no +\d+$",
        r"^Helpdesk.* +a copy of the sandbox or twin +fresh +yes +yes +no +\d+$",
    ):
        assert re.search(line, result.stdout, re.MULTILINE), result.stdout


def test_the_tokenizer_of_the_chosen_model_counts(desk, tiny_model_folder):
    own = json.loads(toolbake("tools", "desk.py:tools", "--model", tiny_model_folder, "--json").stdout)
    assert own["model"] == str(tiny_model_folder)
    assert own["tokens"]["total"] > 0


def test_the_token_cost_of_tools_is_that_of_the_prompt(desk):
    from transformers import AutoTokenizer

    from mcp_bridge.sources.functions import FunctionSource
    from sdk.cli.commands.tools import count_tokens, open_renderer
    from sdk.cli.sources import load_named
    from sdk.policies.models.smollm2 import embedded_folder

    tools = FunctionSource(load_named("desk.py:tools", "TOOLS")).tools
    costs = count_tokens(open_renderer(None), tools)
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder())

    def length(shown):
        chat = [{"role": "user", "content": "Hello"}]
        return len(tokenizer.apply_chat_template(chat, tools=shown, add_generation_prompt=True)["input_ids"])

    assert costs.total == length([tool.as_openai() for tool in tools]) - length(None)
    assert costs.by_tool["get_order"] == length([t.as_openai() for t in tools]) - length([tools[1].as_openai()])
    alone = count_tokens(open_renderer(None), tools[:1])
    assert abs(alone.by_tool["get_order"] - costs.by_tool["get_order"]) <= 3


def test_each_of_many_tools_costs_what_the_whole_prompt_is_longer_by_without_rendering_it_for_each():
    from mcp_bridge.records import Tool
    from sdk.cli.commands.tools import count_tokens, open_renderer

    class Counting:
        def __init__(self):
            self.shown = 0
            self.renderer = open_renderer(None)

        def start(self, opening, tools):
            self.shown += len(tools)
            return self.renderer.start(opening, tools)

    def length(shown):
        return count_tokens(renderer.renderer, shown).total

    tools = [Tool(name=f"get_thing_{n}", description="Read a thing. " * n) for n in range(40)]
    renderer = Counting()
    costs = count_tokens(renderer, tools)
    assert renderer.shown < 10 * len(tools)
    for place in (0, 1, 20, 39):
        without = tools[:place] + tools[place + 1 :]
        assert costs.by_tool[tools[place].name] == costs.total - length(without)
    assert costs.total == sum(costs.by_tool.values()) + costs.around


def test_a_single_function_is_a_tool_and_one_is_singular(desk):
    result = toolbake("tools", "desk.py:cancel_order")
    assert 'cancel_order(order_id: string, reason?: string = "none")' in result.stdout
    assert "(no annotations)" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("1 tool, ")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "string"),
        ({"enum": ["a", 1]}, '"a" | 1'),
        ({"const": "a"}, '"a"'),
        ({"type": "array", "items": {"type": "integer"}}, "integer[]"),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "(integer | null)[]"),
        ({"type": "array"}, "any[]"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"$ref": "#/$defs/Address"}, "Address"),
        ({"$ref": "#/$defs/Status"}, '"open" | "closed"'),
        ({"anyOf": [{"$ref": "#/$defs/Status"}, {"type": "null"}]}, '"open" | "closed" | null'),
        ({"allOf": [{"$ref": "#/$defs/Status"}], "default": "open"}, '"open" | "closed"'),
        ({"allOf": [{"$ref": "#/$defs/Place"}, {"required": ["street"]}]}, "Place"),
        ({"allOf": [{"$ref": "#/$defs/Place"}, {"$ref": "#/$defs/Owned"}]}, "Place & Owned"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "string"),
        (True, "any"),
        ({}, "any"),
    ],
)
def test_a_schema_is_shown_as_a_type(schema, text):
    from mcp_bridge.toolsets.tool_text import type_name

    definitions = {"Status": {"enum": ["open", "closed"]}, "Place": {"type": "object"}, "Owned": {"type": "object"}}
    assert type_name(schema, {"$defs": definitions}) == text


def test_what_a_server_writes_cannot_move_the_cursor():
    from mcp_bridge.records import Tool
    from sdk.cli.commands.tools import describe_tool

    assert "\x1b" not in describe_tool(Tool(name="x", description="\x1b[2J gone"), 3)


def test_a_rollout_of_the_embedded_model_is_printed_with_how_it_ended(desk):
    result = toolbake("rollout", "desk.py:tools", "Where is order 4417?", "--limit", "max_turn_tokens=4")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("user:      Where is order 4417?\n")
    assert "ended: token_limit after 1 turn and 0 calls" in result.stdout
    assert result.stderr == "asking the embedded SmolLM2-135M-Instruct\n"


def test_a_rollout_shows_calls_results_and_the_verdict(desk, endpoint):
    result = toolbake(
        *("rollout", "desk.py:tools", "--tasks", "tasks.jsonl", "--task-id", "t2", "--verifier", "checks.py:verify"),
        *("--endpoint", endpoint.url, "--model", "large-1"),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[:4] == [
        "user:      Who has order 4417?",
        'call:      get_order {"order_id": "4417"}',
        "result:    shipped",
        "assistant: The order is shipped.",
    ]
    assert "ended: answered after 2 turns and 1 call, " in result.stdout
    assert result.stdout.splitlines()[-1] == "verdict: 1"
    assert endpoint.keys == [None, None]


@pytest.mark.parametrize("words", [("rollout", "--tasks"), ("evaluate",)])
def test_half_a_surrogate_pair_is_written_as_json(words, desk, endpoint):
    Path("odd.py").write_text(
        "from sdk.records import Verdict\ndef verify(rollout): return Verdict(score=0, explanation=chr(0xD800))\n"
    )
    command, *option = words
    result = toolbake(
        *(command, "desk.py:tools", *option, "tasks.jsonl", "--verifier", "odd.py:verify", "--json"),
        *("--endpoint", endpoint.url, "--model", "large-1"),
    )
    assert result.exit_code == 0, result.stderr
    assert r"\ud800" in result.stdout


def test_a_solved_task_keeps_half_a_surrogate_pair(desk):
    Path("odd.py").write_text(
        "def status(order: int) -> str:\n    'The status.'\n    return 'shipped ' + chr(0xD800)\n"
    )
    Path("odd.csv").write_text("prompt,calls\nWhere is order 1?,status(order=1)\n")
    result = toolbake("solve", "odd.py:status", "--tasks", "odd.csv", "--to", "solved.jsonl")
    assert result.exit_code == 0, result.stderr
    assert json.loads(Path("solved.jsonl").read_text())["expected"]["answer"] == "shipped \ud800"


def test_a_rollout_whose_endpoint_is_gone_is_a_failure_not_an_answer(desk):
    result = toolbake(
        *("rollout", "desk.py:tools", "Hi there", "--endpoint", "http://127.0.0.1:1/v1", "--model", "m"),
        *("--limit", "max_seconds=0.2"),
    )
    assert result.exit_code == 1
    assert "error: the rollout failed at the boundary 'policy'" in result.stderr


def test_an_endpoint_is_measured_with_the_key_from_the_named_variable(desk, endpoint):
    result = toolbake(
        *("evaluate", "desk.py:tools", "tasks.jsonl", "--verifier", "checks.py:verify", "--output-dir", "kept"),
        *("--endpoint", endpoint.url, "--model", "large-1", "--api-key-env", "DESK_KEY"),
        DESK_KEY="sk-desk",
    )
    assert result.exit_code == 0, result.stderr
    assert "large-1" in result.stdout
    assert "100.0 %" in result.stdout
    assert "0 of 6" in result.stdout
    assert set(endpoint.keys) == {"Bearer sk-desk"}
    assert {tool["function"]["name"] for tool in endpoint.requests[0]["tools"]} == {"get_order", "cancel_order"}
    assert (desk / "kept" / "report.md").is_file()
    assert "sk-desk" not in "".join(file.read_text() for file in (desk / "kept").rglob("*.json*"))


def test_openais_key_is_used_where_it_is_set_and_says_so(desk, endpoint):
    words = ("rollout", "desk.py:tools", "Hi there", "--endpoint", endpoint.url, "--model", "large-1")
    result = toolbake(*words, OPENAI_API_KEY="sk-open")
    assert f"sending the key in OPENAI_API_KEY to {endpoint.url}" in result.stderr
    assert "sk-open" not in result.output
    assert set(endpoint.keys) == {"Bearer sk-open"}
    endpoint.keys.clear()
    toolbake(*words, "--api-key-env", "", OPENAI_API_KEY="sk-open")
    assert set(endpoint.keys) == {None}


def test_the_command_takes_the_place_of_the_tools(desk, endpoint):
    result = toolbake(
        "rollout", "--command", HELPDESK, "Where is it?", "--endpoint", endpoint.url, "--model", "large-1"
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("user:      Where is it?\n")
    assert "get_order" in result.stdout


def test_training_writes_a_model_and_the_same_command_goes_on(desk, tiny_model_folder):
    (desk / "config.json").write_text(
        json.dumps({"grpo.max_steps": 5, "grpo.num_generations": 2, "limits": {"max_turns": 2}})
    )
    words = [
        *("train", "desk.py:tools", "tasks.jsonl", "--verifier", "checks.py:verify", "--model", tiny_model_folder),
        *("--output-dir", "runs/tiny", "--config", "config.json", *SMALL, "--set", "grpo.max_steps=1"),
    ]
    result = toolbake(*words)
    assert result.exit_code == 0, result.stderr
    folder = desk / "runs" / "tiny"
    config = json.loads((folder / "run.json").read_text())["config"]["train"]
    assert (config["grpo"]["max_steps"], config["grpo"]["num_generations"]) == (1, 2)
    assert config["limits"]["max_turns"] == 2
    assert "untrained" in result.stdout
    assert "after GRPO" in result.stdout
    assert "model     runs/tiny/model\n" in result.stdout
    assert "report    runs/tiny/report.md\n" in result.stdout
    assert "Serve it: toolbake serve runs/tiny/model\n" in result.stdout
    assert "Writing model shards" not in result.stderr
    assert "Warning" not in result.stderr
    again = toolbake(*words)
    assert again.exit_code == 0, again.stderr
    assert "runs/tiny holds a finished run: its parts are read again, nothing is trained twice" in again.stderr
    assert again.stdout == result.stdout
    told = toolbake(*words, "--json", "--quiet")
    assert told.stderr == ""
    found = json.loads(told.stdout)
    assert (Path(found["model_dir"]), Path(found["run_dir"])) == (folder / "model", folder)
    # No weights solve any of the tasks kept aside, so the earliest are handed over.
    stages = {"untrained", "after warm start", "after GRPO", "chosen on validation"}
    assert set(found["report"]["conditions"]) == stages
    with sdk.serve("runs/tiny", port=0) as by_run, sdk.serve("runs/tiny/model", port=0) as by_model:
        assert (by_run.model_name, by_model.model_name) == ("tiny", "tiny")
    longer = toolbake(*("grpo.max_steps=2" if word == "grpo.max_steps=1" else word for word in words))
    assert longer.exit_code == 0, longer.stderr
    assert "runs/tiny holds a run that ended after step 1 of GRPO: going on to 2" in longer.stderr
    assert [line["step"] for line in RunFolder.open_to_read(folder).read_metrics() if line["stage"] == "grpo"] == [0, 1]
    other = toolbake(*words, "--set", "seed=1")
    assert other.exit_code == 1
    assert "train.seed is 0 in the folder and 1 now" in other.stderr
    assert "runs/tiny/model --set warm_start.max_steps=0)" in other.stderr


@pytest.mark.timeout(300)
def test_a_training_that_is_told_to_terminate_stops_as_by_ctrl_c_and_its_evidence_is_closed(desk, tiny_model_folder):
    process = start_toolbake(
        *("train", "desk.py:tools", "tasks.jsonl", "--verifier", "checks.py:verify", "--model", tiny_model_folder),
        *("--output-dir", "run", *SMALL, "--set", "grpo.max_steps=100000", "--set", "grpo.num_generations=2"),
        cwd=desk,
    )
    try:
        for line in process.stderr:
            if line.startswith("after warm start"):
                break
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM, err
    assert err.splitlines()[-1] == "stopped; run the same command again to go on"
    assert "Traceback" not in err
    assert out == ""
    assert json.loads((desk / "run" / "evidence.jsonl").read_text().splitlines()[-1])["kind"] == "closed"


@pytest.mark.parametrize(
    ("number", "in_background"), [(signal.SIGINT, False), (signal.SIGHUP, False), (signal.SIGTERM, True)]
)
def test_a_command_that_waits_for_a_server_stops_cleanly_by_each_signal(tmp_path, number, in_background):
    with socket.create_server(("127.0.0.1", 0)) as started:
        reach = f"import socket, sys; s = socket.create_connection(('127.0.0.1', {started.getsockname()[1]}))"
        (tmp_path / "silent.py").write_text(f"{reach}; sys.stdin.read()")
        process = start_toolbake(
            "tools", "--command", f"{sys.executable} silent.py", cwd=tmp_path, in_background=in_background
        )
        try:
            started.accept()[0].close()
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err.splitlines()) == (128 + number, "", ["stopped"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_served_model_answers_and_ends_cleanly(tmp_path, tiny_model_folder, number):
    process = start_toolbake("serve", tiny_model_folder, "--port", "0", "--log-format", "json", cwd=tmp_path)
    try:
        first = process.stdout.readline()
        assert first.startswith("model is served at http://127.0.0.1:")
        process.stdout.readline()
        curl = shlex.split(process.stdout.readline().removesuffix("\\\n") + process.stdout.readline())
        url, body = curl[1], curl[curl.index("-d") + 1]
        answer = httpx.post(url, json={**json.loads(body), "max_tokens": 3}, timeout=60)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] <= 3
        # One in flight goes on to its end.
        streamed = {**json.loads(body), "max_tokens": 200, "temperature": 1, "stream": True}
        with httpx.stream("POST", url, json=streamed, timeout=60, headers={"x-request-id": "last"}) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(number)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert err.splitlines()[-1] == "stopped"
    logged = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [(line["status"], line["completion_tokens"] > 0) for line in logged if "status" in line] == [(200, True)] * 2
    assert logged[-1]["request_id"] == "last"


@pytest.mark.timeout(300)
def test_a_server_that_is_ended_while_it_loads_its_model_again_ends_cleanly(tmp_path, tiny_model_folder):
    # The beginning of the second loading is heard of, and it takes until the server has closed.
    (tmp_path / "slow.py").write_text(
        """
import threading
from sdk.cli.app import app
from sdk.serving import Server

def reload(server):
    print("reloading", flush=True)
    server._ended.wait()
    threading.Event().wait(0.5)
    print("reloaded", flush=True)

Server.reload = reload
app()
"""
    )
    words = [sys.executable, "slow.py", "serve", str(tiny_model_folder), "--port", "0"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        next(line for line in process.stdout if "at most" in line)
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "reloading\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err.splitlines()[-1]) == (0, "reloaded\n", "stopped")


@pytest.mark.timeout(300)
def test_sighup_serves_what_the_folder_has_now_and_a_broken_one_leaves_what_there_was(tmp_path, tiny_model_folder):
    from sdk.policies.models import load_model, save_model
    from sdk.policies.protocol import Sampling

    loaded = load_model(tiny_model_folder)
    for name in ("first", "second"):
        save_model(loaded.model, loaded.tokenizer, tmp_path / name, sampling=Sampling(temperature=0, max_tokens=4))
        loaded.model.get_output_embeddings().weight.data.neg_()
    place = tmp_path / "served"
    place.symlink_to("first")
    process = start_toolbake("serve", place, "--port", "0", cwd=tmp_path)

    def ask():
        url = f"{address}/v1/chat/completions"
        body = {"model": "first", "messages": [{"role": "user", "content": "Hi"}]}
        reply = httpx.post(url, json=body, timeout=60).json()
        return reply["system_fingerprint"], reply["choices"][0]["message"]["content"]

    def reload():
        process.send_signal(signal.SIGHUP)
        return next(line for line in process.stderr if " ERROR " in line or "was loaded again" in line)

    try:
        address = process.stdout.readline().split()[4].removesuffix("/v1")
        before = ask()
        place.unlink()
        place.symlink_to("second")
        told, after = reload(), ask()
        assert f"first was loaded again: {after[0]}" in told
        assert after[0] != before[0]
        assert after[1] != before[1]
        weights = tmp_path / "second" / "model.safetensors"
        os.truncate(weights, weights.stat().st_size // 2)
        assert "first is served as before; loading it again failed: the model folder" in reload()
        assert ask() == after
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err.splitlines()[-1]) == (0, "stopped")


def test_a_verdict_is_shown_with_its_components_and_each_reason_on_a_line():
    from sdk.records import Verdict
    from sdk.transcript import verdict_text

    verdict = Verdict(score=0.5, components={"state": 1.0, "answer": 0.25}, explanation="state ok\nno \x1b answer")
    assert verdict_text(verdict) == ("verdict: 0.5 (state 1, answer 0.25)\n         state ok\n         no \\x1b answer")


def test_the_curl_example_keeps_the_key_in_its_variable():
    from sdk.cli.commands.serve import curl_example

    text = curl_example("http://127.0.0.1:8000", "desk", "DESK_KEY", 0.0)
    assert '-H "Authorization: Bearer $DESK_KEY"' in text
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "desk"
