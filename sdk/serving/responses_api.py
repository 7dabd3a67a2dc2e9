"""OpenAI's Responses API. The body of `/v1/responses` is read strictly, as the chat request that asks for the same. Its
answers are one object, or the events of a stream that ends with it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ..policies.rendering.call_parsing import json_kind
from ..records import ToolPrompt
from .chat_request import (
    MOST_MESSAGES,
    MOST_TOOLS,
    ChatRequest,
    Harmless,
    Strict,
    adds_nothing,
    check_together,
    read_body,
    read_text,
)
from .generation import Choice, Generated
from .replies import own_fields, stream_broken
from .requests import ApiError, bad_request, shown
from .tool_calls import WrittenCall, go_on_from

_HARMLESS: Harmless = {
    "background": (False,),
    "context_management": ([],),
    "max_tool_calls": (),
    "prompt": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_CALLED = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}
"""What chat requests call it, and this API."""


class _Tool(Strict):
    type: Literal["function"]
    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _NamedTool(Strict):
    type: Literal["function"]
    name: str


class _Format(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, min_length=1, max_length=128)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class _Text(Strict):
    format: _Format | None = None
    verbosity: Literal["medium"] | None = None


class _StreamOptions(Strict):
    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(Strict):
    """A checked request. `strict` of tools and formats is false where it is missing."""

    model: str
    input: Any
    instructions: str | None = None
    tools: Annotated[list[_Tool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | _NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: _Text | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_output_tokens: int | None = Field(None, ge=1)
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    """Reasoning is in answers as it is, and is read from there."""
    reasoning: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    metadata: dict[str, Any] | None = None

    def as_chat(self) -> ChatRequest:
        """What chat completions would be asked. Raises `ApiError` that names the item's place."""
        messages, places = _messages(self.input)
        if self.instructions is not None:
            messages.insert(0, {"role": "system", "content": self.instructions})
            places.insert(0, "instructions")
        if len(messages) > MOST_MESSAGES:
            raise bad_request(
                f"input and instructions are {len(messages)} messages, at most {MOST_MESSAGES} are read; send fewer",
                "input",
            )
        form = self.text.format if self.text is not None else None
        named = self.tool_choice if isinstance(self.tool_choice, _NamedTool) else None
        chat = ChatRequest.model_validate(
            {
                "model": self.model,
                "messages": messages,
                "tools": [_as_chat(tool, "function") for tool in self.tools] if self.tools is not None else None,
                "tool_choice": self.tool_choice if named is None else _as_chat(named, "function"),
                "response_format": None if form is None else _as_chat(form, "json_schema"),
                **{name: getattr(self, name) for name in ("parallel_tool_calls", "stream", "temperature", "top_p")},
                "max_tokens": self.max_output_tokens,
            }
        ).came_as(places, _CALLED)
        check_together(chat)
        return chat


def _as_chat(one: _Tool | _NamedTool | _Format, key: str) -> dict[str, Any]:
    """Chat requests have the fields of these in an object of their own, beside `type`."""
    fields = one.model_dump(by_alias=True)
    kind = fields.pop("type")
    return {"type": kind, key: fields} if kind == key else {"type": kind}


def read_responses_request(raw: bytes) -> ResponsesRequest:
    """The checked request in a body. Raises `ApiError` that names the parameter."""
    request = read_body(raw, ResponsesRequest, _HARMLESS)
    for name in ("previous_response_id", "conversation"):
        if getattr(request, name) is not None:
            raise bad_request(
                f"{name} is not supported, as this server keeps no conversations; send the items that came before, "
                "with the output of earlier responses, in input",
                name,
                "unsupported_parameter",
            )
    if not adds_nothing(request.reasoning, {}):
        raise bad_request(
            "reasoning is not supported: a model reasons as it was trained to; leave it out",
            "reasoning",
            "unsupported_parameter",
        )
    form = request.text.format if request.text is not None else None
    if form is not None and form.type == "json_schema" and (form.name is None or form.schema_ is None):
        raise bad_request(
            'text.format lacks name or schema; send {"type": "json_schema", "name": ..., "schema": {...}}',
            "text.format",
        )
    if form is not None and form.type != "json_schema":
        given = [name for name, value in form.model_dump(by_alias=True, exclude={"type"}).items() if value]
        if given:
            raise bad_request(
                f"text.format has {', '.join(given)}, which need the type json_schema, and the type is {form.type}",
                "text.format",
            )
    return request


