"""`toolbake init` writes a project that runs as it is, whatever the tools are, and overwrites nothing."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import toolbake

from sdk import ConfigError, TrainConfig
from sdk.cli.commands.init import mcp_tools
from sdk.cli.sources import load_verifier
from sdk.tasks import load_tasks

TILL = '''"""A till."""

SOLD: list[str] = []
PRICES = {"tea": 3, "coffee": 4, "cake": 5}


def price_of(name: str) -> int:
    """The price of one thing: tea, coffee or cake."""
    return PRICES[name]


def sell(name: str) -> int:
    """Sell a thing: tea, coffee or cake. Gives the number of things sold."""
    SOLD.append(f"{name} for {price_of(name)}")
    return len(SOLD)
'''

SHOP = '''
class Shop:
    """A shop."""

    def __init__(self) -> None:
        self.stock = {"lamp": 3, "rug": 1}

    def in_stock(self, product: str) -> int:
        """How many there are of a product."""
        return self.stock[product]

    def sell(self, product: str, count: int) -> str:
        """Sell some of a product."""
        if self.stock.get(product, 0) < count:
            raise ValueError("not enough")
        self.stock[product] -= count
        return "sold"
'''
ORDER = {"type": "object", "required": ["id", "city"], "properties": {"id": {"type": "integer"}}}
ORDER["properties"]["city"] = {"type": "string"}
ORDERS_API = {
    "openapi": "3.1.0",
    "info": {"title": "orders", "version": "1"},
    "servers": [{"url": "https://orders.example"}],
    "paths": {
        "/orders/{id}": {
            "get": {
                "operationId": "get_order",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
                "responses": {"200": {"description": "ok", "content": {"application/json": {"schema": ORDER}}}},
            }
        },
        "/orders": {
            "get": {
                "operationId": "list_orders",
                "responses": {
                    "200": {
                        "description": "ok",
                        "content": {"application/json": {"schema": {"type": "array", "items": ORDER}}},
                    }
                },
            }
        },
    },
}


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("tools", "verify", "shop", "sums", "two", "empty"):
        sys.modules.pop(name, None)


def init(*words: str) -> str:
    result = toolbake("init", *words)
    assert result.exit_code == 0, result.output
    return result.stdout


def pytest_in(project: Path) -> subprocess.CompletedProcess[str]:
    """The project's own test, in a process of its own, as its users run it."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", str(project)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})


def replay_gold(project: Path) -> None:
    """The same in this process, which has the libraries loaded."""
    for name in ("tools", "verify"):
        sys.modules.pop(name, None)
    sys.path.insert(0, str(project))
    found = runpy.run_path(str(project / "test_tasks.py"))
    if (whole := found.get("test_the_gold_solutions_earn_their_reward")) is not None:
        whole()
        return
    for task in load_tasks(project / "tasks.jsonl"):
        found["test_the_gold_solution_earns_its_reward"](task)


def test_without_tools_there_is_an_example_with_a_world_for_each_rollout_and_its_gold_holds(empty):
    said = init("rooms")
    project = empty / "rooms"
    assert {file.name for file in project.iterdir()} == {
        "server.py",
        "mcp.json",
        "requests.csv",
        "tasks.jsonl",
        "verify.py",
        "train.json",
        "test_tasks.py",
        "README.md",
    }
    tasks = load_tasks(project / "tasks.jsonl")
    assert len(tasks) == 50
    assert len({task.family for task in tasks}) == 25
    assert TrainConfig.of(project / "train.json").limits.max_turns == 4
    assert repr(load_verifier(f"{project}/verify.py:verify")) == "as_expected()"
    done = pytest_in(project)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr
    commands = [line.strip() for line in said.splitlines() if line.startswith("  toolbake")]
    assert [line.split()[1] for line in commands] == ["doctor", "evaluate", "train", "report", "serve"]
    readme = (project / "README.md").read_text()
    assert all(line in readme for line in commands)
    assert all(f"`{name.name}`" in readme for name in project.iterdir() if name.is_file() and name.name != "README.md")


