"""The records that flow through the project. Plain data: no torch, no network.

Axes: B rows, P prompt tokens, T completion tokens.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from mcp_bridge.ledger import LedgerLine
from mcp_bridge.records import Tool, ToolResult


class ToolCall(BaseModel):
    """A call as the policy wrote it. `error` is set, and `arguments` empty, where it did not parse."""

    id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None


class Message(BaseModel):
    """One message of a conversation, in the roles of OpenAI's chat format."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: list[ToolCall] = Field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    """Text between think markers, where the model family has them; not part of `content`."""

    def as_openai(self) -> dict[str, Any]:
        """The message as OpenAI's chat format has it; `arguments` stay a JSON string there."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            out["reasoning_content"] = self.reasoning
        if self.tool_calls:
            out["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
                for c in self.tool_calls
            ]
        if self.role == "tool":
            out["tool_call_id"] = self.tool_call_id
            if self.name:
                out["name"] = self.name
        return out


_PLACEHOLDER = re.compile(r"\{(\w*)\}")


class Fact(BaseModel, extra="forbid"):
    """What a user knows and tells when it is asked for it, or does when it is asked to.

    Example: `Fact(value="4417", asked_by=["order number"], told="It is order {value}.")`
    """

    value: str | int | float | bool | None = None
    call: ToolCall | None = None
    """A call of one of the user's own tools in place of a value: made when it is asked for, and its result is told."""
    asked_by: list[str] = Field(default_factory=list)
    """Words that ask for it; the words of its name where empty."""
    told: str = ""
    """How it is told: `{value}` is the value, or what the call returned. "The NAME is {value}." where empty, and the
    result alone of a call."""

    @model_validator(mode="before")
    @classmethod
    def _from_plain_value(cls, given: Any) -> Any:
        if isinstance(given, str | int | float | bool):
            return {"value": given}
        if isinstance(given, dict) and isinstance(given.get("call"), dict):
            return {**given, "call": {"id": "user", **given["call"]}}
        return given

    @model_validator(mode="after")
    def _says_or_does_something(self) -> Fact:
        if (self.value is None) == (self.call is None):
            raise ValueError("a fact has either a value or a call; give one of them")
        if isinstance(self.value, str) and not self.value.strip():
            raise ValueError("the value of a fact is empty; give what the user knows, or leave the fact out")
        if unknown := set(_PLACEHOLDER.findall(self.told)) - {"value"}:
            raise ValueError(f"told has {{{min(unknown)}}}; the one placeholder that there is is {{value}}")
        return self


class User(BaseModel, extra="forbid"):
    """A user who answers back: it tells what it is asked for, may act on its side of the world, and ends the talk.

    Example: `User(scenario="You want to cancel an order.", facts={"order id": "4417"})`
    """

    scenario: str
    """Who the user is and what it wants, in words. A model plays it. Rules go by the facts, and do nothing of what it
    makes depend on the policy ("if the agent refuses, ...")."""
    facts: dict[str, Fact] = Field(default_factory=dict)
    """What the task's prompt holds back, by name. A plain value is a fact with that value."""
    never_tells: list[str] = Field(default_factory=list)
    """Texts that the user must not say, such as the answer. A model that plays it and says one is at fault."""
    tools: list[str] = Field(default_factory=list)
    """Names of the world's tools that are the user's alone: the policy is not shown them and cannot call them."""
    model: str | None = None
    """Who plays it. None: rules that follow from the facts. "embedded", a folder or hub name, or an endpoint that needs
    no key as `https://host/v1#name`; a run's `user_model` plays it in place of any of these."""
    max_turns: int = Field(default=8, ge=1)
    """The most messages of the user, the prompt not counted."""

    @field_validator("scenario")
    @classmethod
    def _has_a_scenario(cls, scenario: str) -> str:
        if not scenario.strip():
            raise ValueError("the scenario is empty; write who the user is and what it wants")
        return scenario

    @field_validator("model")
    @classmethod
    def _names_a_model(cls, model: str | None) -> str | None:
        if model is not None and not model.strip():
            raise ValueError("the model is empty; name who plays the user, or leave it out for rules")
        return model

    @model_validator(mode="after")
    def _can_be_asked_and_may_tell(self) -> User:
        for name, fact in self.facts.items():
            asking = fact.asked_by or [name]
            if wordless := [one for one in asking if not any(character.isalnum() for character in one)]:
                raise ValueError(
                    f"fact {name!r} is asked for by {wordless[0]!r}, which has no word that a question could have; "
                    "give phrases in asked_by"
                )
        for text in self.never_tells:
            if not text.strip():
                raise ValueError("never_tells has an empty text; give what the user must not say, or leave it out")
            held = re.compile(rf"(?<!\w){re.escape(text.strip())}(?!\w)", re.IGNORECASE)
            values = {name: str(fact.value) for name, fact in self.facts.items() if fact.call is None}
            if found := [name for name, value in values.items() if held.search(value)]:
                raise ValueError(
                    f"never_tells has {text!r}, and fact {found[0]!r} tells it when asked; leave one of them out"
                )
        return self

    @model_validator(mode="after")
    def _calls_its_own_tools(self) -> User:
        for name, fact in self.facts.items():
            if fact.call is not None and fact.call.name not in self.tools:
                raise ValueError(
                    f"fact {name!r} calls {fact.call.name!r}, which is none of the user's tools "
                    f"({', '.join(self.tools) or 'it has none'}); name it in tools"
                )
        return self


