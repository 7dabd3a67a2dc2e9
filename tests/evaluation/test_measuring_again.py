"""`sdk.evaluate` into a folder: what is run again, what makes it another run, and what is written of it."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import sdk
from mcp_bridge import connect
from sandboxes.helpdesk import Helpdesk
from sdk.errors import ConfigError, PolicyFailure, RunFolderError, ToolbakeError
from sdk.evaluation.measurement import measure
from sdk.policies.scripted import ScriptedAgent
from sdk.rollouts.run_context import RunContext
from sdk.traces import RunFolder

SECRET = "sk-THE-SECRET"
TASKS = [
    {"id": f"t{n}", "prompt": f"Where is order {n}?", "expected": {"answer": "shipped"}, "setup": {}} for n in range(4)
]


def get_order(order_id: str) -> str:
    """Read an order."""
    return "shipped"


def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    return "cancelled"


def says_shipped(rollout: sdk.Rollout) -> bool:
    return "shipped" in rollout.answer


def three_tenths(rollout: sdk.Rollout) -> float:
    return 0.1 + 0.1 + 0.1 if rollout.answer else 0.0


def almost(rollout: sdk.Rollout) -> float:
    return reduce(add, [0.1] * 10)  # not `sum`, which does not lose the last bit from Python 3.12 on


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.notes: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Any:
        self.lines.append(f"{title}: {done} of {total} done")
        yield self

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.notes.append(note)


class Agent:
    """An agent whose policy is down for some questions until it is repaired."""

    def __init__(self, *down: str) -> None:
        self.down = set(down)
        self.asked: list[str] = []

    def open(self) -> ScriptedAgent:
        def reply(messages: list[Any], seed: int) -> str:
            self.asked.append(messages[-1].content)
            if any(word in messages[-1].content for word in self.down):
                raise PolicyFailure("the endpoint answered 503")
            return "It is shipped."

        return ScriptedAgent(reply)


async def measured(folder: Path | None, agent: Agent, **changed: Any) -> sdk.Report:
    call = {"tools": [get_order], "prompts": TASKS, "verifier": says_shipped, **changed}
    return await sdk.evaluate_async(**call, model=agent.open(), output_dir=folder)


async def test_a_transient_fault_is_mended_by_the_next_call_and_nothing_else_runs_again(tmp_path: Path) -> None:
    agent, heard = Agent("order 1?", "order 3?"), Heard()
    first = await measured(tmp_path, agent)
    assert first.conditions["scripted"].unscored == 2

    agent.down, agent.asked = {"order 3?"}, []
    second = await measured(tmp_path, agent, progress=heard)
    assert sorted(agent.asked) == ["Where is order 1?", "Where is order 3?"]
    assert second.conditions["scripted"].unscored == 1
    assert heard.lines == [
        "evaluation: 2 rollouts that could not be scored are run again",
        "evaluation: 2 of 4 done",
    ]

    agent.down, agent.asked = set(), []
    third = await measured(tmp_path, agent)
    assert agent.asked == ["Where is order 3?"]
    assert third.conditions["scripted"].unscored == 0
    assert third.conditions["scripted"].scored == 4
    assert len(RunFolder.open_to_read(tmp_path).read_rollouts("evaluation")) == 4


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"tools": [get_order, cancel_order]}, "tools.count is 1 in the folder and 2 now"),
        ({"prompts": [{**TASKS[0], "expected": {"answer": "lost"}}, *TASKS[1:]]}, "tasks.digest is"),
        ({"prompts": [{**TASKS[0], "prompt": "Where?"}, *TASKS[1:]]}, "tasks.digest is"),
        ({"verifier": three_tenths}, "verifier.name is"),
        ({"seed": 1}, "seed is 0 in the folder and 1 now"),
    ],
    ids=["tools", "expected", "prompt", "verifier", "seed"],
)
async def test_what_determines_the_results_makes_another_run(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    await measured(tmp_path, Agent())
    with pytest.raises(RunFolderError, match=named.replace(".", r"\.")):
        await measured(tmp_path, Agent(), **changed)


async def test_an_edited_verifier_of_the_same_name_makes_another_run(tmp_path: Path) -> None:
    def verify_as(threshold: int) -> Any:
        def verify(rollout: sdk.Rollout) -> bool:
            return len(rollout.answer) > threshold

        return verify

    await measured(tmp_path, Agent(), verifier=verify_as(1))
    await measured(tmp_path, Agent(), verifier=verify_as(1))
    with pytest.raises(RunFolderError, match=r"verifier\.digest is .* now \(the code or data behind it has changed\)"):
        await measured(tmp_path, Agent(), verifier=verify_as(2))


async def test_a_folder_of_other_weights_is_another_model(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Also where the folder of the run is given, whose model it is, and where its name is that of a secret."""
    model = Path(shutil.copytree(tiny_model_folder, tmp_path / "access-token" / "model"))
    (model.parent / "run.json").write_text("{}")
    call: Any = {"tools": [get_order], "prompts": TASKS[:1], "verifier": says_shipped, "limits": {"max_tokens": 2}}
    for _ in range(2):
        await sdk.evaluate_async(**call, model=model.parent, output_dir=tmp_path / "run")
    weights = load_file(model / "model.safetensors")
    save_file({name: weight * 2 for name, weight in weights.items()}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(RunFolderError, match=r"weights\..*model\.safetensors is"):
        await sdk.evaluate_async(**call, model=model.parent, output_dir=tmp_path / "run")


async def test_tools_that_cannot_be_used_leave_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="cannot be started"):
        await measured(tmp_path / "run", Agent(), tools=["/no/such/program"])
    assert not (tmp_path / "run").exists()