def test_the_gold_test_of_a_project_fails_where_a_task_is_wrong(empty):
    init("rooms")
    file = empty / "rooms" / "tasks.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["expected"]["answer"] = 1234
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match=r"tasks\.jsonl, line 1"):
        replay_gold(empty / "rooms")


def test_files_in_the_way_are_all_named_and_nothing_is_written(empty):
    (empty / "verify.py").write_text("mine")
    (empty / "README.md").write_text("mine, too")
    result = toolbake("init")
    assert result.exit_code == 1
    assert "has verify.py, README.md already, and no file is overwritten" in result.stderr
    assert {file.name: file.read_text() for file in empty.iterdir()} == {
        "verify.py": "mine",
        "README.md": "mine, too",
    }


def test_a_server_in_python_and_its_mcp_json_become_projects_that_start_it_where_it_is(empty):
    init("rooms")
    init("of_a_server", "--mcp", "rooms/server.py")
    init("of_a_config", "--mcp", "rooms/mcp.json")
    for name in ("of_a_server", "of_a_config"):
        (entry,) = json.loads((empty / name / "mcp.json").read_text())["mcpServers"].values()
        assert (entry["args"], entry["cwd"]) == (["server.py"], "../rooms")
        tasks = load_tasks(empty / name / "tasks.jsonl")
        assert len(tasks) == 10
        assert not (empty / name / "server.py").exists()
    shown = toolbake("tools", "of_a_config/mcp.json", "--json")
    assert [tool["name"] for tool in json.loads(shown.stdout)["tools"]][:2] == ["get_room", "get_booking"]


def test_an_mcp_json_that_lies_in_the_folder_is_used_as_it_is(empty):
    init("rooms")
    for file in (empty / "rooms").iterdir():
        if file.name not in ("mcp.json", "server.py"):
            file.unlink()
    before = (empty / "rooms" / "mcp.json").read_bytes()
    init("rooms", "--mcp", "rooms/mcp.json")
    assert (empty / "rooms" / "mcp.json").read_bytes() == before
    assert len(load_tasks(empty / "rooms" / "tasks.jsonl")) == 10


def test_the_configuration_of_an_editor_becomes_a_project(empty):
    from sdk.cli.commands.init import mcp_tools

    (empty / "vscode.json").write_text("""{"servers": {"far": {"url": "https://far.example/mcp"}, // ours\n}}""")
    made = mcp_tools(Path("vscode.json"), empty / "project")
    assert json.loads(made.files["mcp.json"]) == {"mcpServers": {"far": {"url": "https://far.example/mcp"}}}


