"""A setup may show fewer tools than the source has; the policy, the record and the demonstrations then see those."""

from __future__ import annotations

import mcp_bridge
import sdk
from sandboxes.objects import ObjectTwin
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import ByteRenderer, ScriptedAgent
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job
from sdk.trainer.demonstrations import demonstration_rows


class Desk:
    def read(self) -> str:
        """Read the order."""
        return "an order"

    def cancel(self) -> str:
        """Cancel the order."""
        return "cancelled"


class TwoStages(ObjectTwin):
    def hidden(self, scenario: str) -> tuple[str, ...]:
        return ("cancel",) if scenario == "before" else ()


async def test_the_policy_and_the_demonstration_see_the_tools_that_the_world_shows() -> None:
    source = TwoStages(Desk, scenarios=("default", "before"))
    calls = [sdk.ToolCall(id="1", name="read"), sdk.ToolCall(id="2", name="cancel")]
    jobs = [
        Job(id=scenario, task=sdk.Task(prompt="Cancel it.", setup={"scenario": scenario}), seed=0)
        for scenario in source.scenarios
    ]
    async with mcp_bridge.connect(source) as toolset:
        engine = RolloutEngine(agent=ScriptedAgent([*calls, "Done."]), source=toolset, verifier=lambda _: 1.0)
        every, fewer = await engine.run(jobs, sampling=Sampling())
        tools = toolset.tools
    assert (every.shown_tools, fewer.shown_tools) == (None, ["read"])
    assert [one.result.text for one in fewer.calls] == ["an order", "cancelled"]
    renderer = ByteRenderer()
    for rollout, shown in ((every, ["read", "cancel"]), (fewer, ["read"])):
        assert [tool.name for tool in rollout.tools_of(tools)] == shown
        (row,) = demonstration_rows([rollout], renderer, tools)
        for prompt in (row.prompt_ids, rollout.rows[0].prompt_ids):
            text = renderer.decode(prompt)
            assert ['"name": "cancel"' in text, '"name": "read"' in text] == ["cancel" in shown, True]
    assert sdk.Rollout.model_validate_json(fewer.model_dump_json()).shown_tools == ["read"]