class Task(BaseModel, extra="forbid"):
    """Something to do with the tools, and how to know that it was done.

    Example: `Task(prompt="Where is order 4417?", expected={"answer": "shipped"}, family="order_status/3")`
    """

    prompt: str | list[Message]
    later_turns: list[str] = Field(default_factory=list)
    """What the user says next, each after the policy's answer to the turn before."""
    user: User | None = None
    """A user who answers back, in place of later turns."""
    setup: dict[str, Any] = Field(default_factory=dict)
    """How the world begins; given to the sandbox's reset."""
    expected: dict[str, Any] = Field(default_factory=dict)
    """The gold outcome that verifiers compare with: `answer`, `calls`, `state`, or keys of your own."""
    demonstration: list[Message] = Field(default_factory=list)
    """The assistant messages of a right solution. Tool results are not written down: calls are replayed."""
    tags: dict[str, str] = Field(default_factory=dict)
    """For grouping in the report, for example `{"tier": "2"}`."""
    family: str = ""
    """The stable key of the split: tasks of one family are never on both sides. The id where empty."""
    id: str = ""
    """Stable: derived from prompt, later turns, user and setup where it is not given."""

    @field_validator("prompt")
    @classmethod
    def _prompt_says_something(cls, prompt: str | list[Message]) -> str | list[Message]:
        if not prompt or (isinstance(prompt, str) and not prompt.strip()):
            raise ValueError("the prompt is empty; write what the user asks for")
        return prompt

    @model_validator(mode="after")
    def _derive_keys(self) -> Task:
        if self.user is not None and self.later_turns:
            raise ValueError("a task has either later_turns or a user; leave one of them out")
        if not self.id:
            messages = self.prompt if isinstance(self.prompt, str) else [m.model_dump() for m in self.prompt]
            later = [] if self.user is None else [self.user.model_dump(exclude_defaults=True)]
            key = json.dumps([messages, self.later_turns, self.setup, *later], sort_keys=True, default=str)
            self.id = hashlib.sha256(key.encode()).hexdigest()[:12]
        if not self.family:
            self.family = self.id
        return self

    def opening(self) -> list[Message]:
        """The messages that the policy sees first."""
        return [Message(role="user", content=self.prompt)] if isinstance(self.prompt, str) else list(self.prompt)


LARGEST = 1e15
"""Of the numbers of a verdict. Squares and sums of larger ones are infinite, and would make all weights nan."""
ROUNDING = 1e-9
"""By so much a score that is a sum may miss what it adds up to: 0.6 + 0.3 + 0.1 is less than 1."""


def reaches(score: float, threshold: float = 1.0) -> bool:
    """Whether a score is as high as a threshold, but for rounding."""
    return score >= threshold - ROUNDING