# Items: what a message is in chat requests is here an item for its text, one for each call, and one for reasoning.

_READ_FIELDS = {
    "function_call": {"call_id", "name", "arguments"},
    "function_call_output": {"call_id", "output"},
    "reasoning": {"summary", "content", "encrypted_content"},
}
_IGNORED = frozenset({"type", "id", "status", "phase", "caller", "created_by"})
"""Labels of an item."""
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


def _messages(items: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages that items are, and the place of each one's first item."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}], ["input"]
    if not isinstance(items, list) or not 1 <= len(items) <= MOST_MESSAGES:
        raise bad_request(f"input must be a string, or a list of 1 to {MOST_MESSAGES} items", "input")
    messages: list[dict[str, Any]] = []
    places: list[str] = []
    said: dict[int, list[str]] = {}
    for index, item in enumerate(items):
        at = f"input.{index}"
        new = _message(item, at)
        last = messages[-1] if messages and messages[-1].get("role") == new.get("role") == "assistant" else None
        # An answer's reasoning, what is said, and calls, which have no results between them. Reasoning and text that
        # come again are of another message, but for text after a call: it is of the same answer.
        again = last is not None and "content" in new and "content" in last
        if last is None or "reasoning" in new or (again and "tool_calls" not in last):
            messages.append(new)
            places.append(at)
        elif "tool_calls" in new:
            last.setdefault("tool_calls", []).extend(new["tool_calls"])
        elif again:
            said.setdefault(len(messages) - 1, [last["content"]]).append(new["content"])
            last.update({**new, "content": last["content"]})
        else:
            last.update(new)
    for index, texts in said.items():
        messages[index]["content"] = "".join(texts)
    return messages, places


def _message(item: Any, at: str) -> dict[str, Any]:
    """An item as a message, or as a part of the assistant's."""
    if not isinstance(item, Mapping):
        raise bad_request(f"{at} is not an object; send items, or input as one string", at)
    kind = item.get("type", "message")
    if kind == "message":
        left = {name: value for name, value in item.items() if name not in ("type", "phase", "tool_calls")}
        if not adds_nothing(item.get("tool_calls"), item):
            raise bad_request(
                f"{at}.tool_calls is not supported for items of type message; send each call as an item of type "
                "function_call",
                f"{at}.tool_calls",
            )
        return {**left, "content": _text(item.get("content"), f"{at}.content")}
    if not isinstance(kind, str) or kind not in _READ_FIELDS:
        raise bad_request(
            f"{at} is an item of type {shown(repr(kind))}; there are message, {', '.join(_READ_FIELDS)}", f"{at}.type"
        )
    for name, value in item.items():
        if name not in _READ_FIELDS[kind] | _IGNORED and not adds_nothing(value, item):
            raise bad_request(f"{at}.{shown(name)} is not supported for items of type {kind}", f"{at}.{name}")
    if kind == "reasoning":
        thoughts = _text(item.get("content") or item.get("summary") or "", at)
        return {"role": "assistant", **({"reasoning": thoughts} if thoughts else {})}
    for name in _READ_FIELDS[kind] - {"output"}:
        if not isinstance(item.get(name), str):
            raise bad_request(f"{at}.{name} is missing or no string", f"{at}.{name}")
    if kind == "function_call_output":
        output = _text(item.get("output"), f"{at}.output")
        return {"role": "tool", "tool_call_id": item["call_id"], "content": output}
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"role": "assistant", "tool_calls": [{"id": item["call_id"], "type": "function", "function": function}]}


