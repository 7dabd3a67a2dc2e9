"""Played users of a run's tasks: a script, rules, or a model plays them, opened for the run. Their protocol is here,
too."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from mcp_bridge.records import Tool, ToolResult

from ..errors import ConfigError, PolicyFailure, UserFailure
from ..policies.model_source import ModelSource, named_source, open_agent, second_label, second_source
from ..policies.protocol import Agent, Sampling
from ..policies.token_agent import turn_seed
from ..records import CallRecord, Fact, Failure, Message, Rollout, Task, ToolCall, User, UserTurn
from ..traces.identity import digest
from .fidelity import UserJudge, asked_facts, is_yes_or_no, played_by_model, requests, stands_in, user_failure, words

CallTool = Callable[[ToolCall], Awaitable[ToolResult]]
"""Calls one of the user's tools in the rollout's world."""


class UserPolicy(Protocol):
    """Takes the user's turns, of many rollouts at once. It keeps nothing between them: all that was said and done is in
    the rollout, so that a branch goes on from any of its turns."""

    async def turn(self, rollout: Rollout, call: CallTool, *, seed: int) -> UserTurn | None:
        """What the user says to the policy's last message; None where it has nothing more to say.

        `call` raises `BridgeError` where something broke. Raises `UserFailure`.
        """


class ScriptedUser:
    """Says a task's later turns, whatever the policy answers."""

    async def turn(self, rollout: Rollout, call: CallTool, *, seed: int) -> UserTurn | None:  # noqa: ARG002
        """See `UserPolicy.turn`."""
        said = len(rollout.user_turns)
        if said >= len(rollout.task.later_turns):
            return None
        return UserTurn(turn=rollout.turns, by="script", said=rollout.task.later_turns[said])


END = "###STOP###"
"""What the model writes to end the talk, as users of tau-bench do."""
_MOST_CALLS = 8
"""Of one turn. A model that makes more does not keep to its part."""
_SAMPLING = Sampling(temperature=0.0, max_tokens=256)
_BEGIN = "(You have called the assistant. Say what you want.)"
_SILENCE = "(The assistant said nothing.)"

_RULES = """You play a user who talks to an assistant. Only the assistant can do things for you.

{scenario}

What you know:
{facts}

- Write only what the user says next: one or two sentences, without quotes.
- Tell what you know when the assistant asks for it, and not before. Tell it as it stands above.
- If you are asked for something that is not above, say that you do not know it. Make nothing up.{never}
- You are not the assistant: do not do its work, and do not offer help.{tools}
- When the assistant has answered or done what you want, or says that it cannot, write {end} and nothing else."""


class ModelUser:
    """Plays users through `agent`. Greedy: a policy that learns should find the same user each time.

    Each turn sends the whole conversation as the user sees it: the policy's words as those of the other side, and of
    its calls nothing.
    """

    def __init__(self, agent: Agent, tools: Sequence[Tool]) -> None:
        """`tools`: all of the source; a user is shown those that it names."""
        self._agent = agent
        self._tools = {tool.name: tool for tool in tools}

    async def turn(self, rollout: Rollout, call: CallTool, *, seed: int) -> UserTurn | None:
        """See `UserPolicy.turn`."""
        user = rollout.task.user
        assert user is not None
        tools = [self._tools[name] for name in user.tools if name in self._tools]
        turn = UserTurn(turn=rollout.turns, by=self._agent.name)
        seen = _as_user(rollout, user)
        while True:
            conversation = self._agent.start(tools, sampling=_SAMPLING, seed=turn_seed(seed, len(seen)))
            try:
                reply = await conversation.reply(seen)
            except PolicyFailure as error:
                raise UserFailure(type(error).__name__, f"the user's model failed: {error}") from error
            if reply.stop_reason == "context":
                raise UserFailure("UserContext", "the conversation does not fit into the context of the user's model")
            if not reply.message.tool_calls:
                break
            if len(turn.calls) + len(reply.message.tool_calls) > _MOST_CALLS:
                raise UserFailure("UserCalls", f"the user made more than {_MOST_CALLS} calls in one turn")
            for one in reply.message.tool_calls:
                made = one.model_copy(update={"id": f"user_{turn.turn}_{len(turn.calls) + 1}"})
                result = await call(made)
                turn.calls.append(CallRecord(turn=turn.turn, call=made, result=result))
                seen += _as_seen(turn.calls[-1])
        said = reply.message.content
        ended = END in said
        if reply.stop_reason == "length" and not ended:
            raise UserFailure(
                "UserCutOff",
                f"the message of the user's model was cut off at its limit of {_SAMPLING.max_tokens} tokens; take a "
                "model that does not reason, or switch its reasoning off",
            )
        said = said.replace(END, "").strip()
        if not said and not ended:
            raise UserFailure("UserSilent", f"the user's model said nothing, and did not end the talk with {END}")
        return turn.model_copy(update={"said": said, "ended": ended})


