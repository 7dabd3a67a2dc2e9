"""Who plays the users of a run's tasks: rules, or models that are opened for the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from mcp_bridge.records import Tool

from ..errors import ConfigError
from ..policies.model_source import ModelSource, named_source, open_agent, second_label, second_source
from ..records import Failure, Rollout, Task
from ..traces.identity import digest
from .fidelity import UserJudge, played_by_model, user_failure
from .model_user import ModelUser
from .rule_user import RuleUser
from .user_policy import ScriptedUser, UserPolicy


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
