"""The context of a run: what every stage plays its rollouts with, and where it writes. Scripted conversations are
played in it side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

from mcp_bridge import Toolset
from mcp_bridge.ledger import Listener

from ..policies.protocol import Agent, Sampling
from ..progress import Progress, Silent, Step
from ..records import Rollout
from ..traces.run_folder import RunFolder
from ..users.played_users import Users
from ..verifiers import VerifierLike
from ..worker_pool import work_through
from .engine import RolloutEngine
from .episode import AgentHost, Job
from .limits import Limits


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Made once where a run begins, and handed to its stages."""

    tools: Toolset
    verifier: VerifierLike | None
    limits: Limits
    concurrency: int
    """The most rollouts in flight at once."""
    folder: RunFolder | None = None
    """None: nothing is kept."""
    progress: Progress = field(default_factory=Silent)
    success_threshold: float = 1.0
    """A rollout whose score reaches this counts as a success."""
    seed: int = 0
    host: AgentHost | None = None
    """Plays the rollouts with an agent of the user's; None: the loop that comes with the library does. Scripts are
    played by that where `play_scripts` is given no other."""
    users: Users = field(default_factory=Users)
    """Who takes the turns of tasks' users."""
    auditor: Agent | None = None
    """Audits the rollouts of a training; None: the policy that is trained does."""
    teacher: Callable[[], AbstractAsyncContextManager[Agent]] | None = None
    """Opens a model that plays training tasks, where none has a demonstration; None: demonstrations are searched."""

    @property
    def run_folder(self) -> RunFolder:
        """The folder, in runs that always have one."""
        assert self.folder is not None
        return self.folder

    @property
    def on_call(self) -> Listener | None:
        """Called with each tool call: it writes the folder's `calls.jsonl`."""
        return None if self.folder is None else self.folder.append_call

    def engine(self, agent: Agent) -> RolloutEngine:
        """An engine that plays with `agent`."""
        return RolloutEngine(
            agent=agent,
            source=self.tools,
            verifier=self.verifier,
            limits=self.limits,
            concurrency=self.concurrency,
            on_call=self.on_call,
            host=self.host,
            users=self.users,
        )


_UNLIMITED = 10**9


async def play_scripts(
    plays: Sequence[tuple[Job, Agent]], context: RunContext, step: Step, *, host: AgentHost | None = None
) -> list[Rollout]:
    """Play scripts (gold solutions, degenerate policies), each with an agent of its own; `step` advances with each.
    Returns the rollouts in the order of `plays`. `host`: see `RunContext.host`.

    No token limit holds: a script is counted in bytes, not in a policy's tokens.
    """
    generous = context.limits.model_copy(update={"max_turn_tokens": _UNLIMITED, "max_tokens": _UNLIMITED})
    alone = replace(context, limits=generous, concurrency=1, host=host)
    greedy = Sampling(temperature=0.0, max_tokens=_UNLIMITED)
    rollouts: dict[int, Rollout] = {}

    async def play(place: int) -> None:
        job, agent = plays[place]
        [rollouts[place]] = await alone.engine(agent).run([job], sampling=greedy)
        step.advance()

    await work_through(range(len(plays)), play, at_once=context.concurrency)
    return [rollouts[place] for place in range(len(plays))]