class Verdict(BaseModel, extra="forbid"):
    """What a verifier says of a rollout. Named components are kept through to the report."""

    score: float
    components: dict[str, float] = Field(default_factory=dict)
    explanation: str = ""
    turn_rewards: list[float] | None = None
    """Where the verifier knows which turns were worth what: a reward for each assistant message, in their order. Only
    training by turns looks at them (`advantages="turn"`); the score is what the report shows."""
    rests_on: dict[str, str] = Field(default_factory=dict)
    """Of a verdict that compares rollouts: the others by their ids, each with a digest of what the judge saw of it."""

    @model_validator(mode="after")
    def _is_finite(self) -> Verdict:
        rewards = {f"the reward of turn {turn}": one for turn, one in enumerate(self.turn_rewards or [], start=1)}
        components = {f"component {name!r}": value for name, value in self.components.items()}
        for what, value in {"score": self.score, **rewards, **components}.items():
            if not math.isfinite(value):
                raise ValueError(f"{what} is {value!r}; it must be a finite number")
            if abs(value) > LARGEST:
                raise ValueError(f"{what} is {value!r}; it must be a number from {-LARGEST:g} to {LARGEST:g}")
        return self


ToolPrompt = Literal["full", "names", "none"]
"""How much of its tools a policy's prompt shows: full schemas, their names only, or nothing."""
PROMPT_NAMES: dict[ToolPrompt, str] = {"full": "full schemas", "names": "names only", "none": "no tools"}


class CallRecord(BaseModel):
    """A call that reached the world, and what came back. Verifiers rest on these, not on text."""

    turn: int
    call: ToolCall
    result: ToolResult


class UserTurn(BaseModel):
    """What a task's user said and did after an answer of the policy."""

    turn: int
    """The policy's message that it followed, counted from 1 as they were sampled."""
    heard: str = ""
    """What was said to it: the policy's message, or how an agent of one's own worded it."""
    by: str
    """Who said it: `script` (later turns), `rules`, or the model that plays the user."""
    said: str = ""
    told: list[str] = Field(default_factory=list)
    """The facts that it told, where it goes by rules."""
    calls: list[CallRecord] = Field(default_factory=list)
    """Calls of the user's own tools; in the ledger their ids have `/user/` in them."""
    ended: bool = False
    """Whether it ended the conversation with this."""


class TokenRow(BaseModel):
    """Token ids exactly as they went in and out of the policy; one row unless a template rewrote history.

    `completion_ids` [T] holds everything after the first prompt: sampled tokens and, between them, the
    rendered tool results. `sampled` [T] is True for tokens the policy chose; only those are trained.
    `logprobs` [T] are the sampler's, in nats, 0.0 where not sampled. `versions` [T] is the version of the
    weights that chose the token, -1 where not sampled. `allowed` [T] is what a grammar left to choose from, None where
    none bounded the choice, and empty where none did anywhere: a bit for each token of the vocabulary, the lowest of a
    byte first. Equal ones are one object. It is in no file: what is read from one is not trained.

    Example: prompt `[1, 5]`, the policy says `[7, 2]`, a tool answers `[9]`, the policy says `[8, 2]`:
    `completion_ids=[7, 2, 9, 8, 2]`, `sampled=[True, True, False, True, True]`.
    """

    prompt_ids: list[int]
    completion_ids: list[int] = Field(default_factory=list)
    sampled: list[bool] = Field(default_factory=list)
    logprobs: list[float] = Field(default_factory=list)
    versions: list[int] = Field(default_factory=list)
    allowed: list[bytes | None] = Field(default_factory=list, exclude=True, repr=False)

    @model_validator(mode="after")
    def _same_lengths(self) -> TokenRow:
        lengths = {len(self.completion_ids), len(self.sampled), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"completion_ids, sampled, logprobs and versions differ in length: {sorted(lengths)}")
        if self.allowed and len(self.allowed) != len(self.completion_ids):
            raise ValueError(f"allowed has {len(self.allowed)} places, and completion_ids {len(self.completion_ids)}")
        return self

    def copied(self) -> TokenRow:
        """A copy that shares nothing. `model_copy(deep=True)` would look at every number."""
        return TokenRow.model_construct(
            prompt_ids=list(self.prompt_ids),
            completion_ids=list(self.completion_ids),
            sampled=list(self.sampled),
            logprobs=list(self.logprobs),
            versions=list(self.versions),
            allowed=list(self.allowed),
        )


