"""The body of `/v1/chat/completions` and its messages, read strictly: what would have no effect is refused.

Requests in other forms become a `ChatRequest`, too, from which everything is answered.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mcp_bridge.records import Tool
from mcp_bridge.safe_text import strict_json

from ..policies.rendering.call_parsing import UnreadCall, deeper_than, json_kind
from ..records import Message, ToolCall
from .requests import ApiError, bad_request, shown

MOST_MESSAGES = 10_000
MOST_TOOLS = 1024
MOST_TOOL_CHARACTERS = 1_000_000
"""Of the descriptions and schemas of all tools together, written as JSON."""
MOST_VALUES = 200_000
"""Commas and brackets: more than a long context has. The parser takes a microsecond or two for each, in which no other
thread runs."""
MOST_IDS = 1024
"""Of tokens, in one parameter."""
_MOST_LEVELS = 100

Harmless: TypeAlias = Mapping[str, tuple[Any, ...]]
"""Parameters that are not supported, with the values that ask for nothing. null is always one, of any parameter."""
_HARMLESS: Harmless = {
    "functions": ([],),
    "ignore_eos": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "top_k": (-1, 0),
    "verbosity": ("medium",),
}

_LABELS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
"""Parameters that label a request and do not change the answer."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Function(Strict):
    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_off(cls, given: Any) -> Any:
        """Frameworks send marks of their own with a function. Those that are null or false ask for nothing."""
        if not isinstance(given, dict):
            return given
        off = [key for key, value in given.items() if value is None or value is False]
        return {key: value for key, value in given.items() if key in cls.model_fields or key not in off}

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        return self.parameters or {"type": "object", "properties": {}}


class _ToolSpec(Strict):
    type: Literal["function"]
    function: _Function


class _FunctionName(Strict):
    name: str


class _NamedChoice(Strict):
    type: Literal["function"]
    function: _FunctionName


class _StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class _JsonSchema(Strict):
    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class _ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None


class ChatRequest(Strict):
    """A checked request. Defaults are OpenAI's."""

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MOST_MESSAGES)
    tools: Annotated[list[_ToolSpec], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | _NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: _ResponseFormat | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1, le=16)
    seed: int | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MOST_IDS)] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    stop_token_ids: Annotated[list[int], Field(max_length=MOST_IDS)] | None = None

    _places: list[str] | None = None
    """Where each message stands in the client's request, where that has another form."""
    _names: Mapping[str, str] = {}
    """What the client calls these parameters, where it calls them otherwise."""

    def came_as(self, places: list[str], names: Mapping[str, str]) -> Self:
        """Note the form that the client's request had, for errors to name places and parameters of it."""
        self._places, self._names = places, names
        return self

    def called(self, parameter: str) -> str:
        """What the client calls a parameter."""
        return self._names.get(parameter, parameter)

    def read_bias(self, vocabulary: int) -> tuple[tuple[int, float], ...]:
        """What is added to the logits of tokens. Raises `ApiError` for what is not an id of one."""
        bias: dict[int, float] = {}
        for key, amount in (self.logit_bias or {}).items():
            token = int(key) if re.fullmatch("[0-9]{1,9}", key) else vocabulary
            _check_id(token, vocabulary, f"logit_bias has the key {shown(repr(key))}", "logit_bias")
            if token in bias:
                raise bad_request(f"logit_bias has token {token} twice", "logit_bias")
            bias[token] = amount
        return tuple(bias.items())

    def read_stop_ids(self, vocabulary: int) -> list[int]:
        """The tokens that end an answer. Raises `ApiError` for what is not an id of one."""
        for token in self.stop_token_ids or []:
            _check_id(token, vocabulary, f"stop_token_ids has {shown(str(token))}", "stop_token_ids")
        return list(self.stop_token_ids or [])

    @property
    def limit(self) -> int | None:
        """The most new tokens, None where the client leaves it to the server."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def forced_tools(self) -> list[str] | None:
        """The tools of which one must be called, or None where the model may choose."""
        if self.tool_choice == "required":
            return [tool.function.name for tool in self.tools or []]
        return None if self.named_tool is None else [self.named_tool]

    @property
    def named_tool(self) -> str | None:
        """The tool that must be called, once."""
        return self.tool_choice.function.name if isinstance(self.tool_choice, _NamedChoice) else None

    @property
    def content_schema(self) -> dict[str, Any] | None:
        """What the answer must be where `response_format` asks for JSON; None for text."""
        if self.response_format is None or self.response_format.type == "text":
            return None
        asked = self.response_format.json_schema
        return {"type": "object"} if asked is None else asked.schema_ or {}

    def strict_content_schema(self) -> dict[str, Any] | None:
        """The schema of a `response_format` with `strict: true`."""
        asked = self.response_format.json_schema if self.response_format is not None else None
        return self.content_schema if asked is not None and asked.strict else None

    def read_messages(self) -> list[Message]:
        """Raises `ApiError` that names the message's place."""
        places = self._places or [f"messages.{index}" for index in range(len(self.messages))]
        return [read_message(message, at) for message, at in zip(self.messages, places, strict=True)]

    def read_tools(self) -> list[Tool]:
        """The tools that the model may call; none with `tool_choice="none"`."""
        if self.tool_choice == "none":
            return []
        return [
            Tool(name=one.name, description=one.description or "", input_schema=one.schema_of_arguments)
            for one in self._functions
        ]

    def strict_schemas(self) -> dict[str, dict[str, Any]]:
        """What calls of the strict tools must hold against, by the tools' names; none with `tool_choice="none"`."""
        if self.tool_choice == "none":
            return {}
        return {one.name: one.schema_of_arguments for one in self._functions if one.strict}

    @property
    def _functions(self) -> list[_Function]:
        return [tool.function for tool in self.tools or []]


