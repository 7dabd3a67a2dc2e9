"""`toolbake tools`: every tool as the model will see it, what it costs, and what the model will not see."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcp_bridge.safe_text import aligned, one_line, plural, visible

from ...errors import ModelError
from ..options import Command, ConnectTimeout, HandlersName, LocalModel, Tools, opt

if TYPE_CHECKING:
    from mcp_bridge.records import LeftOut, Tool, WorldKind
    from mcp_bridge.sessions.handlers import Handlers

    from ...policies.rendering import ChatRenderer

AsJson = Annotated[bool, opt("--json", "Print all of it as one JSON object, for programs.")]


def tools(
    tools: Tools = None,
    *,
    command: Command = None,
    model: LocalModel = None,
    handlers: HandlersName = None,
    connect_timeout: ConnectTimeout = 120.0,
    json: AsJson = False,
) -> None:
    """List tools as a model will see them, with what each costs in tokens.

    Each tool is shown with its arguments, its description and what its server says of its behaviour. Tools are part
    of every prompt: the cost is counted with the model's own tokenizer and chat template, so that you see which
    descriptions are worth shortening. A table at the end says where each tool is from, which ones training refuses,
    and what the options of the servers leave out. Another says of each source what world a rollout gets, whether it
    begins fresh, takes a task's setup and can tell its state, and whether calls are real.

    Examples:
      toolbake tools mcp.json
      toolbake tools mcp.json --json
      toolbake tools --command 'python server.py' --model Qwen/Qwen3-4B
    """
    from mcp_bridge.extras import missing_modules

    from ...process import printing_to_stderr
    from ...progress import Console
    from ..sources import load_handlers, tool_source

    source, asked = tool_source(tools, command), load_handlers(handlers)
    with printing_to_stderr():
        listing = listing_of(source, asked, connect_timeout)
    name = model or "the embedded SmolLM2-135M-Instruct"
    if missing_modules("serve"):
        costs = None
        Console().say("tokens are not counted: that needs toolbake[serve] (pip install 'toolbake[serve]')")
    else:
        Console().say(f"counting tokens for {name}")
        costs = count_tokens(open_renderer(model), listing.tools)
    if json:
        typer.echo(as_json(listing, costs, model=name.removeprefix("the embedded ")))
        return
    for tool in listing.tools:
        typer.echo(describe_tool(tool, costs.by_tool[tool.name] if costs else None))
        typer.echo()
    typer.echo(as_table(listing, costs))
    typer.echo()
    count = len(listing.tools)
    counted = f", {costs.total} tokens of every prompt" if costs else ""
    around = f", {costs.around} of them for the words around the tools" if costs and costs.around > 0 else ""
    typer.echo(f"{count} {plural(count, 'tool')}{counted}{around}")


# ---------------------------------------------------------------------------------------------------------------------

_LONGEST_SOURCE = 40
_KINDS = {
    "copy": "a copy of the sandbox or twin",
    "control": "a world of its own in the server (control tools)",
    "process": "a process of its own",
    "session": "a session of its own",
    "shared": "the same as all others",
    "unknown": "what the source gives",
}
_FOLDER = "a process and a folder of its own"


@dataclass(frozen=True)
class Listing:
    """The tools of a source, as `mcp_bridge.connect` gives them."""

    tools: Sequence[Tool]
    left_out: Sequence[LeftOut]
    live_destructive: frozenset[str]
    """Names of tools that training refuses."""
    worlds: Sequence[WorldKind] = ()
    """What each rollout gets of each source."""


def listing_of(source: Any, handlers: Handlers | None = None, connect_timeout_s: float = 120.0) -> Listing:
    """Connect, look, and leave. `handlers`: as in training; some servers offer more tools to clients that they can ask.

    Raises `mcp_bridge.SourceError`.
    """
    import anyio

    from ...connecting import connect

    async def ask() -> Listing:
        async with connect(source, connect_timeout_s=connect_timeout_s, handlers=handlers) as toolset:
            live = frozenset(tool.name for tool in toolset.live_destructive)
            return Listing(toolset.tools, toolset.left_out, live, toolset.worlds)

    return anyio.run(ask)


def as_table(listing: Listing, costs: TokenCosts | None) -> str:
    """A line for each tool: name, source, behaviour, tokens where they were counted; then what each rollout gets of
    each source, and what is left out, and why."""
    rows = [("tool", "from", "behaviour", "tokens")]
    rows += [
        (
            f"{tool.name} ({tool.name_at_source} there)" if tool.name_at_source else tool.name,
            _short(tool.source),
            _behaviour(tool, listing),
            str(costs.by_tool[tool.name]) if costs else "?",
        )
        for tool in listing.tools
    ]
    lines = _aligned(rows, numbers=True)
    lines += ["", "Each rollout has:"]
    lines += _aligned([_WORLD_HEAD, *(_world(one, costs) for one in listing.worlds)], numbers=True)
    if listing.left_out:
        lines += ["", "Left out:"]
        lines += _aligned([(one.tool, _short(one.source), one.reason) for one in listing.left_out], numbers=False)
    return "\n".join(lines)


def as_json(listing: Listing, costs: TokenCosts | None, *, model: str) -> str:
    """Everything the table and the descriptions say, for programs."""
    return json.dumps(
        {
            "model": model,
            "tokens": {"total": costs.total, "around": costs.around} if costs else None,
            "tools": [
                {
                    "name": tool.name,
                    "name_at_source": tool.name_at_source or tool.name,
                    "source": tool.source,
                    "description": tool.description,
                    "input_schema": tool.input_schema,
                    "annotations": tool.annotations.model_dump(exclude_none=True),
                    "refused_in_training": tool.name in listing.live_destructive,
                    "tokens": costs.by_tool[tool.name] if costs else None,
                }
                for tool in listing.tools
            ],
            "worlds": [one.model_dump() for one in listing.worlds],
            "left_out": [one.model_dump() for one in listing.left_out],
        },
        indent=2,
        ensure_ascii=False,
    )


def _short(source: str) -> str:
    """The name of a source without its command or URL."""
    name = source.partition(" (")[0]
    return name if len(name) <= _LONGEST_SOURCE else f"...{name[3 - _LONGEST_SOURCE :]}"


_WORLD_HEAD = ("from", "world", "begins", "takes a setup", "tells its state", "live", "tokens")


def _world(world: WorldKind, costs: TokenCosts | None) -> tuple[str, ...]:
    live, count = len(world.live_tools), len(world.tools)
    return (
        _short(world.source),
        _FOLDER if world.has_folder else _KINDS[world.kind],
        _freshness(world),
        "yes" if world.can_setup else "no",
        "yes" if world.has_state else "no",
        "no" if not live else "yes" if live == count else f"{live} of {count} tools",
        str(sum(costs.by_tool[name] for name in world.tools)) if costs else "?",
    )


def _freshness(world: WorldKind) -> str:
    if world.is_fresh is None and world.shares:
        return f"fresh if it keeps no state in what all share: {'; '.join(world.shares)}"
    return {True: "fresh", False: "not fresh: all share its state", None: "fresh if it keeps no state elsewhere"}[
        world.is_fresh
    ]


def _behaviour(tool: Tool, listing: Listing) -> str:
    says = tool.annotations
    if says.read_only:
        return "read-only"
    if tool.name in listing.live_destructive:
        return "destructive and live: refused in training"
    words = ["destructive"] if says.destructive else ["changes"] if says.read_only is False else ["not said"]
    return ", ".join([*words, "idempotent"] if says.idempotent else words)


def _aligned(rows: Sequence[Sequence[str]], *, numbers: bool) -> list[str]:
    """Columns side by side, the last to the right where it holds numbers. What servers write is made harmless."""
    clean = [[one_line(cell) for cell in row] for row in rows]
    return ["  ".join(cells).rstrip() for cells in aligned(clean, left_columns=len(clean[0]) - numbers)]


# ---------------------------------------------------------------------------------------------------------------------


def describe_tool(tool: Tool, tokens: int | None) -> str:
    """The tool as text for a terminal. What servers write is made harmless: control characters are shown."""
    from mcp_bridge.toolsets.tool_text import behaviour, properties, signature

    lines = [one_line(signature(tool)) + ("" if tokens is None else f"  [{tokens} tokens]")]
    lines += [f"    {line}" for line in visible(tool.description).strip().splitlines()]
    for name, schema in properties(tool).items():
        described = schema.get("description") if isinstance(schema, Mapping) else None
        if described:
            lines.append(f"    {one_line(name)}: {one_line(str(described))}")
    lines.append(f"    ({behaviour(tool.annotations)})")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenCosts:
    """Tokens of a prompt that are there because of the tools."""

    total: int
    by_tool: dict[str, int]
    """Each tool's own share: the prompt with the tool between its neighbours, less that of the neighbours alone."""

    @property
    def around(self) -> int:
        """What the template says around them, once, whatever their number."""
        return self.total - sum(self.by_tool.values())