def _as_user(rollout: Rollout, user: User) -> list[Message]:
    """The conversation from the user's side, with its part before it."""
    messages = [Message(role="system", content=instructions(user)), Message(role="user", content=_BEGIN)]
    prompt = "\n".join(one.content for one in rollout.task.opening() if one.role == "user")
    messages.append(Message(role="assistant", content=prompt))
    for turn in rollout.user_turns:
        messages.append(_as_heard(turn.heard))
        for record in turn.calls:
            messages += _as_seen(record)
        messages.append(Message(role="assistant", content=turn.said))
    return [*messages, _as_heard(rollout.messages[-1].content)]


def _as_heard(said: str) -> Message:
    return Message(role="user", content=said.strip() or _SILENCE)


def _as_seen(record: CallRecord) -> list[Message]:
    """A call of the user's own, as its model made it and read its result."""
    made, result = record.call, record.result.text
    return [
        Message(role="assistant", tool_calls=[made]),
        Message(role="tool", content=result, tool_call_id=made.id, name=made.name),
    ]


def instructions(user: User) -> str:
    """The part that the model is given."""
    known = [f"- {name}: {_json(fact.value)}" for name, fact in user.facts.items() if fact.call is None]
    known += [
        f"- {name}: call {fact.call.name} with {_json(fact.call.arguments)} when asked for it"
        for name, fact in user.facts.items()
        if fact.call is not None
    ]
    never = f"\n- Never say: {'; '.join(user.never_tells)}." if user.never_tells else ""
    tools = "\n- You have tools of your own. Use them when the assistant asks you to." if user.tools else ""
    facts = "\n".join(known) or "- nothing more than that"
    return _RULES.format(scenario=user.scenario.strip(), facts=facts, never=never, tools=tools, end=END)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # it is told "as it stands", and so without escapes


# ---------------------------------------------------------------------------------------------------------------------

UNKNOWN = "I do not know that."
PATIENCE = 2
"""Turns in which a user may be asked for nothing that it knows, or only for what it has told, before it ends the talk.
"""
_CODE = re.compile(r"[\w@.+-]*\d(?:[\w@.+-]*\w)?")
_CHOOSING = re.compile(r"\bor\b(?!\W+not\b)", re.IGNORECASE)


class RuleUser:
    """Depends on the facts and on what was said, and on nothing else: no model, no chance.

    It tells every fact that a message asks for, or has as one of two choices; agrees to a question for yes or no,
    unless that has another value for a fact that it names, which it always corrects, or two codes to choose from; says
    that it does not know where asked for something else; and ends the talk when it is asked for nothing, or for nothing
    that helps more than `PATIENCE` times.
    """

    async def turn(self, rollout: Rollout, call: CallTool, *, seed: int) -> UserTurn | None:  # noqa: ARG002
        """See `UserPolicy.turn`."""
        user = rollout.task.user
        assert user is not None
        heard = next(message.content for message in reversed(rollout.messages) if message.role == "assistant")
        turn = UserTurn(turn=rollout.turns, by="rules")
        asking = requests(heard)
        told = asked_facts(user.facts, heard)
        told += [name for name, fact in user.facts.items() if any(_is_choice(fact, one) for one in asking)]
        if not asking and not told:
            return turn.model_copy(update={"ended": True})
        wrong = {name for one in asking for name in _contradicted(user.facts, one)}
        told = [name for name in user.facts if name in told or name in wrong]
        known = {name for before in rollout.user_turns for name in before.told}
        if not wrong and set(told) <= known and self._unhelped(rollout) >= PATIENCE:
            return turn.model_copy(update={"ended": True})
        said = ["No."] if wrong else []
        said += [await _told(user, name, turn, call) for name in told]
        if not told:
            agrees = any(is_yes_or_no(one) and not _is_choice_of_codes(one) for one in asking)
            said = ["Yes, please." if agrees else UNKNOWN]
        return turn.model_copy(update={"said": " ".join(said), "told": told})

    def _unhelped(self, rollout: Rollout) -> int:
        """The turns so far in which the user told nothing new."""
        known: set[str] = set()
        count = 0
        for turn in rollout.user_turns:
            count += set(turn.told) <= known
            known.update(turn.told)
        return count