def test_places_in_a_copied_mcp_json_still_mean_the_same(empty):
    from sdk.cli.commands.init import mcp_tools

    (empty / "tools" / "seed").mkdir(parents=True)
    servers = {
        "files": {
            "command": "npx",
            "args": ["files", "${TOOLBAKE_WORLD_DIR}"],
            "toolbake": {"world": {"folder": "seed"}, "roots": ["work", "file:///srv"]},
        },
        "local": {"command": "node", "args": ["."]},
        "told": {"command": "uvx", "args": ["shelf", "--root=tools"]},
        "placed": {"command": "npx", "args": ["files"], "cwd": "work"},
        "api": {"openapi": "api.yaml"},
        "far": {"url": "https://far.example/mcp", "headers": {"Authorization": "Bearer ${KEY:-none}"}},
        "told by a file": {"command": "npx", "args": ["files"], "envFile": "own.env"},
        "signed": {"openapi": "api.yaml", "auth": {"main": {"private_key_file": "own.pem", "client_id": "me"}}},
    }
    (empty / "tools" / "own.env").write_text("NAME=value\n")
    (empty / "tools" / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    made = mcp_tools(Path("tools/mcp.json"), empty / "project")
    moved = json.loads(made.files["mcp.json"])["mcpServers"]
    assert "cwd" not in moved["files"]
    assert moved["local"]["cwd"] == moved["told"]["cwd"] == ".."  # where they were started before
    assert moved["placed"]["cwd"] == "../tools/work"
    assert moved["files"]["toolbake"] == {
        "world": {"folder": "../tools/seed"},
        "roots": ["../tools/work", "file:///srv"],
    }
    assert moved["api"] == {"openapi": "../tools/api.yaml"}
    assert moved["far"] == servers["far"]
    assert moved["told by a file"]["envFile"] == "../tools/own.env"
    assert moved["signed"]["auth"]["main"] == {"private_key_file": "../tools/own.pem", "client_id": "me"}


def test_an_api_becomes_a_twin_with_tasks(empty):
    (empty / "openapi.json").write_text(json.dumps(ORDERS_API))
    said = init("api", "--openapi", "openapi.json")
    assert "a twin of the API in `openapi.json`" in said
    (empty / "apis \U0001f680").mkdir()
    shutil.copy(empty / "openapi.json", empty / "apis \U0001f680")
    init("launched", "--openapi", "apis \U0001f680/openapi.json")
    assert "toolbake train tools.py:tools tasks.jsonl" in said
    replay_gold(empty / "api")


def test_a_class_becomes_a_sandbox_and_functions_wait_for_requests(empty):
    (empty / "shop.py").write_text(SHOP)
    said = init("shop", "--python", "shop.py")
    assert "ObjectTwin(Shop)" in (empty / "shop" / "tools.py").read_text()
    assert "10 were wanted" in said
    assert "synthesize with more --setup, more --max-calls" in said
    replay_gold(empty / "shop")
    (empty / "sums.py").write_text('def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n')
    said = init("sums", "--python", "sums.py")
    assert "calls of these functions are real. If they change only variables of sums.py" in said
    assert "toolbake solve tools.py:tools --tasks requests.csv --to tasks.jsonl" in said
    requests = empty / "sums" / "requests.csv"
    requests.write_text(requests.read_text() + 'What is 2 plus 3?,"add(a=2, b=3)",,,,\n')
    tools = f"{empty}/sums/tools.py:tools"
    done = toolbake("solve", tools, "--tasks", str(requests), "--to", str(empty / "sums" / "tasks.jsonl"))
    assert done.exit_code == 0, done.output
    replay_gold(empty / "sums")


def test_functions_that_change_their_module_get_worlds_by_what_the_comment_shows(empty):
    (empty / "till.py").write_text(TILL)
    init("till", "--python", "till.py")
    code = (empty / "till" / "tools.py").read_text()
    lines = [line.removeprefix("#   ") for line in code.splitlines() if not line.startswith("tools = [")]
    uncommented = "\n".join(lines)
    (empty / "till" / "tools.py").write_text(uncommented)
    tools, tasks = f"{empty}/till/tools.py:tools", empty / "till" / "tasks.jsonl"
    command = [sys.executable, "-m", "toolbake", "synthesize", tools, "--to", str(tasks), "-n", "6"]
    made = subprocess.run(command, capture_output=True, text=True)  # a new process: tools.py was imported in this one
    assert made.returncode == 0, made.stderr
    assert any("changes" in json.loads(line)["expected"] for line in tasks.read_text().splitlines())
    replay_gold(empty / "till")


def test_requests_that_are_there_stay_where_tasks_can_be_made_and_where_none_can(empty):
    (empty / "shop.py").write_text(SHOP)
    (empty / "sums.py").write_text('def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n')
    for name in ("shop", "sums"):
        (empty / name).mkdir()
        (empty / name / "requests.csv").write_text("prompt,calls\nmine,f()\n")
        init(name, "--python", f"{name}.py")
        assert (empty / name / "requests.csv").read_text() == "prompt,calls\nmine,f()\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mcp", "none.json"], "--mcp is 'none.json', and there is no such file"),
        (["--mcp", "server.txt"], "give an mcp.json, or the Python file of a server"),
        (["--openapi", "none.yaml"], "--openapi is 'none.yaml', and there is no such file"),
        (["--python", "none.py"], "--python is 'none.py', and there is no such file"),
        (["--python", "server.txt"], "--python is 'server.txt', which is not a Python file; give a Python file"),
        (["--mcp", "lib"], "--mcp is 'lib', which is a folder; give an mcp.json"),
        (["--openapi", "broken.json"], "error: broken.json is not valid JSON: "),
        (["--mcp", "deep.json"], "'deep.json' is nested too deeply to be read"),
        (["--mcp", "latin.json"], "'latin.json' is not UTF-8 (invalid continuation byte at byte 1); save it as UTF-8"),
        (["--python", "empty.py"], "which has no tools"),
        (["--python", "two.py"], "which has Bank, Shop; name one of them: --python two.py:Bank"),
        (["--python", "two.py:Shp"], "Did you mean 'Shop'?"),
        (["--mcp", "a.json", "--python", "b.py"], "give one of them, not 2"),
        (["--mcp", "broken.json"], "is not valid JSON"),
        (["server.txt"], "server.txt is a file; give a folder"),
        (["--openapi", "https://user:hidden@crm.example/openapi.json"], "would be written into tools.py"),
        (["--python", "my-sums.py"], "cannot import a file of that name; rename it"),
        (["--python", "lib/tools.py"], "cannot import a file of that name; rename it"),
    ],
)
def test_what_cannot_be_a_projects_tools_is_named_and_leaves_nothing_behind(empty, words, message):
    (empty / "server.txt").write_text("")
    (empty / "empty.py").write_text("x = 1\n")
    (empty / "two.py").write_text("class Bank:\n    def pay(self): ...\nclass Shop:\n    def sell(self): ...\n")
    (empty / "broken.json").write_text("{")
    (empty / "deep.json").write_text("[" * 100_000)
    (empty / "latin.json").write_bytes(b'"\xe9"')
    (empty / "lib").mkdir()
    for name in ("my-sums.py", "lib/tools.py"):
        (empty / name).write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    before = sorted(empty.iterdir())
    folder = [] if words == ["server.txt"] else ["project"]
    result = toolbake("init", *folder, *words)
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert "hidden" not in result.output
    assert [file for file in sorted(empty.iterdir()) if file.name != "__pycache__"] == before