Model = TypeVar("Model", bound=BaseModel)


def read_request(raw: bytes) -> ChatRequest:
    """The checked request in a body. Raises `ApiError` that names the parameter."""
    request = read_body(raw, ChatRequest, _HARMLESS)
    check_together(request)
    return request


def read_body(raw: bytes, model: type[Model], harmless: Harmless) -> Model:
    """A body as a record. Raises `ApiError` that names the parameter."""
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if values > MOST_VALUES:
        raise ApiError(
            413, f"the body has {values} commas and brackets, at most {MOST_VALUES} are read; send a shorter one"
        )
    if not raw.strip():
        raise bad_request("the body is empty; send an object in JSON")
    try:
        body = strict_json(raw)
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    if deeper_than(body, _MOST_LEVELS):
        raise bad_request(
            f"the body has arrays and objects in each other more than {_MOST_LEVELS} levels deep; send a flatter one"
        )
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise bad_request(
            "the body holds half of a surrogate pair (a lone \\ud8xx escape), which is not text"
        ) from error
    if not isinstance(body, dict):
        raise bad_request(f"the body is {json_kind(body)}; send an object")
    try:
        return model.model_validate(_without_harmless(body, list(model.model_fields), harmless))
    except ValidationError as error:
        raise _as_api_error(error) from error


