"""Answers of a model in place of a tool, where the recording has no answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mcp_bridge.access.redaction import redacted, require_http_url
from mcp_bridge.errors import SourceError, ToolFailure
from mcp_bridge.records import Tool, compact_json
from mcp_bridge.safe_text import cut
from mcp_bridge.toolsets.schema_checks import SchemaTimeout, compiled_schema, schema_errors

from .call_index import Index, Key, similarity
from .cassette import CallLine, Cassette, CassetteWriter, RecordedResult, canonical, digest
from .scrubber import Scrubber

if TYPE_CHECKING:
    from .recorded_twin import How

_SHOWN = 300


_MOST_SHOWN = 4000
"""Characters of one text in a prompt."""
_TRIES = 3

_INSTRUCTIONS = """You stand in for the tools of a real system. Each message is a call; answer it as the real tool
would. Calls marked "recorded" show what the real tools answered. Calls marked "this session" are one session: what they
did has happened, and the next answer must agree with all of it. Keep to the form and style of the recorded answers,
invent what you must, and answer with an error where the real tool would refuse.

Write one JSON object and nothing else: {"text": "what the tool returns"}, for an error {"error": "its message"}, and
for a tool with an output schema {"structured": {...}}, valid against the schema."""


class SimulatedAnswers:
    """Asks a model behind an OpenAI-compatible endpoint what a tool would have answered.

        twin = RecordedTwin("orders.jsonl", unseen=SimulatedAnswers("http://127.0.0.1:8000/v1", "Qwen/Qwen3-4B"))

    The model sees the tool with its schemas, the nearest `examples` of the recording, and the last `history` calls of
    the session. An answer that is not of the right form, or not valid against the tool's output schema, is asked for
    again, up to three times in all; then `ToolFailure` is raised, and the rollout is left unscored.

    A call is asked about once: the same call at the same place is given the same answer in every world of this object.
    `keep`: write the answers into the cassette, marked `"simulated": true` and with their secrets replaced, so that
    later replays with a `SimulatedAnswers` give them too. `seed` is sent with each request, and changes which kept
    answers are used. `extra_body`: more fields of each request, such as `temperature` (0) and `max_tokens` (1024).
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        seed: int = 0,
        examples: int = 6,
        history: int = 20,
        timeout_s: float = 120.0,
        keep: bool = False,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `SourceError` for a URL or a number that is not valid, and for a URL that holds credentials."""
        for name, value in (("examples", examples), ("history", history)):
            if value < 0:
                raise SourceError(f"{name} is {value!r}; it must be 0 or more")
        try:
            require_http_url(base_url, "http://host:8000/v1")
        except ValueError as error:
            raise SourceError(f"endpoint: {error}; a key belongs into api_key") from None
        self.model = model
        self._url = base_url.rstrip("/").removesuffix("/chat/completions")
        self._endpoint = f"endpoint {self._url} (model {model!r})"
        self._api_key, self._timeout_s = api_key, timeout_s
        self._body = {"temperature": 0.0, "max_tokens": 1024, **(extra_body or {})}
        self._seed = seed
        self._examples = examples
        self._history = history
        self._keep = keep
        self._writer: CassetteWriter | None = None
        self._scrubber = Scrubber()
        self._known: dict[tuple[Key, int], RecordedResult] = {}
        self.asked = 0
        """How many requests were made."""

    def __repr__(self) -> str:
        return f"SimulatedAnswers({self._endpoint})"

    def load(self, cassette: Cassette) -> None:
        """Take over the answers kept in a cassette. Called by the twin. Raises `SourceError` where none can be kept."""
        if self._keep and cassette.path is None:
            raise SourceError("keep=True needs a cassette that was read from a file")
        if self._keep and cassette.path is not None:
            tools, source = cassette.header.tools, cassette.header.source
            self._writer = CassetteWriter(cassette.path, tools, source=source, scrubber=self._scrubber)
        for call in cassette.simulated:
            if call.session == self._session and call.place is not None and call.result is not None:
                self._known[(call.place, call.tool, canonical(call.arguments)), call.order] = call.result

    def key(self, place: str, tool: str, arguments: Mapping[str, Any]) -> Key:
        """Under which a call's answers are remembered. Those that are kept are found without the secrets of the call,
        which the cassette does not have: calls that differ in nothing else are one."""
        kept = (place, tool, canonical(self._scrubber.value(dict(arguments))))
        return kept if self._keep or (kept, 0) in self._known else (place, tool, canonical(dict(arguments)))

    async def answer(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        *,
        key: Key,
        number: int,
        history: Sequence[Mapping[str, Any]],
        index: Index,
    ) -> tuple[RecordedResult, How]:
        """What the tool would answer when it is called for the `number`th time (from 0) under this key, see `key`.

        Raises `ToolFailure` where the endpoint cannot be asked or gives no answer that can be used.
        """
        known = self._known.get((key, number))
        if known is not None:
            return known, "kept"
        messages = self._messages(tool, arguments, history, index)
        seed = int(digest(str(self._seed), *key, str(number))[:7], 16)
        problem = ""
        for _ in range(_TRIES):
            self.asked += 1
            said = await self._ask(messages, seed)
            try:
                result = _read(said, tool)
            except ValueError as error:
                problem = str(error)
                told = f"That cannot be used: {problem}. Write the JSON object again, and nothing else."
                messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": told}]
                continue
            return self._remember(key, number, tool.name, arguments, result), "simulated"
        raise ToolFailure(
            f"{self._endpoint} gave no usable answer in the place of {tool.name!r} in {_TRIES} tries: {problem}",
            delivery="answered",
        )

    async def _ask(self, messages: Sequence[Mapping[str, str]], seed: int) -> str:
        """The text of the model's answer.

        Raises `ToolFailure` where there is none: the simulation is infrastructure, like the tool it replaces.
        """
        import httpx

        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        body = {"model": self.model, "messages": messages, **self._body, "seed": seed}
        sent = {name: value for name, value in body.items() if value is not None}
        try:
            async with httpx.AsyncClient(timeout=self._timeout_s, headers=headers) as client:
                response = await client.post(f"{self._url}/chat/completions", json=sent)
        except httpx.HTTPError as error:
            raise self._failure(f"could not be asked: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            raise self._failure(f"answered HTTP {response.status_code}: {response.text}")
        try:
            said = response.json()["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise self._failure(f"gave an answer that cannot be read: {json.dumps(response.text)}") from error
        if not isinstance(said, str):
            raise self._failure(f"gave an answer without text: {json.dumps(response.text)}")
        return said

    def _failure(self, message: str) -> ToolFailure:
        told = redacted(message, [self._api_key] if self._api_key else [])
        return ToolFailure(f"{self._endpoint} {told[:_SHOWN]}", delivery="answered")

    @property
    def _session(self) -> str:
        """Under which name answers are kept: those of another model or seed are other answers."""
        return f"simulated/{self.model}/{self._seed}"

    def _remember(
        self, key: Key, number: int, tool: str, arguments: dict[str, Any], result: RecordedResult
    ) -> RecordedResult:
        # Two worlds may have asked the same at once: the first answer is the one.
        if (key, number) in self._known:
            return self._known[key, number]
        if self._writer is not None:
            result = self._writer.clean_result(result)  # also now, so that later replays go on as this one
            self._writer.append_call(
                CallLine(
                    session=self._session,
                    order=number,
                    tool=tool,
                    arguments=self._scrubber.value(arguments),
                    result=result,
                    simulated=True,
                    place=key[0],
                )
            )
        self._known[key, number] = result
        return result

    def _messages(
        self, tool: Tool, arguments: dict[str, Any], history: Sequence[Mapping[str, Any]], index: Index
    ) -> list[dict[str, str]]:
        """A conversation in which the recorded calls, then those of the session, were answered in the right form."""
        known = [
            f"The tool {tool.name}: {tool.description}",
            f"Its input schema: {json.dumps(tool.input_schema)}",
            f"Its output schema: {json.dumps(tool.output_schema)}" if tool.output_schema is not None else "",
        ]
        told = "\n".join([_INSTRUCTIONS, "", *filter(None, known)])
        messages = [{"role": "system", "content": told}]
        recent = history[-self._history :] if self._history else []
        for mark, calls in (("recorded", self._nearest(tool, arguments, index)), ("this session", recent)):
            for call in calls:
                messages.append(_asked(mark, call["tool"], call["arguments"]))
                messages.append({"role": "assistant", "content": _answered(call)})
        return [*messages, _asked("this session", tool.name, arguments)]

    def _nearest(self, tool: Tool, arguments: dict[str, Any], index: Index) -> list[Mapping[str, Any]]:
        """Recorded calls of the other tools, then of this one with the nearest arguments: the nearest stands last."""
        own = [entry.call for entry in index.by_tool.get(tool.name, ())]
        own.sort(key=lambda call: similarity(call.arguments, arguments))
        others = [entries[0].call for name, entries in index.by_tool.items() if name != tool.name]
        calls = [*others[: max(0, self._examples - len(own))], *own[-self._examples :]] if self._examples else []
        return [{"tool": c.tool, "arguments": c.arguments, **c.result.model_dump()} for c in calls if c.result]


def _asked(mark: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    return {"role": "user", "content": f"{mark}: {tool}({json.dumps(arguments, ensure_ascii=False)})"}


def _answered(call: Mapping[str, Any]) -> str:
    """A known answer in the form in which the model is to give its own."""
    if call["is_error"]:
        return json.dumps({"error": cut(call["text"], _MOST_SHOWN)}, ensure_ascii=False)
    if call["structured"] is not None and len(compact_json(call["structured"])) <= _MOST_SHOWN:
        return json.dumps({"structured": call["structured"]}, ensure_ascii=False)
    return json.dumps({"text": cut(call["text"], _MOST_SHOWN)}, ensure_ascii=False)


def _read(said: str, tool: Tool) -> RecordedResult:
    """The answer in the model's text. Raises `ValueError` with a message for the model."""
    # Some templates open the reasoning themselves, so that a model writes its end alone.
    before, closed, rest = said.partition("</think>")
    text = rest if closed and not before.lstrip().startswith("{") else said
    start = text.find("{")
    if start < 0:
        raise ValueError("there is no JSON object in it")
    try:
        found, _ = json.JSONDecoder().raw_decode(text[start:])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({error})") from None
    given = [name for name in ("text", "error", "structured") if name in found]
    if len(given) != 1:
        raise ValueError(f'it must have one of "text", "error" and "structured"; it has {given or "none of them"}')
    if given == ["structured"]:
        structured = found["structured"]
        if tool.output_schema is not None:
            _require_valid(structured, tool.output_schema)
        return RecordedResult(text=compact_json(structured), structured=structured)
    if tool.output_schema is not None and given == ["text"]:
        raise ValueError('this tool has an output schema: give "structured"')
    told = found[given[0]]
    if not isinstance(told, str) or not told:
        raise ValueError(f'"{given[0]}" must be a text that is not empty')
    is_error = given == ["error"]
    return RecordedResult(text=told, is_error=is_error, error_kind="tool_error" if is_error else None)


def _require_valid(value: Any, schema: Mapping[str, Any]) -> None:
    try:
        errors = schema_errors(compiled_schema(schema, is_known_valid=True), value)
    except SchemaTimeout as timeout:
        raise ValueError(f"structured could not be checked in time against the output schema: {timeout}") from timeout
    problems = sorted(errors, key=lambda error: error.json_path)
    if problems:
        told = "; ".join(f"{error.json_path}: {error.message[:200]}" for error in problems[:5])
        raise ValueError(f"structured is not valid against the output schema: {told}")
