"""Servers that keep their state in files: a folder for each world, and a warning where worlds share a file."""

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_bridge import SourceError, ToolFailure, connect
from sandboxes.helpdesk import Helpdesk

Node = Callable[[str], list[str]]
FILING = Path(__file__).parent / "servers" / "filing.py"
NOTES = {"NOTES_FILE": "${TOOLBAKE_WORLD_DIR}/notes.txt"}


def filing(program: Path = FILING, **entry: Any) -> dict[str, Any]:
    return {"mcpServers": {"filing": {"command": sys.executable, "args": [str(program)], **entry}}}


def copied(folder: Path) -> Path:
    """The program in another folder, with what it imports."""
    shutil.copy(FILING.with_name("by_hand.py"), folder)
    return Path(shutil.copy(FILING, folder))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of worlds are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


async def reads_of_two_worlds(source: Any) -> tuple[str, str]:
    """What two worlds read after the first one wrote `first`."""
    async with connect(source) as toolset, toolset.open_world("a") as a, toolset.open_world("b") as b:
        await a.call("add", {"text": "first"})
        return (await a.call("read", {})).text.strip(), (await b.call("read", {})).text.strip()


async def test_each_world_has_a_folder_of_its_own_that_goes_with_it(
    temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await reads_of_two_worlds(filing(env=NOTES)) == ("first", "no notes")
    assert os.listdir(temporary) == []
    assert "share" not in caplog.text
    async with connect(filing(env=NOTES, toolbake={"warm": 0})) as toolset:
        async with toolset.open_world("a") as one:
            await one.call("add", {"text": "first"})
            (folder,) = worlds_in(temporary)
            assert (folder / "notes.txt").read_text() == "first\n"
        assert worlds_in(temporary) == []
        async with toolset.open_world("b") as one:
            assert (await one.call("read", {})).text == "no notes"


async def test_the_folder_of_a_world_begins_as_a_copy_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "seed").mkdir()
    (tmp_path / "seed" / "notes.txt").write_text("seeded\n")
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps(filing(env=NOTES, toolbake={"world": {"folder": "seed"}})))
    assert await reads_of_two_worlds(config) == ("seeded\nfirst", "seeded")
    assert (tmp_path / "seed" / "notes.txt").read_text() == "seeded\n"


