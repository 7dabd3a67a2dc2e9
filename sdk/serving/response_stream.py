"""Answers in the form of OpenAI's Responses API: one object, or the events of a stream that ends with it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..records import ToolPrompt
from .api_errors import ApiError
from .generation import Choice, Generated
from .replies import own_fields, stream_broken
from .responses_request import ResponsesRequest, echoed
from .tool_calls import WrittenCall, go_on_from


def whole_response(
    request: ResponsesRequest, generated: Generated, fingerprint: str | None, tool_prompt: ToolPrompt
) -> dict[str, Any]:
    """The body of an answer that is not streamed: what a stream would end with."""
    stream = ResponseStream(request, fingerprint, tool_prompt, lambda _: None)
    stream.finish(0, generated.choices[0])
    stream.end(generated)
    return stream.response


class _TextItem:
    """An item of the output whose text grows: what is said, or reasoning."""

    def __init__(self, place: int, item: dict[str, Any], part: dict[str, Any], kind: str) -> None:
        """`place`: in the output; `kind`: of its events."""
        self.item, self.part = item, part
        self.kind = kind
        self.at = {"item_id": item["id"], "output_index": place, "content_index": 0}


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
        self._texts: dict[str, _TextItem] = {}
        self._calls: list[tuple[WrittenCall, dict[str, Any], int]] = []
        """What was said of calls, their items, and their places."""

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
        complete = {"reasoning": choice.reasoning or "", "message": choice.content}
        if not all(complete[kind].startswith(one.part["text"]) for kind, one in self._texts.items()):
            raise stream_broken()
        if not go_on_from([said for said, *_ in self._calls], choice.tool_calls):
            raise stream_broken()
        self.grow(index, complete["reasoning"], complete["message"])
        if not choice.tool_calls:
            self._open("message")  # an answer without a word is one, too
        cut = choice.finish_reason == "length"
        for kind, one in self._texts.items():
            ended = "incomplete" if cut and not choice.tool_calls and kind == "message" else "completed"
            self._close(one, ended)
        self.grow(index, complete["reasoning"], complete["message"], choice.tool_calls)
        for call, (_, item, place) in zip(choice.tool_calls, self._calls, strict=True):
            at = {"item_id": item["id"], "output_index": place}
            self._tell("response.function_call_arguments.done", **at, name=call.name, arguments=call.arguments)
            self._done(item, place, "incomplete" if cut and call.problem is not None else "completed")
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
        if not text:
            return
        one = self._open(kind)
        if rest := text[len(one.part["text"]) :]:
            one.part["text"] = text
            self._tell(f"{one.kind}.delta", **one.at, delta=rest, **_logprobs(kind))

    def _open(self, kind: str) -> _TextItem:
        if (one := self._texts.get(kind)) is not None:
            return one
        if kind == "message":
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item: dict[str, Any] = {"type": "message", "id": f"msg_{secrets.token_hex(12)}", "role": "assistant"}
        else:
            part = {"type": "reasoning_text", "text": ""}
            item = {"type": "reasoning", "id": f"rs_{secrets.token_hex(12)}", "summary": []}
        item |= {"status": "in_progress", "content": []}
        one = _TextItem(self._add(item), item, part, f"response.{part['type']}")
        self._tell("response.content_part.added", **one.at, part=part)
        item["content"] = [part]
        self._texts[kind] = one
        return one

    def _close(self, one: _TextItem, status: str) -> None:
        text = one.part["text"]
        self._tell(f"{one.kind}.done", **one.at, text=text, **_logprobs(one.item["type"]))
        self._tell("response.content_part.done", **one.at, part=one.part)
        self._done(one.item, one.at["output_index"], status)

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
            self._calls.append((call, item, self._add(item)))
        _, item, place = self._calls[number]
        if rest := call.arguments[len(item["arguments"]) :]:
            at = {"item_id": item["id"], "output_index": place}
            item["arguments"] = call.arguments
            self._tell("response.function_call_arguments.delta", **at, delta=rest)
        self._calls[number] = call, item, place

    def _add(self, item: dict[str, Any]) -> int:
        """Its place in the output."""
        place = len(self.response["output"])
        self._tell("response.output_item.added", output_index=place, item=item)
        self.response["output"].append(item)
        return place

    def _done(self, item: dict[str, Any], place: int, status: str) -> None:
        item["status"] = status
        self._tell("response.output_item.done", output_index=place, item=item)

    def _tell(self, kind: str, **fields: Any) -> None:
        self._send(self._event(kind, **fields))

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sent, **fields}
        self._sent += 1
        return f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode()


def _logprobs(kind: str) -> dict[str, Any]:
    """Clients ask for the field; log-probabilities are not sent in this form."""
    return {"logprobs": []} if kind == "message" else {}
