"""What tools cost in tokens of every prompt, under a model's own tokenizer and template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ModelError

if TYPE_CHECKING:
    from mcp_bridge.records import Tool

    from ..policies.rendering import ChatRenderer


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
    from ..records import Message

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

    from ..policies.rendering import make_renderer

    require_extra("serve", "counting tokens", ModelError)

    return make_renderer(_open_tokenizer(model))


def _open_tokenizer(model: str | None) -> Any:
    if model is None:
        # Its class is known. To find that of another, transformers imports torch, which takes seconds.
        from transformers import PreTrainedTokenizerFast

        from ..policies.models.smollm2 import embedded_tokenizer_folder

        return PreTrainedTokenizerFast.from_pretrained(str(embedded_tokenizer_folder()))
    from transformers import AutoTokenizer

    from ..policies.models.loading import from_pretrained, require_place

    require_place(model)
    return from_pretrained(AutoTokenizer, model, model, what="the tokenizer of the model")
