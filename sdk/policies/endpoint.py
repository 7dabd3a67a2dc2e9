"""An agent over any OpenAI-compatible endpoint: text in, text out. For baselines; nothing here can be trained.

Each part of a reply is checked before it is used.
"""

from __future__ import annotations

import functools
import json
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, Self, get_args

import anyio
import httpx

from mcp_bridge.access.redaction import require_http_url
from mcp_bridge.errors import retry_after_s
from mcp_bridge.records import Tool
from mcp_bridge.safe_text import json_in, shortened, whole_characters

from ..errors import ConfigError, PolicyFailure
from ..records import Message, TokenRow, ToolCall, ToolPrompt
from .protocol import Hearing, Reply, Sampling
from .rendering.call_parsing import read_arguments, split_reasoning
from .token_agent import turn_seed, with_call_ids

_SHORTEST_SECRET = 4
_REPEATED_STATUSES = (429, 502, 503)
_REPEATED_ERRORS = (httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError)
"""No answer began. A read timeout is not among them: the endpoint may still be generating."""


class EndpointAgent:
    """Speaks with `base_url` + `/chat/completions`.

    Used with `async with`, conversations share connections; without, every request opens its own.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        name: str | None = None,
        timeout_s: float = 300.0,
        max_retries: int = 4,
        backoff_s: float = 1.0,
        max_wait_s: float = 60.0,
        max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens",
        extra_body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        system: str | None = None,
    ) -> None:
        """
        `timeout_s`: how long the endpoint may take until it begins to answer, and then until its answer is whole.
        `max_retries`: how often a request is repeated after 429, 502, 503 or a connection that broke before any
        answer. The wait is the server's Retry-After, else `backoff_s`, doubled every time; a wait above
        `max_wait_s` seconds is a failure. `extra_body` is merged into every request; a value of None takes a field
        out (`{"seed": None}` for endpoints that refuse it). `headers` are sent as given and never shown.
        `system`: instructions of this model's own, sent before all that a task says and in no record of a
        rollout.

        Raises `ConfigError` for a URL or key that cannot work.
        """
        self._url = checked_url(base_url)
        self._model = model
        self.name = name or model
        self._limits = (timeout_s, max_retries, backoff_s, max_wait_s)
        self._max_tokens_field = max_tokens_field
        self._extra_body = dict(extra_body or {})
        self._headers = _Secret({**_checked_headers(headers or {}), **_authorization(api_key)})
        self._system = checked_system(system)
        self._client: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"EndpointAgent({self._url!r}, {self._model!r})"

    def start(self, tools: Sequence[Tool], *, sampling: Sampling, seed: int) -> EndpointConversation:
        return EndpointConversation(self, tools, sampling=sampling, seed=seed)

    async def __aenter__(self) -> Self:
        if self._client is not None:
            raise RuntimeError("this agent is already open")
        self._client = self._new_client()
        return self

    async def __aexit__(self, *exc: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def request_body(
        self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling, max_tokens: int, seed: int
    ) -> dict[str, Any]:
        """The JSON of one request. Reasoning is not sent back: endpoints keep or refuse it, each in its own way."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [m.model_copy(update={"reasoning": None}).as_openai() for m in self._instructed(messages)],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._max_tokens_field: max_tokens,
            "seed": seed,
        }
        if tools:
            body["tools"] = [tool.as_openai() for tool in tools]
        if sampling.strict_tools:
            for tool in body.get("tools", ()):
                tool["function"]["strict"] = True
        merged = {**body, **self._extra_body}
        return {key: value for key, value in merged.items() if value is not None}

    def _instructed(self, messages: Sequence[Message]) -> list[Message]:
        """With this model's own instructions first; one system message, as many chat templates allow no second."""
        if self._system is None:
            return list(messages)
        if messages and messages[0].role == "system":
            both = f"{self._system}\n\n{messages[0].content}"
            return [messages[0].model_copy(update={"content": both}), *messages[1:]]
        return [Message(role="system", content=self._system), *messages]

    async def post(self, body: dict[str, Any]) -> tuple[int, str, list[str]]:
        """Send until an answer came: its status and text, and why earlier tries were repeated.

        Raises `PolicyFailure` when none came.
        """
        _, max_retries, backoff_s, max_wait_s = self._limits
        retried: list[str] = []
        while True:
            try:
                status, text, retry_after = await self._post_once(body)
                problem = f"HTTP {status}"
            except _REPEATED_ERRORS as error:
                status, text, retry_after = 0, "", None
                problem = type(error).__name__
            if status and status not in _REPEATED_STATUSES:
                return status, text, retried
            detail = f": {_whole_error_text(text)}" if text else ""
            if len(retried) == max_retries:
                raise self.failure(f"failed {len(retried) + 1} times, at last with {problem}{detail}")
            wait = backoff_s * 2 ** len(retried) if retry_after is None else retry_after
            if wait > max_wait_s:
                raise self.failure(
                    f"failed with {problem}; the next try is {wait:g} s off, over {max_wait_s:g} s{detail}"
                )
            retried.append(problem)
            await anyio.sleep(wait)

    def failure(self, message: str) -> PolicyFailure:
        """A `PolicyFailure` that names the endpoint and holds nothing secret."""
        return PolicyFailure(f"endpoint {self._url} (model {self._model!r}) {self.shown(message)}")

    def shown(self, text: str) -> str:
        """The beginning of a text without the key and the values of headers, which some endpoints repeat in errors."""
        secrets = self._headers.value.values()
        parts = {*secrets, *(secret.partition(" ")[2] for secret in secrets)}  # what follows "Bearer" or "Basic"
        for part in sorted(parts, key=len, reverse=True):  # one may be part of another
            text = text.replace(part, "***") if len(part) >= _SHORTEST_SECRET else text
        return shortened(text, _SHOWN_CHARS)

    async def _post_once(self, body: dict[str, Any]) -> tuple[int, str, float | None]:
        """One request: status, text and Retry-After in seconds. Errors before the answer's head are passed on."""
        async with self._new_client() if self._client is None else nullcontext(self._client) as client:
            content = whole_characters(json.dumps(body, ensure_ascii=False)).encode()
            headers = {"Content-Type": "application/json"}
            request = client.build_request("POST", self._url + "/chat/completions", content=content, headers=headers)
            try:
                response = await client.send(request, stream=True)
            except _REPEATED_ERRORS:
                raise
            except httpx.TimeoutException:
                raise self.failure(f"gave no answer within {self._limits[0]:g} s") from None
            except httpx.HTTPError as error:
                raise self.failure(f"could not be asked: {type(error).__name__}: {error}") from None
            try:
                with anyio.fail_after(self._limits[0]):  # httpx waits so long for each piece
                    await response.aread()
                return response.status_code, response.text, retry_after_s(response.headers.get("retry-after"))
            except (TimeoutError, httpx.TimeoutException):
                raise self.failure(f"gave no whole answer within {self._limits[0]:g} s") from None
            except httpx.HTTPError as error:
                raise self.failure(f"broke off its answer: {type(error).__name__}: {error}") from None
            finally:
                await response.aclose()

    def _new_client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        return httpx.AsyncClient(
            headers=self._headers.value, timeout=self._limits[0], limits=limits, verify=_certificates()
        )


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Read once: a client reads them for 20 ms otherwise, during which nothing else runs, also for an http address."""
    return httpx.create_ssl_context()


class EndpointConversation:
    """One conversation with an endpoint. A turn that raises or finds no room leaves it as it was."""

    def __init__(self, agent: EndpointAgent, tools: Sequence[Tool], *, sampling: Sampling, seed: int) -> None:
        self._agent = agent
        self._tools = list(tools)
        self._sampling = sampling
        self._seed = seed
        self._turn = 0
        self._messages: list[Message] = []

    def rows(self) -> list[TokenRow]:
        """Empty: an endpoint that only knows text has no tokens to train."""
        return []

    async def reply(
        self,
        new_messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        stops: Sequence[str] = (),
        hearing: Hearing | None = None,  # noqa: ARG002 - an endpoint tells texts, and is asked for the whole one
    ) -> Reply:
        """See `Conversation.reply`; the endpoint leaves the text of `stops` out. `Reply.extra` holds `retries`, why
        (`retried`), and what the endpoint says of the answer: `id`, `model`, `finish_reason`."""
        messages = [*self._messages, *new_messages]
        limit = self._sampling.max_tokens if max_tokens is None else min(max_tokens, self._sampling.max_tokens)
        seed = turn_seed(self._seed, self._turn)
        body = self._agent.request_body(messages, self._tools, self._sampling, limit, seed)
        body |= {"stop": list(stops)} if stops else {}
        status, text, retried = await self._agent.post(body)
        counted = {"retries": len(retried), "retried": retried}
        if context_exceeded(status, text):
            return Reply(
                Message(role="assistant"),
                "context",
                extra={**counted, "error": self._agent.shown(_whole_error_text(text))},
            )
        if status != 200:
            raise self._agent.failure(f"answered HTTP {status}: {_whole_error_text(text)}{_refused_field(text, body)}")
        try:
            reply = read_reply(text)
        except ValueError as error:
            raise self._agent.failure(f"gave an answer that cannot be read: {error}") from None
        message = reply.message.model_copy(update={"tool_calls": with_call_ids(reply.message.tool_calls, messages)})
        self._messages = [*messages, message]
        self._turn += 1
        return Reply(
            message,
            reply.stop_reason,
            sampled_tokens=reply.sampled_tokens,
            prompt_tokens=reply.prompt_tokens,
            tool_prompt=reply.tool_prompt,
            extra={**counted, **reply.extra},
        )


def _refused_field(text: str, body: Mapping[str, Any]) -> str:
    """How to leave out a field of the request that a refusal names."""
    named = next((name for name in ("max_tokens", "temperature", "top_p", "seed") if name in body and name in text), "")
    if not named:
        return ""
    fix = {named: None, **({"max_completion_tokens": body[named]} if named == "max_tokens" else {})}
    return f". To leave {named} out, give the model as a mapping with 'extra_body': {fix} (docs/evaluation.md)"


class _Secret:
    """A value that shows itself to nobody."""

    def __init__(self, value: dict[str, str]) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "***"


def checked_url(base_url: str) -> str:
    """The address that `/chat/completions` is added to. Raises `ConfigError` for what is not an address to ask."""
    try:
        require_http_url(base_url, "http://host:8000/v1")
    except ValueError as error:
        raise ConfigError(f"endpoint: {error}; a key belongs into api_key or headers") from None
    return base_url.rstrip("/").removesuffix("/chat/completions")


def checked_system(system: Any) -> str | None:
    """Raises `ConfigError` for what is not text, and for an empty one."""
    if system is not None and (not isinstance(system, str) or not system.strip()):
        raise ConfigError("an endpoint's system prompt is empty or not text; give a text, or leave it out")
    return system


def _authorization(api_key: str | None) -> dict[str, str]:
    if api_key is None:
        return {}
    if not re.fullmatch(r"[\x21-\x7e]+", api_key):
        raise ConfigError("the api_key is empty or holds blanks or characters that no HTTP header can carry")
    return {"Authorization": f"Bearer {api_key}"}


def _checked_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Raises `ConfigError` for what HTTP cannot carry (RFC 9110, 5.5), such as a key with the end of its file's line;
    later the client would refuse it with the value in its error."""
    for name, value in headers.items():
        if not (isinstance(name, str) and re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name)):
            raise ConfigError(
                "the name of a header is empty or holds blanks or characters that no HTTP header can carry"
            )
        if not (isinstance(value, str) and re.fullmatch(r"([\x21-\x7e]+([ \t]+[\x21-\x7e]+)*)?", value)):
            raise ConfigError(
                f"the value of the header {name!r} is not text, begins or ends with a blank or a line's end, or holds "
                "characters that no HTTP header can carry; take them out"
            )
    return headers