async def _told(user: User, name: str, turn: UserTurn, call: CallTool) -> str:
    """How a fact is told; its call is made, and noted in the turn."""
    fact = user.facts[name]
    if fact.call is None:
        return _worded(name, fact, _as_text(fact.value))
    made = fact.call.model_copy(update={"id": f"user_{turn.turn}_{len(turn.calls) + 1}"})
    result = await call(made)
    turn.calls.append(CallRecord(turn=turn.turn, call=made, result=result))
    if result.error_kind == "invalid_arguments":
        raise UserFailure("UserFact", f"fact {name!r} has a call that cannot be made; correct the task: {result.text}")
    return _worded(name, fact, result.text)


def _worded(name: str, fact: Fact, value: str) -> str:
    if fact.told:
        return fact.told.replace("{value}", value)
    return value if fact.call is not None else f"The {name.replace('_', ' ')} is {value.rstrip('.')}."


def _as_text(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _contradicted(facts: Mapping[str, Fact], sentence: str) -> list[str]:
    """The facts that a question for yes or no names with another value: numbers and codes alone are compared. The value
    of a fact that is named as closely is that fact's ("Is your customer id 55?" beside an order id), and another value
    is one of the fact that is named most closely."""
    if not is_yes_or_no(sentence):
        return []
    sentence = _plain(sentence)
    said = set(words(sentence))
    shared = {name: own for name in facts if (own := said & set(words(name.replace("_", " "))))}
    found = {}
    for name, own in shared.items():
        rest = sentence
        for other in shared:
            if other != name and own <= shared[other] and facts[other].call is None:
                rest = re.sub(rf"(?<!\w){re.escape(_plain(str(facts[other].value)))}(?!\w)", " ", rest)
        if _has_another_value(facts[name], sentence) and _has_another_value(facts[name], rest):
            found[name] = own
    return [name for name, own in found.items() if not any(own < other for other in found.values())]


def _has_another_value(fact: Fact, sentence: str) -> bool:
    value = _plain(str(fact.value))
    if fact.call is not None or isinstance(fact.value, bool) or not any(map(str.isdigit, value)):
        return False
    if not _CODE.fullmatch(value):  # "10:30", "12 Hill Street": the same with other numbers
        alike = r"\d+".join(map(re.escape, re.split(r"\d+", value)))
        found = re.findall(rf"(?<!\w){alike}(?!\w)", sentence)
        return bool(found) and value not in found
    numbers = [float(one) for one in re.findall(r"\d+(?:\.\d+)?", sentence)]
    if isinstance(fact.value, int | float) and fact.value in numbers:  # an amount, however it is written: "2.50"
        return False
    own = rf"(?<!\d)(?<!\d[.,]){re.escape(value)}(?![.,]?\d)"
    return any(one != value for one in _CODE.findall(sentence)) and re.search(own, sentence) is None


def _plain(text: str) -> str:
    """In small letters; numbers without what groups their digits, "1,000", and without zeros before them, "09:30"."""
    ungrouped = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text.casefold())
    return re.sub(r"(?<![\w.,])0+(?=\d)", "", ungrouped)


def _is_choice(fact: Fact, sentence: str) -> bool:
    """Whether a question has the fact's value as one of its choices: "Is it 2342 or 2343?"."""
    return _CHOOSING.search(sentence) is not None and stands_in(fact, words(sentence))