def _text(content: Any, at: str) -> str:
    """A string, or the texts of a list of parts."""
    if not isinstance(content, str | list):
        raise bad_request(f"{at} is missing or {json_kind(content)}; send a string or a list of texts", at)
    return read_text(content, at, _TEXT_PARTS)


def echoed(request: ResponsesRequest) -> dict[str, Any]:
    """What a response repeats of its request."""
    form = request.text.format if request.text is not None else None
    choice = request.tool_choice
    return {
        "model": request.model,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": None,
        "store": False,
        "temperature": request.temperature,
        "text": {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": choice.model_dump() if isinstance(choice, _NamedTool) else choice or "auto",
        "tools": [tool.model_dump() for tool in request.tools or []],
        "top_p": request.top_p,
        "truncation": "disabled",
    }


# ---------------------------------------------------------------------------------------------------------------------
# Answers.


def whole_response(
    request: ResponsesRequest, generated: Generated, fingerprint: str | None, tool_prompt: ToolPrompt
) -> dict[str, Any]:
    """The body of an answer that is not streamed: what a stream would end with."""
    stream = ResponseStream(request, fingerprint, tool_prompt, lambda _: None)
    stream.finish(0, generated.choices[0])
    stream.end(generated)
    return stream.response


@dataclass
class _OpenItem:
    """The item of the output that grows: reasoning, what is said, or a call."""

    item: dict[str, Any]
    kind: str
    """Of its events."""
    at: dict[str, Any]
    """Its place, as its events tell it."""
    part: dict[str, Any] | None = None
    """Which holds the text; None for a call."""


class ResponseStream:
    """`ReplyEvents` of the one answer to a request, which make up `response`."""

    def __init__(
        self,
        request: ResponsesRequest,
        fingerprint: str | None,
        tool_prompt: ToolPrompt,
        send: Callable[[bytes], None],
    ) -> None:
        """`send` takes one event at a time."""
        self._send = send
        self._tool_prompt = tool_prompt
        self._sent = 0
        self.response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            "system_fingerprint": fingerprint,
            **echoed(request),
        }
        self._texts = {"reasoning": "", "message": ""}
        """What was said so far."""
        self._calls: list[WrittenCall] = []
        """What was said of calls."""
        self._open: _OpenItem | None = None
        """The last item: each is done before the next one begins."""

    def grow(
        self,
        index: int,  # noqa: ARG002 - there is one answer
        reasoning: str,
        content: str,
        calls: Sequence[WrittenCall] = (),
    ) -> None:
        """See `Listener`."""
        self._begin()
        self._grow_text("reasoning", reasoning)
        self._grow_text("message", content)
        for number, call in enumerate(calls):
            self._grow_call(number, call)

    def finish(self, index: int, choice: Choice) -> None:
        """See `Listener`."""
        reasoning, content, calls = choice.reasoning or "", choice.content, choice.tool_calls
        if not (reasoning.startswith(self._texts["reasoning"]) and content.startswith(self._texts["message"])):
            raise stream_broken()
        if not go_on_from(self._calls, calls):
            raise stream_broken()
        # The text of a later call that cannot be read is part of the content, and comes after the calls that were said.
        begun = calls if choice.calls_first else calls[: len(self._calls)]
        self.grow(index, reasoning, self._texts["message"], begun)
        self.grow(index, reasoning, content, calls)
        if not calls and not content:
            self._open_text("message")  # an answer without a word is one, too
        cut = choice.finish_reason == "length"
        assert self._open is not None
        is_whole = self._open.item["type"] == "function_call" and calls[-1].problem is None
        self._close("incomplete" if cut and not is_whole else "completed")
        self.response["status"] = "incomplete" if cut else "completed"
        self.response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None

    def end(self, generated: Generated) -> None:
        """See `ReplyEvents`."""
        usage = generated.usage()
        computed = generated.prompt_tokens - generated.cached_tokens
        self.response["usage"] = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": computed},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }
        self.response["toolbake"] = own_fields(generated, self._tool_prompt)
        self._tell(f"response.{self.response['status']}", response=self.response)

    def failed(self, error: ApiError) -> bytes:
        """See `ReplyEvents`."""
        said = error.body["error"]
        self.response |= {"status": "failed", "error": {"code": said["code"] or said["type"], "message": str(error)}}
        return self._event("response.failed", response=self.response)

    def _begin(self) -> None:
        if not self._sent:
            self._tell("response.created", response=self.response)
            self._tell("response.in_progress", response=self.response)

    def _grow_text(self, kind: str, text: str) -> None:
        if not (rest := text[len(self._texts[kind]) :]):
            return
        self._texts[kind] = text
        one = self._open if self._open is not None and self._open.item["type"] == kind else self._open_text(kind)
        assert one.part is not None
        one.part["text"] += rest
        self._tell(f"{one.kind}.delta", **one.at, delta=rest, **_logprobs(kind))

    def _open_text(self, kind: str) -> _OpenItem:
        if kind == "message":
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item: dict[str, Any] = {"type": "message", "id": f"msg_{secrets.token_hex(12)}", "role": "assistant"}
        else:
            part = {"type": "reasoning_text", "text": ""}
            item = {"type": "reasoning", "id": f"rs_{secrets.token_hex(12)}", "summary": []}
        one = self._add({**item, "status": "in_progress", "content": []}, f"response.{part['type']}")
        one.part, one.at["content_index"] = part, 0
        self._tell("response.content_part.added", **one.at, part=part)
        one.item["content"] = [part]
        return one

    def _grow_call(self, number: int, call: WrittenCall) -> None:
        if number == len(self._calls):
            item = {
                "type": "function_call",
                "id": f"fc_{secrets.token_hex(12)}",
                "call_id": call.id,
                "name": call.name,
                "arguments": "",
                "status": "in_progress",
            }
            self._calls.append(replace(call, arguments=""))
            self._add(item, "response.function_call_arguments")
        rest = call.arguments[len(self._calls[number].arguments) :]
        self._calls[number] = call
        if not rest:
            return
        if self._open is None or self._open.item.get("call_id") != call.id:
            raise stream_broken()  # it is done
        self._open.item["arguments"] = call.arguments
        self._tell(f"{self._open.kind}.delta", **self._open.at, delta=rest)

    def _add(self, item: dict[str, Any], kind: str) -> _OpenItem:
        """Ends the item that is open, and begins this one."""
        self._close("completed")
        place = len(self.response["output"])
        self._tell("response.output_item.added", output_index=place, item=item)
        self.response["output"].append(item)
        self._open = _OpenItem(item, kind, {"item_id": item["id"], "output_index": place})
        return self._open

    def _close(self, status: str) -> None:
        if (one := self._open) is None:
            return
        if one.part is None:
            said = {name: one.item[name] for name in ("name", "arguments")}
            self._tell(f"{one.kind}.done", **one.at, **said)
        else:
            self._tell(f"{one.kind}.done", **one.at, text=one.part["text"], **_logprobs(one.item["type"]))
            self._tell("response.content_part.done", **one.at, part=one.part)
        one.item["status"] = status
        self._tell("response.output_item.done", output_index=one.at["output_index"], item=one.item)
        self._open = None

    def _tell(self, kind: str, **fields: Any) -> None:
        self._send(self._event(kind, **fields))

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sent, **fields}
        self._sent += 1
        return f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode()


def _logprobs(kind: str) -> dict[str, Any]:
    """Clients ask for the field; log-probabilities are not sent in this form."""
    return {"logprobs": []} if kind == "message" else {}
