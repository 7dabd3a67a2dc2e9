"""Before a training, one world of live tools is written to, and others are looked at: shared state is refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from heard import Heard
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

import mcp_bridge
import sdk
from sdk.synthesis.shared_state import searchable_tools, shared_state_line

SERVERS = Path(__file__).parent / "servers"
NO_MODEL = str(SERVERS)
"""A folder without a model: a training that gets so far has refused nothing."""
QUICK = {"warm_start.max_steps": 0, "evaluation.heldout": 1, "evaluation.validation": 0, "probes.tasks": 0}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out because a busy machine took its time."""
    for limit in ("_LOOK_S", "_CALL_S", "_SECONDS"):
        monkeypatch.setattr(f"sdk.trainer.isolation.{limit}", 100.0)


KEEPING = f"""
import json, os, sys, time
sys.path.append({str(SERVERS)!r})
from by_hand import serve, tool

kept, log = sys.argv[1], open(sys.argv[2], "a")
notes, looks = open(kept).read().split() if os.path.exists(kept) else [], []

def call(name, arguments, meta):
    print(name, json.dumps(arguments), file=log, flush=True)
    if name == "add":
        notes.append(arguments.get("text", ""))
        if kept != "memory":
            open(kept, "w").write("\\n".join(notes))
        return "written at " + str(time.time_ns())
    if name == "drift":
        looks.append(name)
        return "aabcdefg"[len(looks) - 1]
    if name == "clock":
        return str(time.time_ns()) + " " + str(time.time())
    return json.dumps(notes) if name == "read" else "done"

wanted = sys.argv[3:] or ["add", "read", "clock", "drop", "send"]
tools = [tool(name) for name in ("add", "read")] if "unmarked" in wanted else [
    tool("add", openWorldHint=False), *(tool(name, readOnlyHint=True) for name in ("read", "clock", "drift")),
    tool("drop", destructiveHint=True), tool("send", openWorldHint=True)]
serve([one for one in tools if one["name"] in wanted or "unmarked" in wanted], call)
"""
"""Keeps notes in memory, and writes them to a file that it reads when it starts, unless the file is `memory`. Logs all
calls to a second file. The words after that are the tools that it has; `unmarked`: two that say nothing of themselves.
"""