StopReason = Literal["answered", "turn_limit", "token_limit", "call_limit", "time_limit", "context_limit", "failed"]
"""Why a rollout ended. Only `failed` means that the infrastructure broke; see `Rollout.failure`."""

CUT_OFF: tuple[StopReason, ...] = ("token_limit", "context_limit")
"""Stop reasons of rollouts that were not finished: what they would have earned is not known."""


class Failure(BaseModel):
    """What broke, at which boundary. A failed rollout is unscored: masked out, counted and shown."""

    boundary: Literal["tools", "policy", "verifier", "world", "agent", "user"]
    kind: str
    message: str


class Rollout(BaseModel):
    """One conversation between a policy and a world, from the task to the verdict."""

    id: str
    task: Task
    policy: str = ""
    group: str = ""
    """Rollouts of one group answer the same task and are compared with each other."""
    seed: int = 0
    step: int = -1
    """The training step it was sampled for, -1 outside training."""
    messages: list[Message] = Field(default_factory=list)
    conversations: int = 1
    """How many conversations `messages` has, one after the other: an agent of one's own may lead several."""
    calls: list[CallRecord] = Field(default_factory=list)
    user_turns: list[UserTurn] = Field(default_factory=list)
    """What the task's user said and did, the prompt not counted. Its words are in `messages`, too."""
    ledger: list[LedgerLine] = Field(default_factory=list)
    """What was sent and how it ended, attempts and lost answers included, in the order in which it happened."""
    answer: str = ""
    """The text of the last assistant message that made no call; empty if there was none."""
    shown_tools: list[str] | None = None
    """The names of the tools that its world showed; None where it showed all that its source has."""
    tool_prompt: ToolPrompt = "full"
    """How much of these the policy's prompt showed; of an endpoint that does not say, how much it was sent."""
    initial_state: dict[str, Any] | None = None
    final_state: dict[str, Any] | None = None
    rows: list[TokenRow] = Field(default_factory=list)
    stop_reason: StopReason = "answered"
    failure: Failure | None = None
    verdict: Verdict | None = None
    turns: int = 0
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    """Of all turns together: each sends the conversation so far again. 0 where an endpoint does not say."""
    duration_s: float = 0.0

    def _repr_markdown_(self) -> str:
        from .transcript import rollout_markdown

        return rollout_markdown(self)

    @property
    def tool_prompt_name(self) -> str:
        """`tool_prompt` in words."""
        return PROMPT_NAMES[self.tool_prompt]

    @property
    def scored(self) -> bool:
        """True when a verdict stands; unscored rollouts take part in no average and no advantage."""
        return self.verdict is not None and self.failure is None

    @property
    def user_texts(self) -> list[str]:
        """What the user said: in the prompt, and after it."""
        later = [turn.said for turn in self.user_turns if turn.said] or self.task.later_turns
        return [message.content for message in self.task.opening() if message.role == "user"] + later

    def tools_of(self, tools: Sequence[Tool]) -> list[Tool]:
        """Those of its source's `tools` that the policy was shown."""
        return [tool for tool in tools if self.shown_tools is None or tool.name in self.shown_tools]

    @property
    def error_kinds(self) -> dict[str, int]:
        """How often each kind of the policy's own mistakes happened."""
        return dict(Counter(record.result.error_kind for record in self.calls if record.result.error_kind))


class Options(BaseModel):
    """What all records of options have in common: only known names, and numbers that are finite and no booleans."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        wanted = str(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, bool) and re.search(r"\b(int|float)\b", wanted) and "bool" not in wanted:
            raise ValueError("give a number (YAML reads yes, no, on and off as true and false)")
        return value