def count_tokens(renderer: ChatRenderer, tools: Sequence[Tool]) -> TokenCosts:
    """The cost of `tools`. Raises `ModelError` where the template cannot show tools.

    Templates write tools one after the other, so the neighbours tell as much of a tool as all others would; and a
    large API, with each of its hundreds of tools taken out of the whole prompt in turn, would take many minutes.
    """
    from ...records import Message

    opening = [Message(role="user", content="Hello")]

    def length(shown: Sequence[Tool]) -> int:
        return len(renderer.start(opening, shown))

    whole = length(tools)
    by_tool = {}
    for place, tool in enumerate(tools):
        before, after = tools[max(place - 1, 0) : place], tools[place + 1 : place + 2]
        by_tool[tool.name] = length([*before, tool, *after]) - length([*before, *after])
    if len(tools) == 1:  # without it there is no list of tools at all, so twice the tool tells its own share
        twin = tools[0].model_copy(update={"name": tools[0].name + "_"})
        by_tool = {tools[0].name: length([tools[0], twin]) - length([twin])}
    return TokenCosts(total=whole - length([]), by_tool=by_tool)


def open_renderer(model: str | None) -> ChatRenderer:
    """The renderer of a model; its weights are not loaded. Raises `ModelError`."""
    from mcp_bridge.extras import require_extra

    from ...policies.rendering import make_renderer

    require_extra("serve", "counting tokens", ModelError)

    return make_renderer(_open_tokenizer(model))


def _open_tokenizer(model: str | None) -> Any:
    if model is None:
        # Its class is known. To find that of another, transformers imports torch, which takes seconds.
        from transformers import PreTrainedTokenizerFast

        from ...policies.models.smollm2 import embedded_tokenizer_folder

        return PreTrainedTokenizerFast.from_pretrained(str(embedded_tokenizer_folder()))
    from transformers import AutoTokenizer

    from ...policies.models.loading import from_pretrained, require_place

    require_place(model)
    return from_pretrained(AutoTokenizer, model, model, what="the tokenizer of the model")
