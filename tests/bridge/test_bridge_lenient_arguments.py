"""Arguments that the schema does not allow and the server takes: passed on to live servers, refused for simulations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from other_environments import python_of
from pydantic import BaseModel, ConfigDict, ValidationError

import mcp_bridge
from sandboxes.helpdesk import Helpdesk
from sandboxes.recorded import RecordedTwin, record


class Screenshot(BaseModel):
    """As zod publishes the arguments of many servers: what has a default is listed as required."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    name: str
    scale: str = "css"
    width: int = 800


def screenshots() -> Server[Any]:
    tool = types.Tool(name="take", input_schema=Screenshot.model_json_schema(mode="serialization"))

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool])

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            text, is_error = Screenshot.model_validate(params.arguments).model_dump_json(), False
        except ValidationError as error:
            text, is_error = str(error), True
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)

    return Server("screenshots", on_list_tools=list_tools, on_call_tool=call_tool)


def converting(**options: Any) -> dict[str, Any]:
    path = Path(__file__).parent / "servers" / "converting.py"
    options = {"connect_timeout_s": 60, **options}
    return {"mcpServers": {"it": {"command": str(python_of("fastmcp")), "args": [str(path)], "toolbake": options}}}


async def test_a_live_server_gets_what_it_is_likely_to_convert() -> None:
    async with mcp_bridge.connect(converting()) as toolset:
        taken = await toolset.call("think", {"number": "3", "is_last": "true"})
        assert taken.text == "(3, True, None)"
        assert (await toolset.call("think", {"number": 3, "is_last": 1})).text == "(3, True, None)"
        for judged, why in (("is_last", "valid boolean"), ("tags", "valid list")):
            value = None if judged == "is_last" else '["a"]'
            result = await toolset.call("think", {"number": 3, judged: value})
            assert (result.error_kind, why in result.text) == ("tool_error", True), "the server judges what it was sent"
        for wrong in ({"number": "three"}, {"number": 3, "tags": "a"}, {"number": 3, "last": True}, {}):
            result = await toolset.call("think", wrong)
            assert result.error_kind == "invalid_arguments", wrong
            assert "nothing was called" in result.text


async def test_lists_and_objects_may_come_as_text() -> None:
    server = MCPServer("reading")

    @server.tool()
    def add(numbers: list[int], options: dict[str, int]) -> int:
        return sum(numbers) + options["more"]

    async with mcp_bridge.connect(server) as toolset:
        assert (await toolset.call("add", {"numbers": "[1, 2]", "options": '{"more": 4}'})).text == "7"
        for wrong in ("[1, 2", '{"a": 1}', "7"):
            refused = await toolset.call("add", {"numbers": wrong, "options": {}})
            assert refused.error_kind == "invalid_arguments", wrong


async def test_a_server_can_be_kept_to_its_schemas() -> None:
    async with mcp_bridge.connect(converting(arguments="strict")) as toolset:
        refused = await toolset.call("think", {"number": "3"})
        assert refused.error_kind == "invalid_arguments"
        assert 'number is "3"; expected integer' in refused.text
    with pytest.raises(mcp_bridge.SourceError, match="arguments is 'loose'; the choices are 'lenient', 'strict'"):
        async with mcp_bridge.connect(converting(arguments="loose")):
            pass


async def test_a_required_argument_with_a_default_may_be_left_out() -> None:
    async with mcp_bridge.connect(screenshots()) as toolset:
        assert toolset.tools[0].input_schema["required"] == ["name", "scale", "width"], "shown as published"
        assert (await toolset.call("take", {"name": "a"})).text == '{"name":"a","scale":"css","width":800}'
        missing = await toolset.call("take", {})
        assert missing.error_kind == "invalid_arguments"
        assert "missing required argument 'name'" in missing.text
        assert "name (string, required), scale (string, optional)" in missing.text


async def test_simulated_backends_are_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp_bridge import publish

    async with mcp_bridge.connect(Helpdesk(seed=7)) as toolset:
        assert (await toolset.call("get_policy", {"topic": 7})).error_kind == "invalid_arguments"
    async with mcp_bridge.connect(publish(Helpdesk(seed=7), control=True)) as toolset:
        refused = await toolset.call("get_policy", {"topic": 7})
        assert "nothing was called" in refused.text


async def test_a_recorded_twin_takes_what_the_real_server_took(tmp_path: Path) -> None:
    async with mcp_bridge.connect(screenshots()) as toolset:
        async with record(toolset, tmp_path / "shots.jsonl").open_world("one") as world:
            real = [await world.call("take", {"name": "a"}), await world.call("take", {"name": "a", "width": "9"})]
    async with mcp_bridge.connect(RecordedTwin(tmp_path / "shots.jsonl", reads=["take"])) as twin:
        assert [
            (await twin.call("take", {"name": "a"})).text,
            (await twin.call("take", {"name": "a", "width": "9"})).text,
        ] == [one.text for one in real]