@pytest.fixture(params=["beside the folders of worlds", "on another file system"])
def seed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder that worlds get a copy of."""
    memory = Path("/dev/shm")
    if request.param == "on another file system":
        if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is no second file system to copy from")
        tmp_path = memory
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    yield folder
    shutil.rmtree(folder)


async def test_the_files_of_a_seed_are_copied_whole_with_their_modes_and_times(seed: Path, temporary: Path) -> None:
    (seed / "sub").mkdir()
    files = {"notes.txt": b"first\n", "empty": b"", "sub/large.bin": os.urandom(3_000_000), "sub/run": b"#!/bin/sh\n"}
    for number, (name, data) in enumerate(files.items()):
        (seed / name).write_bytes(data)
        os.utime(seed / name, (1_700_000_000, 1_600_000_000 + number))
    (seed / "sub" / "run").chmod(0o750)
    (seed / "link").symlink_to("sub/run")
    source = filing(env=NOTES, toolbake={"warm": 0, "world": {"folder": str(seed)}})
    async with connect(source) as toolset, toolset.open_world("a") as one:
        assert (await one.call("read", {})).text.strip() == "first"
        (folder,) = worlds_in(temporary)
        for number, (name, data) in enumerate(files.items()):
            assert (folder / name).read_bytes() == data
            assert (folder / name).stat().st_mtime == 1_600_000_000 + number
        assert (folder / "sub" / "run").stat().st_mode & 0o777 == 0o750
        assert os.readlink(folder / "link") == "sub/run"
        await one.call("add", {"text": "second"})
        assert (folder / "notes.txt").read_text() == "first\nsecond\n"
    assert (seed / "notes.txt").read_bytes() == b"first\n", "what a world writes stays in its copy"


async def test_a_link_that_leaves_the_folder_is_refused_since_a_world_would_write_through_it(tmp_path: Path) -> None:
    (tmp_path / "seed").mkdir()
    (tmp_path / "real.txt").write_text("real\n")
    (tmp_path / "seed" / "notes.txt").symlink_to(tmp_path / "real.txt")
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps(filing(env=NOTES, toolbake={"world": {"folder": "seed"}})))
    with pytest.raises(SourceError, match="which leaves the folder"):
        async with connect(str(config)):
            pass
    assert (tmp_path / "real.txt").read_text() == "real\n"


async def test_a_folder_of_a_world_may_be_an_argument_and_the_working_folder(node_server: Node) -> None:
    node, entry = node_server("server-filesystem")
    server = {"command": node, "args": [entry, "${TOOLBAKE_WORLD_DIR}"], "cwd": "${TOOLBAKE_WORLD_DIR}"}
    async with connect({"mcpServers": {"files": server}}) as toolset:
        async with toolset.open_world("a") as a, toolset.open_world("b") as b:
            folders = []
            for world in (a, b):
                allowed = (await world.call("list_allowed_directories", {})).text
                folders.append(next(line.strip() for line in allowed.splitlines() if "toolbake-world-" in line))
            assert folders[0] != folders[1]
            written = await a.call("write_file", {"path": f"{folders[0]}/note.txt", "content": "mine"})
            assert not written.is_error
            assert "note.txt" in (await a.call("list_directory", {"path": folders[0]})).text
            assert "note.txt" not in (await b.call("list_directory", {"path": folders[1]})).text
            assert (await b.call("read_text_file", {"path": f"{folders[0]}/note.txt"})).is_error


async def test_a_file_that_all_worlds_are_given_is_told_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "notes.txt"
    async with connect(filing(env={"NOTES_FILE": str(file)})) as toolset:
        assert "share the path that NOTES_FILE in its env names" in caplog.text
        assert "${TOOLBAKE_WORLD_DIR} in command, args, env or cwd" in caplog.text
        # What stands in `env` is in no log.
        assert str(file) not in caplog.text
        (kind,) = toolset.worlds
        assert (kind.kind, kind.is_fresh) == ("process", None)
    caplog.clear()
    assert await reads_of_two_worlds(filing(env={"NOTES_FILE": str(file)})) == ("first", "first")
    assert sum("NOTES_FILE" in one for one in caplog.messages) == 1


@pytest.mark.parametrize("arguments", [["{folder}"], ["--db={folder}/shop.db"], ["sqlite:///{folder}/shop.db"]])
async def test_an_argument_that_names_a_writable_path_is_told(
    arguments: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = [one.format(folder=tmp_path) for one in arguments]
    async with connect([sys.executable, str(FILING), *given]):
        assert f"share {given[0]}, which stands in its args" in caplog.text


async def test_a_file_that_a_server_keeps_by_itself_is_told_when_it_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = copied(tmp_path)
    async with connect(filing(program)) as toolset, toolset.open_world("a") as a:
        await a.call("read", {})
        assert "share" not in caplog.text
        assert toolset.worlds[0].is_fresh is None
        await a.call("add", {"text": "first"})
        await a.call("add", {"text": "second"})
        # Somebody else may have written it: what two worlds read tells.
        assert toolset.worlds[0].is_fresh is None
        assert toolset.worlds[0].shares == (f"{tmp_path / 'notes.txt'}, which changed while 'add' ran",)
    assert sum("share" in one for one in caplog.messages) == 1
    assert f"share {tmp_path / 'notes.txt'}, which changed while 'add' ran" in caplog.text


STARTING = """
import subprocess, sys

sys.path.append({servers!r})
from by_hand import serve, tool

def start(name, arguments, meta):
    subprocess.Popen([{sleep!r}, "60"], stdin=subprocess.DEVNULL)
    if arguments:
        open(arguments["file"], "w").close()
    return "started"