def shown(*calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Tasks, the first with a demonstration."""
    called = [{"id": str(place), "name": name, "arguments": given} for place, (name, given) in enumerate(calls)]
    turns = [{"role": "assistant", "tool_calls": called}, {"role": "assistant", "content": "Done."}]
    first = {"prompt": "Write bread down.", "demonstration": turns}
    return [first, *({"prompt": f"Write {number} down."} for number in range(4))]


BREAD = shown(("drop", {}), ("send", {}), ("add", {"text": "bread"}))


async def trained(tools: Any, tasks: Any = BREAD, **config: Any) -> list[str]:
    """What a training says that goes on until it loads its model. Raises `sdk.ConfigError` where it is refused."""
    heard = Heard()
    with pytest.raises(sdk.ModelError):
        await sdk.train_async(tools, tasks, lambda _: 1.0, NO_MODEL, None, {**QUICK, **config}, progress=heard)
    return heard.lines


async def refusal(tools: Any, tasks: Any = BREAD, **config: Any) -> str:
    with pytest.raises(sdk.ConfigError) as refused:
        await sdk.train_async(tools, tasks, lambda _: 1.0, NO_MODEL, None, {**QUICK, **config})
    return str(refused.value)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keeping.py").write_text(KEEPING)
    (tmp_path / "seed").mkdir()
    return tmp_path


def keeping(kept: str, *tools: str, **toolbake: Any) -> dict[str, Any]:
    command = {"command": sys.executable, "args": ["keeping.py", kept, "calls.txt", *tools]}
    return {"mcpServers": {"notes": {**command, "toolbake": toolbake}}}


def called(folder: Path) -> list[str]:
    """The tools that the server was called with, in all its processes."""
    file = folder / "calls.txt"
    return [line.partition(" ")[0] for line in file.read_text().splitlines()] if file.exists() else []


OPEN = {"deny": ["drop"]}
"""Without it, the server's destructive tool is refused before anything is tried."""


async def test_what_a_process_keeps_in_memory_is_its_worlds_own_and_the_training_says_how_that_was_found() -> None:
    lines = await trained(keeping("memory", **OPEN))
    assert "notes: what add wrote in one world, read shows there and in no other" in lines
    # What it was tried with counts as apart from then on; what says that it reaches an open world does not.
    (may_share,) = [line for line in lines if "may share state" in line]
    assert "by way of send (" in may_share


async def test_a_file_that_all_processes_use_is_refused_with_the_tools_that_showed_it_and_the_fix(here: Path) -> None:
    said = await refusal(keeping("notes.txt", **OPEN))
    assert "runs" not in os.listdir(here), "what is refused leaves no folder behind"
    assert "notes: what add wrote in one world, read shows in a world that was opened afterwards" in said
    assert "${TOOLBAKE_WORLD_DIR}" in said
    assert "config={'allow_shared_state': ['notes']}" in said


async def test_a_folder_for_each_world_is_enough_where_the_server_keeps_to_it() -> None:
    lines = await trained(keeping("${TOOLBAKE_WORLD_DIR}/notes.txt", world={"folder": "seed"}))
    assert "notes: what add wrote in one world, read shows there and in no other" in lines
    ignoring = keeping("notes.txt", world={"folder": "seed"})
    ignoring["mcpServers"]["notes"]["env"] = {"NOTES_FOLDER": "${TOOLBAKE_WORLD_DIR}"}
    assert "does not hold all that it keeps" in await refusal(ignoring)


async def test_no_destructive_tool_is_called_and_none_to_write_that_reaches_an_open_world(here: Path) -> None:
    # In a folder of its own a destructive tool is no reason to refuse, and the folder may yet turn out not to hold it.
    lines = await trained(keeping("${TOOLBAKE_WORLD_DIR}/notes.txt", world={"folder": "seed"}))
    assert any("read shows there and in no other" in line for line in lines)
    assert set(called(here)) == {"add", "read", "clock"}
    assert called(here).count("add") == 1
    lines = await trained(keeping("memory", "send", "read"))
    assert any("every tool that may write is destructive, or reaches an open world" in line for line in lines)
    await trained(keeping("memory", "drop", "read", allow_destructive=["drop"]), shown(("drop", {})))
    assert called(here).count("drop") == 1
    await trained(keeping("memory", "send", "add", "read", allow_destructive=["send"]), allow_destructive=["*"])
    assert "send" not in called(here)


async def test_shared_state_that_is_allowed_by_name_is_not_tried(here: Path) -> None:
    await trained(keeping("notes.txt", **OPEN), allow_shared_state=["no*"])
    await trained(keeping("notes.txt", **OPEN, allow_shared_state=True))
    assert called(here) == []
    said = await refusal(keeping("memory", **OPEN), allow_shared_state=["nots"])
    assert said == "allow_shared_state names 'nots', which is none of the sources: notes"


async def test_one_process_at_a_time_can_be_tried_too() -> None:
    assert "opened afterwards" in await refusal(keeping("notes.txt", max_sessions=1, warm=0, **OPEN))
    lines = await trained(keeping("memory", max_sessions=1, warm=0, **OPEN))
    assert any("shows there and in no other" in line for line in lines)


async def test_a_server_that_only_reads_or_differs_by_itself_is_not_refused(here: Path) -> None:
    lines = await trained(keeping("notes.txt", "read"))
    assert not any("share state" in line for line in lines)
    assert called(here) == []
    (said,) = [line for line in await trained(keeping("notes.txt", "add", "clock")) if "share state was" in line]
    assert said == "notes: whether worlds share state was not found out: nothing showed what add wrote"
    twice = shown(("add", {"text": "bread"}), ("add", {"text": "milk"}))
    (said,) = [line for line in await trained(keeping("memory", "add", "drift"), twice) if "share state was" in line]
    assert said.endswith("drift changed in another world, perhaps by itself")


async def test_tools_that_say_nothing_of_themselves_are_known_by_their_names() -> None:
    assert "what add wrote in one world, read shows in" in await refusal(keeping("notes.txt", "unmarked"))
    assert any("and in no other" in line for line in await trained(keeping("memory", "unmarked")))


async def test_one_server_behind_a_url_for_all_is_refused_unless_it_is_allowed(notes_url: Callable[..., str]) -> None:
    server = {"mcpServers": {"notes": {"url": notes_url(), "toolbake": {"allow": ["add_note", "list_notes"]}}}}
    said = await refusal(server, ["Write this down.", "And this."])
    assert "notes: what add_note wrote in one world, list_notes shows in another world" in said
    assert "mcp_bridge.worlds" in said
    await trained(server, ["Write this down.", "And this."], allow_shared_state=["notes"])


async def test_a_server_may_have_the_name_of_the_functions() -> None:
    server = keeping("notes.txt", "add", "read")
    server["mcpServers"]["functions"] = server["mcpServers"].pop("notes")
    said = await refusal(server)
    assert "functions: what add wrote in one world, read shows" in said
    assert "${TOOLBAKE_WORLD_DIR}" in said


STOCK = {"lamp": 400}


def stock(item: str) -> int:
    """How many there are."""
    return STOCK.get(item, 0)


def sell(item: str, count: int) -> str:
    """Sell some."""
    STOCK[item] = STOCK.get(item, 0) - count
    return "ok"


def half(number: float) -> float:
    """Half of a number."""
    return number / 2


async def test_functions_are_refused_where_one_shows_what_another_changed() -> None:
    tasks = shown(("sell", {"item": "lamp", "count": 1}), ("stock", {"item": "lamp"}))
    said = await refusal([stock, sell], tasks)
    assert "functions: what sell wrote in one world, stock shows in another world" in said
    assert "ObjectTwin" in said
    assert STOCK["lamp"] == 399, "both worlds show the same from then on, so that nothing is written once more"
    await trained([stock, sell], tasks, allow_shared_state=["functions"])
    assert not any("share state" in line for line in await trained([half, stock], ["What is half of 8?", "Of 6?"]))


async def test_a_server_object_is_one_for_all_unless_a_function_makes_it() -> None:
    def notebook() -> MCPServer:
        server, notes = MCPServer("notebook", log_level="ERROR"), []

        @server.tool(structured_output=False)
        def write_note(text: str) -> str:
            """Write a note."""
            notes.append(text)
            return "written"

        @server.tool(structured_output=False)
        def read_notes() -> str:
            """Read all notes."""
            return "; ".join(notes)

        return server

    tasks = shown(("write_note", {"text": "bread"}))
    assert "what write_note wrote in one world, read_notes shows in another world" in await refusal(notebook(), tasks)
    assert any("read_notes shows there and in no other" in line for line in await trained(notebook, tasks))


def desk(limit: int = 100) -> MCPServer:
    """Each of its answers has the time that it took. Its notes can be read `limit` times."""
    server, notes, looks, there = MCPServer("desk", log_level="ERROR"), list[str](), list[str](), ["bob", "amy"]

    @server.tool(structured_output=False)
    def write_note(text: str) -> str:
        """Write a note."""
        notes.append(text)
        return "note written in 103 ms"

    @server.tool(structured_output=False)
    def read_notes() -> str:
        """Read all notes."""
        looks.append("")
        if len(looks) > limit:
            raise ToolError("too many requests")
        return f"note list: {notes}, read in {100 + len(looks)} ms"

    @server.tool(structured_output=False)
    def pause_queue() -> str:
        """Pause the queue."""
        notes.append("pause")
        return "ok"

    @server.tool(structured_output=False)
    def get_status() -> str:
        """Whether the queue runs."""
        return "halted" if "pause" in notes else "running"

    @server.tool(structured_output=False)
    def remove_clerk(name: str) -> str:
        """Remove a clerk."""
        there.remove(name)
        return "ok"

    @server.tool(structured_output=False)
    def get_clerk(name: str) -> str:
        """Look at a clerk."""
        if name not in there:
            raise ToolError(f"there is no {name}")
        return "at work"

    @server.tool(structured_output=False)
    def get_or_create_clerk(name: str) -> str:
        """Look at a clerk, who is made if need be."""
        there.append(name)
        return "at work"

    for place in range(6):
        server.tool(name=f"list_{place}", structured_output=False)(lambda: "nothing")

    @server.tool(structured_output=False)
    def list_clerks() -> str:
        """All clerks."""
        return ", ".join(there)

    return server


async def test_how_long_an_answer_took_is_no_trace_of_a_write() -> None:
    lines = await trained(lambda: desk(), shown(("write_note", {"text": "bread"})))
    assert any("read_notes shows there and in no other" in line for line in lines)


async def test_a_read_that_is_refused_from_then_on_tells_nothing_unless_it_names_what_was_written() -> None:
    lines = await trained(lambda: desk(limit=2), shown(("write_note", {"text": "bread"})))
    assert any("nothing showed what write_note wrote" in line for line in lines)
    said = await refusal(desk(), shown(("remove_clerk", {"name": "bob"}), ("get_clerk", {"name": "bob"})))
    assert "what remove_clerk wrote in one world, get_clerk shows in another world" in said


async def test_a_switch_that_stays_where_it_was_set_is_found() -> None:
    said = await refusal(desk(), shown(("pause_queue", {})))
    assert "what pause_queue wrote in one world, get_status shows in another world" in said


async def test_a_tool_that_reads_or_writes_is_one_that_writes_and_each_of_ten_that_read_is_asked() -> None:
    said = await refusal(desk(), shown(("get_or_create_clerk", {"name": "eve"})))
    assert "what get_or_create_clerk wrote in one world, list_clerks shows in another world" in said


@pytest.mark.parametrize(
    ("write", "read"),
    [
        ("context_save", "context_get"),
        ("campaign_create", "campaign_list"),
        ("TodoWrite", "TodoRead"),
        ("save", "load"),
    ],
)
async def test_a_tool_whose_name_ends_with_its_verb_is_asked_what_was_written(write: str, read: str) -> None:
    server, kept = MCPServer("notes", log_level="ERROR"), list[str]()

    @server.tool(name=write, structured_output=False)
    def keep(text: str) -> str:
        """Keep a text."""
        kept.append(text)
        return "ok"

    server.tool(name=read, structured_output=False)(lambda: ", ".join(kept))
    said = await refusal(server, shown((write, {"text": "bread"})))
    assert f"what {write} wrote in one world, {read} shows in another world" in said


async def test_a_tool_that_clears_a_list_is_not_asked_what_was_written() -> None:
    server, kept = MCPServer("notes", log_level="ERROR"), ["milk"]

    @server.tool(structured_output=False)
    def add_note(text: str) -> str:
        """Keep a text."""
        kept.append(text)
        return "ok"

    server.tool(name="clear_list", structured_output=False)(lambda: str(kept.clear()))
    server.tool(name="read_list", structured_output=False)(lambda: ", ".join(kept))
    said = await refusal(server, shown(("add_note", {"text": "bread"})))
    assert "what add_note wrote in one world, read_list shows in another world" in said
    assert kept == ["milk", "bread"]


async def test_with_made_up_arguments_only_tools_that_add_are_called() -> None:
    server, kept = MCPServer("shop", log_level="ERROR"), ["Ann", "Bob"]
    wrote = list[str]()

    def acting(name: str) -> None:
        server.tool(name=name, structured_output=False)(lambda: wrote.append(name) or "ok")

    for name in (
        *("delete_all_customers", "purge", "send_invoices", "reset_and_create", "add_all", "update_prices"),
        *("delete_note", "update_record", "clear_store", "record_delete", "cancel_register", "store_purge"),
    ):
        acting(name)
    server.tool(name="list_customers", structured_output=False)(lambda: ", ".join(kept))
    lines = await trained(server, ["Look.", "Look again."])
    assert wrote == []
    assert any("none is known to only add something" in line for line in lines)

    @server.tool(structured_output=False)
    def create_customer(name: str) -> str:
        kept.append(name)
        return "ok"

    said = await refusal(server, ["Look.", "Look again."])
    assert "what create_customer wrote in one world, list_customers shows in another world" in said
    assert wrote == []


async def test_the_memory_server_shares_its_file_until_each_world_has_one(
    node_server: Callable[[str], list[str]], here: Path
) -> None:
    node, entry = node_server("server-memory")

    def memory(file: str) -> dict[str, Any]:
        env = {"MEMORY_FILE_PATH": file}
        return {
            "mcpServers": {"memory": {"command": node, "args": [entry], "env": env, "toolbake": {"deny": ["delete_*"]}}}
        }

    # Without a task that shows how it is called.
    said = await refusal(memory(str(here / "memory.jsonl")), ["Remember this.", "And this."])
    assert "memory: what create_entities wrote in one world, read_graph shows in another world" in said
    lines = await trained(memory("${TOOLBAKE_WORLD_DIR}/memory.jsonl"), ["Remember this.", "And this."])
    assert "memory: what create_entities wrote in one world, read_graph shows there and in no other" in lines


async def test_a_tool_that_acts_outside_its_world_is_neither_searched_with_nor_solved_with_in_silence(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = keeping("${TOOLBAKE_WORLD_DIR}/notes.txt", world={"folder": "seed"}, **OPEN)
    async with mcp_bridge.connect(source) as toolset:
        assert [tool.name for tool in searchable_tools(toolset)] == ["add", "read", "clock"]
        assert "send (it acts outside its world (openWorldHint))" in str(shared_state_line(toolset))
        assert "send" in {tool.name for tool in searchable_tools(toolset, ["send"])}
    await sdk.solve_async(source, "Send it.", "send()", answer="done")
    assert called(here) == ["send"], "once, for it is real"
    assert "these calls are real" in caplog.text