async def test_a_score_that_misses_the_threshold_by_rounding_is_counted_right_while_measuring() -> None:
    assert almost(None) < 1.0  # type: ignore[arg-type]
    heard = Heard()
    report = await measured(None, Agent(), verifier=almost, progress=heard)
    assert heard.notes[-1] == "4/4 right"
    assert report.conditions["scripted"].success is not None
    assert report.conditions["scripted"].success.interval.estimate == 1.0


@pytest.mark.parametrize(
    "model",
    [
        ("http://127.0.0.1:9/v1", "m", SECRET),
        ["http://127.0.0.1:9/v1", "m", SECRET],
        {"base_url": "http://127.0.0.1:9/v1", "model": "m", "key": SECRET},
        f"http://user:{SECRET}@127.0.0.1:9/v1",
        (f"http://user:{SECRET}@127.0.0.1:9/v1?key={SECRET}", "m"),
        (f"http://user:{SECRET}", "m"),
        {"base_url": "http://[::1/v1", "model": "m", "api_key": SECRET},
    ],
    ids=["tuple", "list", "mapping", "url", "credentials", "port", "host"],
)
async def test_a_model_that_is_refused_leaves_no_key_on_disk_or_in_the_error(tmp_path: Path, model: Any) -> None:
    with pytest.raises(ConfigError) as error:
        await sdk.evaluate_async([get_order], TASKS, says_shipped, model=model, output_dir=tmp_path / "run")
    assert SECRET not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_only_the_address_and_the_model_name_of_an_endpoint_are_stored() -> None:
    from sdk.policies.model_source import model_label

    model = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key": SECRET, "headers": {"X": SECRET}}
    assert model_label(model) == "http://127.0.0.1:9/v1#m"


async def test_the_report_says_seed_tasks_tools_versions_and_machine(tmp_path: Path) -> None:
    for folder in (tmp_path, None):
        run = (await measured(folder, Agent(), seed=7)).run
        assert (run["model"], run["seed"], run["tasks"]) == ("scripted", 7, {"tasks": 4})
        assert run["tools"] == {"source": "function test_measuring_again.get_order", "count": 1}
        assert run["verifier"] == "says_shipped"
        assert {"python", "torch", "trl"} <= run["versions"].keys()
        assert run["machine"]["cores"] >= 1
        assert run["machine"]["processor"]
    assert "versions.python" in (tmp_path / "report.md").read_text()


async def test_a_fault_that_spoils_every_rollout_ends_the_measurement_early() -> None:
    judged = []

    def out_of_order(rollout: sdk.Rollout) -> float:
        judged.append(rollout.id)
        raise RuntimeError("out of order")

    tasks = [sdk.Task(prompt=f"p{n}") for n in range(500)]
    async with connect(Helpdesk()) as tools:
        context = RunContext(tools=tools, verifier=out_of_order, limits=sdk.Limits(), concurrency=4)
        engine = context.engine(ScriptedAgent(["hello"]))
        with pytest.raises(ToolbakeError, match=r"none of 16 rollouts could be scored.*out of order"):
            await measure(engine, tasks, context, stage="untrained")
    assert len(judged) < 40