def _without_harmless(body: Mapping[str, Any], known: Sequence[str], harmless: Harmless) -> dict[str, Any]:
    """The body without what asks for nothing. Raises `ApiError` for parameters that ask for what is not there."""
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if name in known:
            kept[name] = value
        elif name in harmless:
            if value is not None and not any(_same(value, fine) for fine in harmless[name]):
                allowed = " or ".join(map(json.dumps, harmless[name] or (None,)))
                raise bad_request(
                    f"{name} is not supported here; leave it out (or send {allowed})", name, "unsupported_parameter"
                )
        elif name not in _LABELS and value is not None:
            near = difflib.get_close_matches(shown(name), known, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise bad_request(
                f"{shown(name)} is not supported; {meant}the parameters are {', '.join(known)}",
                name,
                "unsupported_parameter",
            )
    return kept


def _same(value: Any, fine: Any) -> bool:
    """Equality, with False apart from 0."""
    return bool(value == fine) and isinstance(value, bool) == isinstance(fine, bool)


def _check_id(token: int, vocabulary: int, what: str, param: str) -> None:
    if not 0 <= token < vocabulary:
        raise bad_request(f"{what}, which is not a token id; those of this model are 0 to {vocabulary - 1}", param)


def check_together(request: ChatRequest) -> None:
    """Parameters that are right alone and wrong together."""
    names = [tool.function.name for tool in request.tools or []]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise bad_request(f"two tools have the name {twice[0]!r}; names must differ", "tools")
    size = sum(len(json.dumps(tool.function.model_dump())) for tool in request.tools or [])
    if size > MOST_TOOL_CHARACTERS:
        raise bad_request(
            f"the tools have {size} characters; send at most {MOST_TOOL_CHARACTERS}, in fewer or shorter tools",
            "tools",
        )
    if request.forced_tools is not None and not names:
        raise bad_request("tool_choice asks for a call, but there are no tools", "tool_choice")
    if request.tool_choice != "required":
        for name in request.forced_tools or []:
            if name not in names:
                raise bad_request(
                    f"tool_choice names {shown(repr(name))}; the tools are {shown(', '.join(names), 1000)}",
                    "tool_choice",
                )
    both = request.max_tokens is not None and request.max_completion_tokens is not None
    if both and request.max_tokens != request.max_completion_tokens:
        raise bad_request("max_tokens and max_completion_tokens differ; send one of them", "max_tokens")
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options has an effect only with stream: true", "stream_options")
    form = request.response_format
    if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
        raise bad_request(
            "response_format json_schema is "
            + ("missing" if form.json_schema is None else f"given, and the type is {form.type}")
            + '; send {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}',
            "response_format.json_schema",
        )
    if request.top_logprobs and not request.logprobs:
        raise bad_request("top_logprobs has an effect only with logprobs: true", "top_logprobs")
    if "" in request.stops:
        raise bad_request("stop holds an empty string; leave it out", "stop")


_BRANCH = re.compile("_[A-Z][A-Za-z]+")
"""A class of ours."""


def _as_api_error(error: ValidationError) -> ApiError:
    problem, *others = error.errors()
    branches = [one for one in others if problem["loc"][1:] and one["loc"][:1] == problem["loc"][:1]]
    # Of a union the branch that comes nearest to what was given: the deepest, and not "a string" for a list.
    problem = max([problem, *branches], key=lambda one: (len(one["loc"]), not one["type"].endswith("_type")))
    # A union reports each branch behind the parameter's own path; branches' names are not part of the request.
    path = [p for p in problem["loc"] if isinstance(p, int) or (p.isidentifier() and not _BRANCH.fullmatch(p))]
    param = ".".join(map(str, path)).removesuffix(".str")
    missing = problem["type"] == "missing"
    value = "" if missing else f" is {shown(json.dumps(problem['input'], default=str))}"
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return bad_request(
        f"{shown(param)}{value}: {message}", param, "missing_required_parameter" if missing else "invalid_value"
    )


_REASONING = ("reasoning_content", "reasoning")
"""What we call a reasoning, and what vLLM does."""
_ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_FIELDS = {
    "system": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "thinking_blocks", *_REASONING},
    "tool": {"role", "content", "name", "tool_call_id"},
}
_IGNORED = frozenset(
    {"annotations", "cache_control", "created_at", "id", "is_error", "metadata", "object", "provider_specific_fields"}
    | {"status", "type"}
)
"""What clients send back of an answer or add for other servers: labels of a message, and not part of its content.
"""