def _is_choice_of_codes(sentence: str) -> bool:
    """Whether a question has two numbers or codes to choose from, which yes does not answer: "2343 or 2344?"."""
    return _CHOOSING.search(sentence) is not None and len(set(_CODE.findall(sentence))) > 1


# ---------------------------------------------------------------------------------------------------------------------


class Users:
    """Rules where a task's user names no model; the models that users name must be open."""

    def __init__(
        self,
        models: Mapping[str, UserPolicy] | None = None,
        *,
        every: UserPolicy | None = None,
        judge: UserJudge | None = None,
    ) -> None:
        """`models`: by the names that users give. `every`: plays all users, whatever they name. `judge`: looks at those
        that a model played."""
        self._models = dict(models or {})
        self._every = every
        self._judge = judge
        self._scripted, self._rules = ScriptedUser(), RuleUser()

    def of(self, task: Task) -> UserPolicy:
        """Who takes the user's turns of a task. Raises `ConfigError` where nobody can."""
        if task.user is None:
            return self._scripted
        if self._every is not None:
            return self._every
        if task.user.model is None:
            if not task.user.facts:
                raise ConfigError(
                    f"task {task.id!r}: its user has no facts and no model, so that it could only agree; give facts, "
                    "or a model that plays it (user.model, or user_model for all)"
                )
            return self._rules
        if task.user.model not in self._models:
            raise ConfigError(
                f"task {task.id!r}: its user is played by {task.user.model!r}, which is not open here; hand in user "
                "policies from sdk.users.played_users.open_users"
            )
        return self._models[task.user.model]

    async def judged(self, rollout: Rollout) -> Failure | None:
        """The failure that the judge finds in a rollout that has ended; None where there is none, or no judge. Raises
        `VerifierError`."""
        found = await self._judge.judge(rollout) if self._judge is not None and played_by_model(rollout) else None
        return user_failure(found) if found is not None else None


@asynccontextmanager
async def open_users(
    tasks: Iterable[Task],
    tools: Sequence[Tool],
    *,
    user_model: ModelSource = None,
    judge: UserJudge | None = None,
    rows: int = 64,
) -> AsyncIterator[Users]:
    """The users of these tasks, ready to answer. `user_model`: a model that plays all of them. `judge`: looks at those
    that a model played. `rows`: how many conversations a local engine batches.

    Raises `ConfigError` for users that nobody can play, and for tools that there are not.
    """
    with_user = [task for task in tasks if task.user is not None]
    if user_model is not None and not with_user:
        raise ConfigError("user_model does nothing: no task has a user; leave it out, or give tasks with a user")
    _check_tools(with_user, tools)
    async with AsyncExitStack() as stack:

        async def opened(source: ModelSource) -> ModelUser:
            return ModelUser(await stack.enter_async_context(open_agent(source, rows=rows)), tools)

        if user_model is not None:
            yield Users(every=await opened(second_source(user_model)), judge=judge)
            return
        names = dict.fromkeys(task.user.model for task in with_user if task.user is not None and task.user.model)
        if judge is not None and not names:
            raise ConfigError("user_judge does nothing: no user is played by a model; leave it out, or give user_model")
        users = Users({name: await opened(named_source(name, "user.model")) for name in names}, judge=judge)
        for task in with_user:
            users.of(task)
        yield users


def _check_tools(tasks: Iterable[Task], tools: Sequence[Tool]) -> None:
    known = {tool.name for tool in tools}
    for task in tasks:
        assert task.user is not None
        for name in task.user.tools:
            if name not in known:
                raise ConfigError(
                    f"task {task.id!r}: its user has the tool {name!r}, which there is not; the tools are "
                    f"{', '.join(sorted(known)) or 'none'}"
                )


def users_identity(user_model: ModelSource, judge: UserJudge | None) -> dict[str, Any]:
    """What a run is known by beside its tasks, which have their users: the model that plays all of them, and who judges
    it."""
    judged = {} if judge is None else {"user_judge": digest(judge)}
    return judged if user_model is None else {"user_model": second_label(user_model), **judged}