_SHOWN_CHARS = 500
_CONTEXT = re.compile(
    r"context.{0,20}(length|window|size|limit)|maximum.{0,20}(model|sequence|input) ?length|prompt is too long"
    r"|(input|prompt).{0,40}(exceeds|longer than).{0,40}(token|length)|too many (input )?tokens",
    re.IGNORECASE | re.DOTALL,
)


def context_exceeded(status: int, text: str) -> bool:
    """Whether a refusal (HTTP 400, 413 or 422) says that the conversation does not fit into the model's context."""
    if status not in (400, 413, 422):
        return False
    error = _error_object(text)
    if error.get("code") == "context_length_exceeded":
        return True
    return bool(_CONTEXT.search(_whole_error_text(text)))


def error_text(text: str) -> str:
    """The endpoint's own message, or the beginning of what it sent instead."""
    return shortened(_whole_error_text(text), _SHOWN_CHARS)


def _whole_error_text(text: str) -> str:
    message = _error_object(text).get("message")
    return message if isinstance(message, str) and message else text.strip() or "(no text)"


def read_reply(text: str) -> Reply:
    """The reply in the body of a 200. Raises `ValueError` that says what is wrong with it."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error}): {_whole_error_text(text)}") from None
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError(f"no choices: {_whole_error_text(text)}")
    said = choices[0].get("message")
    if not isinstance(said, dict):
        raise ValueError(f"no message in the first choice: {_whole_error_text(text)}")
    finish = choices[0].get("finish_reason")
    if finish == "content_filter":
        raise ValueError("the endpoint's content filter withheld it")
    if finish in ("abort", "error"):  # vLLM's and SGLang's words for an answer that is not whole
        raise ValueError(f"the endpoint broke it off: its finish_reason is {finish!r}")
    calls = said.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ValueError(f"tool_calls is not a list: {_whole_error_text(text)}")
    content = _content_text(said.get("content")) or _content_text(said.get("refusal"))
    reasoning = said.get("reasoning_content") or said.get("reasoning")
    if not isinstance(reasoning, str):  # many servers leave it in the content; some templates begin it in the prompt
        reasoning, content = split_reasoning(content, "</think>" in content and "<think>" not in content)
    message = Message(
        role="assistant",
        content=content,
        reasoning=reasoning,
        tool_calls=[_read_call(call) for call in calls],
    )
    usage = body.get("usage") if isinstance(body.get("usage"), dict) else {}
    return Reply(
        message,
        "length" if finish == "length" else "stop",
        sampled_tokens=_count(usage.get("completion_tokens")),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        tool_prompt=_shown(body.get("toolbake")),
        extra={"finish_reason": finish, "id": body.get("id"), "model": body.get("model")},
    )


def _shown(ours: Any) -> ToolPrompt | None:
    """What `sdk.serve` says under our name; a field of another server may be called `tool_prompt`, too, and mean
    something else."""
    said = ours.get("tool_prompt") if isinstance(ours, dict) else None
    return next((length for length in get_args(ToolPrompt) if length == said), None)


def _read_call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return ToolCall(id="", name="", error="the call has no function with a name and arguments")
    call_id = call.get("id") if isinstance(call.get("id"), str) else ""
    name = function.get("name")
    if not isinstance(name, str) or not name:
        return ToolCall(id=call_id, name="", error="the call has no name")
    given = function.get("arguments")
    arguments, error = read_arguments(given if isinstance(given, str) or given is None else json.dumps(given))
    return ToolCall(id=call_id, name=name, arguments=arguments, error=error)


def _content_text(content: Any) -> str:
    """A message's text: a string, or the text parts of a list. Raises `ValueError` for anything else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    raise ValueError(f"content is neither text nor parts: {json.dumps(content)}")


def _error_object(text: str) -> dict[str, Any]:
    body = json_in(text)
    if not isinstance(body, dict):
        return {}
    error = body.get("error", body)
    return error if isinstance(error, dict) else {"message": error}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