def read_message(message: Mapping[str, Any], at: str) -> Message:
    """One message of a request. Raises `ApiError` that names its place, `at`."""
    named = message.get("role")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise bad_request(
            f"{at}.role is {shown(repr(message.get('role')))}; choose from {', '.join(_ROLES)}", f"{at}.role"
        )
    given = {name: value for name, value in message.items() if value is not None}
    for name, value in given.items():
        if name not in _FIELDS[role] | _IGNORED and not adds_nothing(value, given):
            raise bad_request(f"{at}.{shown(name)} is not supported for the role {role}", f"{at}.{name}")
    calls = given.get("tool_calls", [])
    if "content" not in (message if role == "tool" else given) and role != "assistant":
        raise bad_request(f"{at} has no content", f"{at}.content")
    if not isinstance(calls, list):
        raise bad_request(f"{at}.tool_calls is not a list", f"{at}.tool_calls")
    if role == "tool" and not isinstance(given.get("tool_call_id"), str):
        raise bad_request(f"{at} is a tool's result without tool_call_id", f"{at}.tool_call_id")
    for name in ("name", "refusal", *_REASONING):
        if name in given and not isinstance(given[name], str):
            raise bad_request(f"{at}.{name} is not a string", f"{at}.{name}")
    reasoning = [given[name] for name in _REASONING if name in given]
    if len(set(reasoning)) > 1:
        raise bad_request(f"{at} has two reasonings that differ; send one of {', '.join(_REASONING)}", at)
    reasoning = reasoning or _thoughts(given.get("thinking_blocks", []), f"{at}.thinking_blocks")
    # A refusal is what the assistant said in place of an answer, or after it.
    said = [read_text(given.get("content", ""), f"{at}.content"), given.get("refusal", "")]
    return Message(
        role=role,
        content="\n".join(filter(None, said)),
        tool_calls=[_call(call, f"{at}.tool_calls.{index}") for index, call in enumerate(calls)],
        tool_call_id=given.get("tool_call_id"),
        name=given.get("name"),
        reasoning=reasoning[0] if reasoning else None,
    )


def adds_nothing(value: Any, message: Mapping[str, Any]) -> bool:
    """Whether a field is empty, or an object of which every part is empty or stands in the message itself.

    Clients send back what they read of an answer, with fields of their own and of other servers.
    """
    if isinstance(value, Mapping):
        return all(adds_nothing(part, {}) or part == message.get(name) for name, part in value.items())
    return value is None or value is False or value in ("", [])


def _thoughts(blocks: Any, at: str) -> list[str]:
    """The reasoning in blocks of thinking, as other servers give it; of encrypted ones nothing can be read."""
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise bad_request(f"{at} is not a list of blocks", at)
    texts = [block["thinking"] for block in blocks if isinstance(block.get("thinking"), str)]
    return ["".join(texts)] if texts else []


def read_text(content: Any, at: str, kinds: Collection[str] = ("text",)) -> str:
    """A content as text: a string, or a list of parts that are text, of these `kinds`, or a refusal. Line ends
    join parts, as in vLLM."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{at} is {json_kind(content)}; send a string or a list of text parts", at)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else part
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, Mapping) else None
        if kind not in (*kinds, "refusal") or not isinstance(text, str):
            raise bad_request(
                f"{at}.{index} is a part of type {shown(repr(kind))}; only text is supported", f"{at}.{index}"
            )
        texts.append(text)
    return "\n".join(texts)


def _call(call: Any, at: str) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise bad_request(f"{at} is not a call; send {{id, type, function: {{name, arguments}}}}", at)
    if not isinstance(call.get("id"), str):
        raise bad_request(f"{at} has no id", f"{at}.id")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        raise bad_request(f"{at}.function.arguments is not a string; send the arguments as JSON text", f"{at}.function")
    try:
        value = strict_json(arguments or "{}")
    except ValueError:
        value = None
    if isinstance(value, dict) and not deeper_than(value, _MOST_LEVELS):
        return ToolCall(id=call["id"], name=function["name"], arguments=value)
    # The model's own slip in an earlier turn. The history must hold it, or the tool's answer hangs in the air.
    return UnreadCall(
        id=call["id"],
        name=function["name"],
        written=arguments,
        error=f"the arguments are not a JSON object of at most {_MOST_LEVELS} levels: {arguments[:120]}",
    )
