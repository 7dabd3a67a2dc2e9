"""`sdk.evaluate` of several policies: names, conditions, samples, prices, splits, and the folder they are kept in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sdk
from mcp_bridge.records import Tool
from sdk.errors import ConfigError, PolicyFailure, RunFolderError
from sdk.evaluation.conditions import Price, cost_of
from sdk.evaluation.faults import Fault
from sdk.evaluation.report import report_of
from sdk.policies.endpoint import EndpointAgent
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import ByteRenderer, ScriptedAgent, ScriptedPolicy
from sdk.policies.token_agent import TokenAgent
from sdk.policies.tool_prompt import shown_tools, with_tool_prompt
from sdk.traces import RunFolder

TASKS = [
    {
        "id": f"t{n}",
        "prompt": f"Where is order {n}?",
        "expected": {"answer": "shipped", "calls": [{"name": "get_order", "arguments": {"order_id": str(n)}}]},
        "family": f"f{n // 2}",
        "tags": {"split": "validation" if n < 2 else "heldout", "kind": "even" if n % 2 == 0 else "odd"},
    }
    for n in range(6)
]


def get_order(order_id: str) -> str:
    """Read an order."""
    return "shipped"


def says_shipped(rollout: sdk.Rollout) -> bool:
    return "shipped" in rollout.answer


def knowing(*orders: int, name: str = "scripted", heard: list[str] | None = None) -> ScriptedAgent:
    """An agent that reads the orders it knows and gives up on the others."""

    def reply(messages: list[sdk.Message], seed: int) -> Any:
        if heard is not None:
            heard.append(messages[0].content)
        number = messages[0].content.rpartition(" ")[2].rstrip("?")
        if int(number) not in orders:
            return "I do not know."
        if len(messages) > 1:
            return "It is shipped."
        return sdk.ToolCall(id="", name="get_order", arguments={"order_id": number})

    return ScriptedAgent(reply, name)


def files_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


async def compared(**options: Any) -> sdk.Report:
    models = {"large": knowing(0, 1, 2), "small": knowing(0, 1, 2, 3, 4), "none": knowing()}
    given = {"models": models, **options}
    return await sdk.evaluate_async([get_order], TASKS, says_shipped, **given)


async def test_each_policy_is_compared_with_the_baseline_on_the_same_tasks() -> None:
    report = await compared()
    assert {name: c.success.interval.estimate for name, c in report.conditions.items() if c.success} == pytest.approx(
        {"large": 0.5, "small": 5 / 6, "none": 0.0}
    )
    assert [(c.first, c.second, c.gained, c.lost, c.families) for c in report.comparisons] == [
        ("large", "small", 2, 0, 3),
        ("large", "none", 0, 3, 3),
    ]
    # Three families of two tasks; gained: one of the second, one of the third. Four ways to flip signs, two as far.
    assert report.comparisons[0].p_value == 0.5
    assert report.comparisons[0].p_holm == 1.0
    assert report.run["model"] == "large, small, none"
    assert [g.kind for g in report.errors["small"].groups] == ["gave_up"]
    assert report.errors["small"].changes["gave_up"].fixed == 2

    report = await compared(baseline="none")
    assert [(c.first, c.second) for c in report.comparisons] == [("none", "large"), ("none", "small")]


async def test_tasks_are_clustered_by_a_tag_where_it_is_asked_for() -> None:
    by_tag = (await compared(cluster_by="kind")).conditions["large"].success
    by_family = (await compared()).conditions["large"].success
    assert by_tag is not None
    assert by_family is not None
    assert (by_tag.families, by_family.families) == (2, 3)
    with pytest.raises(ConfigError, match=r"cluster_by is 'size', which no task has as a tag; give 'family' or one of"):
        await compared(cluster_by="size")


async def test_only_tasks_of_the_split_are_measured() -> None:
    report = await compared(split="validation")
    assert {c.success.tasks for c in report.conditions.values() if c.success} == {2}
    with pytest.raises(ConfigError, match=r"none of 6 tasks has .* the tasks have heldout, validation"):
        await compared(split="train")


async def test_costs_are_what_the_tokens_cost_at_the_users_prices() -> None:
    heard: list[str] = []
    report = await compared(models={"a": knowing(0, heard=heard), "b": knowing()}, prices={"a": (2.0, 8.0)})
    cost = report.conditions["a"].cost
    tokens = report.conditions["a"].prompt_tokens, report.conditions["a"].sampled_tokens
    assert cost is not None
    assert tokens[0] is not None
    assert tokens[1] is not None
    assert len(heard) == 7  # two turns for order 0, one for the others
    assert tokens[0].mean > 100  # the tools and the question, again in the second turn
    assert cost.per_rollout == pytest.approx((2 * tokens[0].mean + 8 * tokens[1].mean) / 1e6)
    assert cost.total == pytest.approx(6 * cost.per_rollout)
    assert cost.per_success == pytest.approx(cost.total)  # one success
    assert report.conditions["b"].cost is None
    assert "cost of 1 000 successes" in report.markdown()


def test_a_price_is_that_of_tokens_in_and_out() -> None:
    rollout = sdk.Rollout(id="r", task=sdk.Task(prompt="p"), prompt_tokens=1_500_000, sampled_tokens=250_000)
    assert Price(input=2, output=8).of(rollout) == pytest.approx(3.0 + 2.0)


def test_the_cost_of_rollouts_whose_tokens_nobody_counted_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    rollout = sdk.Rollout(id="r", task=sdk.Task(prompt="p"), turns=1)
    for uncounted in (rollout, rollout.model_copy(update={"sampled_tokens": 7})):
        assert cost_of([uncounted], 0, Price(input=2, output=8)) is None
        assert "the tokens of 1 rollouts, such as 'r', were not counted" in caplog.text
    assert cost_of([rollout.model_copy(update={"sampled_tokens": 7})], 0, Price(input=0, output=8)) is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": knowing()}, "both model and models are given"),
        ({"models": []}, "models is empty"),
        ({"models": "folder"}, "models is a str; give a mapping"),
        ({"models": {"": knowing()}}, "models has the name ''"),
        ({"models": [knowing(), knowing()]}, "two of models are called 'scripted'; give a mapping"),
        ({"baseline": "medium"}, "`baseline` is 'medium', which is not evaluated; the names are large, small, none"),
        ({"models": None, "model": knowing(), "baseline": "x"}, "`baseline` is 'x', which is not evaluated"),
        ({"tool_prompts": ["full", "short"]}, "'short' is not one; give one or more of full, names, none"),
        ({"tool_prompts": ["full", "full"]}, "each once"),
        ({"samples": 0}, "samples is 0; give a whole number from 1"),
        ({"samples": 1.5}, r"samples is 1\.5; give a whole number from 1"),
        ({"concurrency": 0}, "concurrency is 0; give a whole number from 1"),
        ({"concurrency": "8"}, "concurrency is '8'; give a whole number from 1"),
        ({"concurrency": True}, "concurrency is True"),
        ({"temperature": "0"}, "temperature is '0'; give a finite number from 0"),
        ({"seed": 1.5}, r"seed is 1\.5; give a whole number"),
        ({"success_threshold": "1"}, "success_threshold is '1'; give a finite number"),
        ({"models": {"m": None}, "samples": 4}, "at temperature 0 the model 'm' answers the same every time"),
        ({"prices": {"medium": (1, 2)}}, "there is a price for 'medium', which is not evaluated"),
        ({"prices": {"large": 3}}, r"the price of 'large' is 3; give \(input, output\)"),
        ({"prices": {"large": (1, -2)}}, r"the price of 'large' is \(1, -2\)"),
        ({"models": {"m": "http://host/v1"}}, "is a URL without a model name"),
    ],
)
async def test_what_cannot_be_compared_is_refused_with_the_fix(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await compared(**options)


async def test_policies_in_a_list_are_called_by_their_own_names() -> None:
    report = await compared(models=[knowing(0, name="one"), knowing(1, name="two")])
    assert list(report.conditions) == ["one", "two"]


# ---- several tries


async def test_several_samples_give_pass_at_k_and_pass_hat_k() -> None:
    def half_the_time(messages: list[sdk.Message], seed: int) -> str:
        return "It is shipped." if seed % 2 else "I do not know."

    report = await sdk.evaluate_async(
        [get_order], TASKS, says_shipped, model=ScriptedAgent(half_the_time), samples=4, temperature=1.0
    )
    condition = report.conditions["scripted"]
    assert condition.rollouts == 24
    assert [rate.k for rate in condition.pass_at_k] == [1, 2, 4]
    at, hat = ([rate.interval.estimate for rate in rates] for rates in (condition.pass_at_k, condition.pass_hat_k))
    assert condition.success is not None
    assert at[0] == pytest.approx(condition.success.interval.estimate)
    assert hat[0] == pytest.approx(at[0])
    assert at[0] < at[1] < at[2]
    assert hat[0] > hat[1] > hat[2]
    assert "## Several tries" in report.markdown()


# ---- how much of the tools is shown


TOOL = Tool(name="get_order", description="Read an order.", input_schema={"type": "object", "properties": {"id": {}}})


def test_a_shorter_tool_prompt_shows_names_or_nothing() -> None:
    assert shown_tools([TOOL], "full") == [TOOL]
    (bare,) = shown_tools([TOOL], "names")
    assert (bare.name, bare.description, bare.input_schema) == ("get_order", "", {"type": "object", "properties": {}})
    assert shown_tools([TOOL], "none") == []


async def test_a_policy_without_tools_in_its_prompt_still_calls_them() -> None:
    call = '<tool_call>{"name": "get_order", "arguments": {"order_id": "1"}}</tool_call>'
    prompts = {}
    for length in ("full", "names", "none"):
        policy = ScriptedPolicy([[*call.encode(), 256]])
        agent = with_tool_prompt(TokenAgent(policy, ByteRenderer()), length)  # type: ignore[arg-type]
        talk = agent.start([TOOL], sampling=Sampling(), seed=0)
        reply = await talk.reply([sdk.Message(role="user", content="Where?")])
        assert [made.name for made in reply.message.tool_calls] == ["get_order"]
        prompts[length] = ByteRenderer().decode(policy.requests[0])
    assert "Read an order" in prompts["full"]
    assert "get_order" in prompts["names"]
    assert "Read an order" not in prompts["names"]
    assert "get_order" not in prompts["none"]


def test_an_endpoint_without_tools_would_read_no_calls_and_is_refused() -> None:
    with pytest.raises(ConfigError, match="reads no calls where no tools are sent; use 'names'"):
        with_tool_prompt(EndpointAgent("http://127.0.0.1:9/v1", "m"), "none")


async def test_an_evaluation_without_tools_of_an_endpoint_is_refused_before_another_policy_is_asked() -> None:
    asked = Asked(["Hello."])
    models: dict[str, Any] = {"first": asked, "second": ("http://127.0.0.1:9/v1", "m")}
    with pytest.raises(ConfigError, match="'m' behind an endpoint: it reads no calls where no tools are sent"):
        await sdk.evaluate_async([get_order], ["Hi"], says_shipped, models=models, tool_prompts=["full", "none"])
    assert not asked.started


class Asked(ScriptedAgent):
    """A scripted agent that knows whether it was asked anything."""

    started = False

    def start(self, *args: Any, **options: Any) -> Any:
        self.started = True
        return super().start(*args, **options)


async def test_each_length_of_the_tool_prompt_is_a_condition_compared_with_the_first() -> None:
    report = await compared(models={"large": knowing(0), "small": knowing(1)}, tool_prompts=["full", "names"])
    assert list(report.conditions) == [
        *("large, full schemas", "large, names only"),
        *("small, full schemas", "small, names only"),
    ]
    assert [(c.first, c.second) for c in report.comparisons] == [
        ("large, full schemas", "small, full schemas"),
        ("large, full schemas", "large, names only"),
        ("small, full schemas", "small, names only"),
    ]
    prompts = [c.prompt_tokens.mean for c in report.conditions.values() if c.prompt_tokens]
    assert prompts[0] > prompts[1]
    assert prompts[2] > prompts[3]


# ---- the folder


async def test_a_comparison_that_was_cut_off_goes_on_without_asking_again(tmp_path: Path) -> None:
    heard: list[str] = []

    def down(messages: list[sdk.Message], seed: int) -> str:
        raise PolicyFailure("the endpoint answered 503")

    models = {"first": knowing(0, heard=heard), "second": ScriptedAgent(down)}
    with pytest.raises(sdk.ToolbakeError, match="none of 6 rollouts could be scored"):
        await compared(models=models, output_dir=tmp_path)
    asked, models["second"] = len(heard), ScriptedAgent(["It is shipped."])
    report = await compared(models=models, output_dir=tmp_path)
    assert len(heard) == asked
    assert [c.scored for c in report.conditions.values()] == [6, 6]
    assert {"evaluation_01_first", "evaluation_02_second"} <= set(RunFolder.open_to_read(tmp_path).rollout_stages())
    for changed in ({"models": {"first": models["first"]}}, {"samples": 2}):
        with pytest.raises(RunFolderError, match="holds another run"):
            await compared(**{"models": models, **changed}, output_dir=tmp_path)


class BrokenJudge:
    """For one of two tasks."""

    async def judge(self, rollout: sdk.Rollout, found: Fault, /) -> Fault | None:
        if rollout.task.id == "t0":
            raise RuntimeError("the endpoint is down")
        return Fault(kind="verifier_doubt", turn=1, detail="it is right")


async def test_a_report_that_is_made_again_tells_where_its_judge_failed(tmp_path: Path) -> None:
    wrong = ScriptedAgent(["No idea."])
    first = await sdk.evaluate_async(
        [get_order], TASKS[:2], says_shipped, model=wrong, fault_judge=BrokenJudge(), output_dir=tmp_path
    )
    again = report_of(tmp_path)
    assert first.errors["scripted"].judge_errors == 1
    assert again.errors["scripted"] == first.errors["scripted"]


async def test_the_report_is_made_again_from_the_folder_with_other_prices_and_another_baseline(tmp_path: Path) -> None:
    first = await compared(output_dir=tmp_path, prices={"large": (1.0, 1.0)})
    assert {"success.png", "success_and_cost.png", "errors.png"} <= files_in(tmp_path)
    assert "](success.png)" in (tmp_path / "report.md").read_text()
    again = report_of(tmp_path)
    assert again.model_dump(exclude={"examples"}) == first.model_dump(exclude={"examples"})
    other = report_of(tmp_path, prices={"small": (2.0, 0.0)}, baseline="none", cluster_by="kind", success_threshold=0.0)
    assert [(c.first, c.second) for c in other.comparisons] == [("none", "large"), ("none", "small")]
    assert {name for name, c in other.conditions.items() if c.cost} == {"large", "small"}
    assert other.conditions["none"].success is not None
    assert other.conditions["none"].success.interval.estimate == 1.0
    for wrong in ({"baseline": "x"}, {"prices": {"x": (1, 1)}}, {"cluster_by": "x"}):
        with pytest.raises(ConfigError, match="'x'"):
            report_of(tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(RunFolderError, match="holds no run"):
        report_of(tmp_path / "rollouts")


async def test_runs_of_several_seeds_are_one_report_in_which_each_is_a_try_at_the_same_tasks(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    first = await compared(output_dir=places[0])
    models = {"large": knowing(4), "small": knowing(0, 5), "none": knowing(2)}
    second = await compared(output_dir=places[1], models=models)
    both = report_of(*places, baseline="none")
    for name, condition in both.conditions.items():
        alone = [report.conditions[name].success for report in (first, second)]
        estimates = [one.interval.estimate for one in alone if one is not None]
        assert condition.success is not None
        assert condition.success.interval.estimate == pytest.approx(sum(estimates) / 2)
        assert condition.success.rollouts == 12
        assert condition.success.tasks == 6
        assert [both.run["runs"][str(place)][name] for place in places] == [f"{100 * one:.1f} %" for one in estimates]
    assert both.errors["none"].groups
    assert "| runs." in both.markdown()
    with pytest.raises(ConfigError, match="named twice"):
        report_of(places[0], places[0] / ".." / "one")
    await compared(output_dir=tmp_path / "three", models={"large": knowing()})
    with pytest.raises(ConfigError, match=r"three has the conditions large, and .*one has .*; give runs of the same"):
        report_of(places[0], tmp_path / "three")
    others = [{**TASKS[0], "expected": {"answer": "lost"}}, *TASKS[1:]]
    await sdk.evaluate_async([get_order], others, says_shipped, models=models, output_dir=tmp_path / "four")
    with pytest.raises(ConfigError, match=r"not measured on the same tasks: 't0' .*differs"):
        report_of(places[0], tmp_path / "four")


async def test_a_report_is_not_made_again_of_fewer_rollouts_than_the_run_had(tmp_path: Path) -> None:
    await compared(output_dir=tmp_path)
    file = tmp_path / "rollouts" / "evaluation_01_large.jsonl"
    whole = file.read_bytes()
    for left, count in ((whole[:-20], 5), (b"", 0)):
        file.write_bytes(left)
        with pytest.raises(RunFolderError, match=f"has {count} rollouts of 'large', and its report was made of 6"):
            report_of(tmp_path)
    file.unlink()
    with pytest.raises(RunFolderError, match="has 0 rollouts of 'large'"):
        report_of(tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pairs": [["large", "nobody"]]}, "a pair names 'nobody'"),
        ({"stages": {}}, "stages: "),
        ({"tools": [{}]}, "tools.0.name: "),
        ({"policies": None}, "policies: "),
    ],
)
async def test_damaged_notes_of_a_run_are_named_with_their_file(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    await compared(output_dir=tmp_path)
    file = tmp_path / "stages" / "conditions.json"
    noted = json.loads(file.read_bytes())
    file.write_text(json.dumps({**noted, "data": {**noted["data"], **changed}}))
    with pytest.raises(RunFolderError, match=r"conditions\.json is damaged \(.*" + said):
        report_of(tmp_path)


async def test_pictures_of_an_earlier_report_do_not_outlive_it(tmp_path: Path) -> None:
    (await compared()).draw(tmp_path)
    assert (tmp_path / "errors.png").stat().st_size > 10_000
    good = {"a": knowing(*range(6)), "b": knowing(*range(6))}
    drawn = (await compared(models=good)).draw(tmp_path)
    assert [path.name for path in drawn] == ["success.png", "success_and_cost.png"]
    assert files_in(tmp_path) == {"success.png", "success_and_cost.png"}