serve([tool("start")], start)
"""


async def test_the_neighbours_of_a_program_that_a_call_starts_are_not_taken_for_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sleep", "neighbour"):
        shutil.copy(str(shutil.which("sleep")), folder / name)
        os.utime(folder / name, (0, 0))
    program = tmp_path / "starting" / "server.py"
    program.parent.mkdir()
    program.write_text(STARTING.format(servers=str(FILING.parent), sleep=str(folder / "sleep")))
    async with connect([sys.executable, str(program)]) as toolset, toolset.open_world("a") as a:
        assert (await a.call("start", {})).text == "started"
        assert "share" not in caplog.text
        assert toolset.worlds[0].is_fresh is None
    async with connect([sys.executable, str(program)]) as toolset, toolset.open_world("a") as a:
        await a.call("start", {"file": str(folder / "new.txt")})
        assert f"share {folder / 'new.txt'}, which changed while 'start' ran" in caplog.text


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not show the files of a process")
async def test_a_file_that_the_processes_of_two_worlds_hold_open_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "notes.db"
    program = tmp_path / "opened.py"
    # The program itself names the file: nothing that it is given tells of it.
    program.write_text(
        f"import os, sys\nsys.path.append({str(FILING.parent)!r})\n"
        f"os.environ.update(NOTES_FILE={str(file)!r}, HOLDS_IT_OPEN='1')\n"
        f"exec(compile(open({str(FILING)!r}).read(), {str(FILING)!r}, 'exec'))\n"
    )
    await reads_of_two_worlds([sys.executable, str(program)])
    assert "share" not in caplog.text
    async with connect([sys.executable, str(program)]) as toolset:
        async with toolset.open_world("a") as a, toolset.open_world("b") as b:
            await a.call("add", {"text": "first"})
            await b.call("add", {"text": "second"})
        assert toolset.worlds[0].is_fresh is False
    assert sum("share" in one for one in caplog.messages) == 1
    assert f"share {file}, which two of its processes opened for writing" in caplog.text
    # With a copied folder, its tools counted as simulated until then.
    (tmp_path / "seed").mkdir()
    options = {"world": {"folder": str(tmp_path / "seed")}, "destructive": ["add"]}
    entry = {"command": sys.executable, "args": [str(program)], "cwd": "${TOOLBAKE_WORLD_DIR}", "toolbake": options}
    async with connect({"mcpServers": {"notes": entry}}) as toolset:
        toolset.for_training()
        async with toolset.open_world("a") as a, toolset.open_world("b") as b:
            await a.call("add", {"text": "first"})
            await b.call("add", {"text": "second"})
        with pytest.raises(ToolFailure, match=r"cannot be used: .*add"):
            async with toolset.open_world("c"):
                pass


async def test_what_keeps_worlds_apart_otherwise_is_not_warned_of(
    controlled_notes: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "app").mkdir()
    program = copied(tmp_path / "app")
    (tmp_path / "app" / "settings.toml").write_text("")
    caplog.set_level(logging.WARNING)
    code_alone = filing(
        program, cwd=str(tmp_path / "app"), env={"PYTHONPATH": str(tmp_path), "SETTINGS": "settings.toml"}
    )
    for source in (controlled_notes, code_alone, filing(toolbake={"isolation": "shared"})):
        async with connect(source):
            assert "share" not in caplog.text


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_a_toolset_tells_what_each_rollout_gets(notes: list[str], controlled_notes: list[str]) -> None:
    sources = [Helpdesk(), controlled_notes, filing(env=NOTES), filing(toolbake={"isolation": "shared"}), add]
    found = []
    for source in sources:
        async with connect(source) as toolset:
            found += [(one.kind, one.is_fresh) for one in toolset.worlds]
    assert found == [("copy", True), ("control", True), ("process", True), ("shared", False), ("shared", False)]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"command": "x", "toolbake": {"world": {"folder": "seed"}}}, 'is for a "command" that uses'),
        ({"url": "http://127.0.0.1/mcp", "toolbake": {"world": {"folder": "seed"}}}, "world.folder does nothing here"),
        ({"openapi": "api.yaml", "toolbake": {"world": {"folder": "seed"}}}, "Put a twin before it"),
        ({"command": "x", "toolbake": {"world": "seed"}}, "must be an object like"),
        ({"command": "x", "toolbake": {"world_template": "seed"}}, 'Write "world": {"folder": \'seed\'}'),
        ({"command": "x", "toolbake": {"world": {}}}, "folder, state or both"),
        (
            {"command": "x", "toolbake": {"world": {"seed": "a"}}},
            "world.seed is an unknown key. Known in world: folder",
        ),
        ({"command": "x", "env": NOTES, "toolbake": {"world": {"folder": "a"}, "isolation": "shared"}}, "one folder"),
        ({"url": "http://127.0.0.1/mcp", "headers": {"X": "${TOOLBAKE_WORLD_DIR}"}}, "headers.X uses"),
        ({"command": "x", "env": NOTES, "toolbake": {"world": {"folder": "gone"}}}, "gone' is not a folder"),
    ],
)
async def test_a_folder_for_worlds_where_there_is_none_is_refused(entry: dict[str, Any], told: str) -> None:
    with pytest.raises(SourceError, match=told):
        async with connect({"mcpServers": {"a": entry}}):
            pass


async def test_a_folder_that_cannot_be_removed_costs_no_rollout(
    temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(filing(env=NOTES)) as toolset:
        async with toolset.open_world("a") as a:
            await a.call("add", {"text": "first"})
            (folder,) = worlds_in(temporary)
            make_deep(folder)
        assert (await toolset.call("read", {})).text == "no notes"
    assert not folder.exists() or "the folder of a world of filing" in caplog.text
    await anyio.run_process(["rm", "-rf", str(folder)])


def worlds_in(folder: Path) -> list[Path]:
    """The folders of worlds in which something is written."""
    return [one for one in folder.iterdir() if any(one.iterdir())]


def make_deep(folder: Path) -> None:
    """Deeper than Python removes in one piece."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