def test_tools_that_do_not_start_leave_no_project_behind(empty):
    (empty / "mcp.json").write_text(json.dumps({"mcpServers": {"one": {"command": "no-such-program"}}}))
    result = toolbake("init", "deep/project", "--mcp", "mcp.json")
    assert result.exit_code == 1
    assert "no-such-program" in result.stderr
    assert not (empty / "deep").exists()


def test_worlds_that_cannot_be_made_are_to_be_corrected_before_requests_are_written(empty):
    (empty / "beds.py").write_text(
        "import mcp_bridge\nfrom mcp.server.mcpserver import MCPServer\n\n"
        "server = MCPServer('clinic', log_level='CRITICAL')\n"
        "beds = mcp_bridge.worlds(server, make=lambda seed=0: {}[seed], state=lambda kept: kept)\n\n"
        "@server.tool()\ndef count_beds() -> int:\n    return len(beds())\n\nserver.run()\n"
    )
    said = init("clinic", "--mcp", "beds.py")
    assert "the function make= of worlds raised KeyError with the setup {'seed': 1}: 1" in said
    assert "correct that first (toolbake doctor looks at worlds)" in said


def test_of_a_clients_file_the_servers_alone_are_copied_and_nobody_else_may_read_them(empty):
    file = empty / "client.json"
    file.write_text(json.dumps({"primaryApiKey": "sk-hidden", "mcpServers": {"one": {"command": "no-such-program"}}}))
    tools = mcp_tools(file, empty / "project")
    assert "sk-hidden" not in tools.files["mcp.json"]
    assert json.loads(tools.files["mcp.json"]).keys() == {"mcpServers"}


def test_servers_may_have_the_name_that_other_clients_give_them(empty):
    (empty / "vs.json").write_text(json.dumps({"inputs": [], "servers": {"one": {"command": "no-such-program"}}}))
    tools = mcp_tools(empty / "vs.json", empty / "project")
    assert json.loads(tools.files["mcp.json"])["mcpServers"]["one"]["command"] == "no-such-program"
