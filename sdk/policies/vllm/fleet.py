"""The fleet of vLLM replicas: which of them takes a request, and how all of them get the same weights.

A request is admitted to a replica that is up, while no weights are being exchanged; until it leaves, the replica keeps
the weights that it was admitted with. So the version of each token is known, also where publication and sampling meet.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import anyio
import httpx

from ...errors import PolicyFailure
from ..server_process import ServerProcess
from .control import CacheFigures, ServerFailed, call, unwell
from .published_weights import Adapter, Weights, unload

R = TypeVar("R")
logger = logging.getLogger(__name__)

# State that threads change and coroutines of an event loop wait for.

T = TypeVar("T")


class SharedState:
    """A lock, and a way to hear of changes: in threads by `changed.wait_for`, in coroutines by `until`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def notify(self) -> None:
        """Something changed; called with `changed` held."""
        self.changed.notify_all()
        for loop, event in self._waiting:
            # A loop that has been closed has nobody left who waits.
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def until(self, look: Callable[[], T | None]) -> T:
        """What `look` returns, as soon as that is more than None. It is called with `changed` held, and may raise."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        try:
            while True:
                entry[1].clear()
                with self.changed:
                    self._waiting.add(entry)
                    found = look()
                if found is not None:
                    return found
                await entry[1].wait()
        finally:
            with self.changed:
                self._waiting.discard(entry)


_KEPT = 5_000
"""So many prompts and conversations are remembered: those of a step of training, and some of the step before."""


class PrefixRouter(Generic[R]):
    """Remembers where whole prompts and answered conversations went.

    The members of a group have the same prompt, and a rollout's next turn begins with the last one and its answer: both
    are found again exactly. What only begins alike, as all prompts with the same tools do, goes where least is under
    way; otherwise everything would pile up on the replica that came first.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[int, bytes], R] = OrderedDict()
        """By length and digest, the one noted last at the end."""

    def choose(self, tokens: Sequence[int], candidates: Iterable[R], load: Callable[[R], int]) -> R:
        """One of the candidates, of which there is at least one."""
        able = list(candidates)
        for key in reversed(_digests(tokens, {length for length, _ in self._places if length <= len(tokens)})):
            place = self._places.get(key)
            if place is not None and place in able:
                return place
        return min(able, key=load)

    def note(self, tokens: Sequence[int], place: R) -> None:
        """A prompt, or a prompt with its answer, is in the cache of `place`."""
        (key,) = _digests(tokens, [len(tokens)])
        self._places[key] = place
        self._places.move_to_end(key)
        if len(self._places) > _KEPT:
            self._places.popitem(last=False)

    def forget(self, place: R) -> None:
        """The cache of `place` is gone."""
        for key in [key for key, held in self._places.items() if held == place]:
            del self._places[key]


def _digests(tokens: Sequence[int], lengths: Iterable[int]) -> list[tuple[int, bytes]]:
    """The digests of the first so many tokens, shortest first."""
    data = array("q", tokens).tobytes()
    running, done, found = hashlib.blake2b(digest_size=16), 0, []
    for length in sorted(lengths):
        running.update(data[done * 8 : length * 8])
        done = length
        found.append((length, running.digest()))
    return found


Condition = Literal["up", "suspect", "down", "gone"]
"""`suspect`: a request failed and nobody knows yet why; `down`: it is being brought back; `gone`: given up."""


@dataclass(eq=False)
class Ticket:
    """One request under way: where, and with which weights."""

    replica: Replica
    model: str
    version: int
    loop: asyncio.AbstractEventLoop
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    lost: str | None = None
    """Why the server cannot answer any more."""

    def lose(self, why: str) -> None:
        """The server broke: stop waiting for it. Called by any thread."""
        self.lost = why
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.scope.cancel)


@dataclass(eq=False)
class Replica:
    """Changed only with the fleet's lock held."""

    url: str
    base: str
    """The name of the model without an adapter."""
    process: ServerProcess | None = None
    condition: Condition = "up"
    problem: str = ""
    model: str = ""
    version: int = 0
    holds: Weights | None = None
    """What it samples from; None while that is not known."""
    tickets: set[Ticket] = field(default_factory=set)
    figures: CacheFigures | None = None
    """Of its cache, when it was last looked at; None while it tells nothing."""
    pressure: float = 0.0
    """How full its cache is, see `pressure_of`."""
    asleep: bool = False
    """Whether it has given up the memory of its GPU."""
    retired: list[str] = field(default_factory=list)
    """Adapters of earlier versions that requests under way may still use."""

    def __post_init__(self) -> None:
        self.model = self.model or self.base

    def unused(self) -> list[str]:
        """The retired adapters that no request uses any more; they are taken off the list."""
        used = Counter(ticket.model for ticket in self.tickets)
        free = [name for name in self.retired if not used[name]]
        self.retired = [name for name in self.retired if used[name]]
        return free

    def lose(self, why: str, condition: Condition) -> None:
        """It broke, its weights with it: whoever waits for an answer hears of it now."""
        self.condition, self.problem, self.holds, self.asleep = condition, why, None, False
        self.figures, self.pressure = None, 0.0
        for ticket in self.tickets:
            ticket.lose(why)


_PUT_S = 600.0
_LOOK_AGAIN_S = 0.5
_DYING_S = 2.0
"""So long a server may answer that it is well after its engine has died."""


class Fleet:
    """The replicas and the weights that they have, or are to have when they come back."""

    def __init__(self, replicas: Sequence[Replica], *, recover_timeout_s: float, drain_timeout_s: float) -> None:
        self.replicas = list(replicas)
        self.state = SharedState()
        self.counts: Counter[str] = Counter()
        """`retries`, `restarts`, `publications`, `interrupted`, `preemptions`: since the start."""
        # A connection for each call: one that is kept may be closed just as the next call begins, and an exchange of
        # weights that breaks off costs a server.
        self.client = httpx.Client(
            timeout=httpx.Timeout(_PUT_S, connect=10.0), limits=httpx.Limits(max_keepalive_connections=0)
        )
        self._recover_timeout_s = recover_timeout_s
        self._drain_timeout_s = drain_timeout_s
        self._current = Weights()
        self._adapters: dict[str, Adapter] = {}
        self._exchanging = False
        self._resting = False
        self._closed = False
        self._putting = threading.Lock()
        self._router = PrefixRouter[Replica]()
        for replica in self.replicas:
            replica.holds = self._current

    # Requests

    async def admit(self, tokens: Sequence[int]) -> Ticket:
        """A place for a request with this prompt, as soon as there is one. Raises `PolicyFailure` when there is none
        within `recover_timeout_s`, at once where no replica will come back."""
        loop = asyncio.get_running_loop()

        def look() -> Ticket | None:
            if self._closed:
                raise PolicyFailure("vLLM was closed; open it again")
            if all(replica.condition == "gone" for replica in self.replicas):
                raise PolicyFailure(f"no vLLM server is left: {self._problems()}")
            able = [replica for replica in self.replicas if replica.condition == "up"]
            if self._exchanging or self._resting or not able:
                return None
            replica = self._router.choose(tokens, able, lambda one: len(one.tickets))
            self._router.note(tokens, replica)
            ticket = Ticket(replica, replica.model, replica.version, loop)
            replica.tickets.add(ticket)
            return ticket

        try:
            async with asyncio.timeout(self._recover_timeout_s):
                return await self.state.until(look)
        except TimeoutError:
            why = self._problems() or "weights are being exchanged"
            raise PolicyFailure(f"no vLLM server could be asked for {self._recover_timeout_s:g} s: {why}") from None

    def leave(self, ticket: Ticket, *, answered: Sequence[int] | None = None) -> None:
        """The request has ended. `answered`: prompt and answer, with which the next turn of its rollout begins."""
        with self.state.changed:
            ticket.replica.tickets.discard(ticket)
            if answered is not None:
                self._router.note(answered, ticket.replica)
            self.state.notify()

    def suspect(self, replica: Replica, why: str, *, forgot: bool = False) -> None:
        """A request to it failed: nobody else is sent there until it has been looked after. `forgot`: it does not know
        the weights that it was given."""
        with self.state.changed:
            if replica.condition == "up":
                replica.condition, replica.problem = "suspect", why
                if forgot:
                    replica.lose(why, "suspect")
                self.state.notify()

    def pressure(self) -> float:
        """That of the fullest replica that is up, as of the last second or so; 0 while none tells."""
        with self.state.changed:
            return max((one.pressure for one in self.replicas if one.condition == "up"), default=0.0)

    # Weights

    @property
    def mark(self) -> str | None:
        """What the servers say that they have, where all their weights were exchanged."""
        return getattr(self._current, "mark", None)

    @property
    def putting(self) -> bool:
        """Whether some server is being given weights now."""
        return self._putting.locked()

    def exchange(self, weights: Weights, *, interrupt: bool = False) -> None:
        """All replicas sample from `weights` when this returns; one that is down does so when it comes back.

        Adapters are exchanged beside requests under way. Other weights wait until those have ended, or with
        `interrupt` cut them off. Blocks. Raises `PolicyFailure` where a server refuses them or no replica is left.
        """
        with self._putting, weights.at_hand():
            old, self._current = self._current, weights
            self._wake()
            if isinstance(weights, Adapter):
                self._adapters[weights.name] = weights
                self._put_everywhere(weights)
            else:
                with self._alone(interrupt=interrupt):
                    self._put_everywhere(weights)
            self.counts["publications"] += 1
        if not isinstance(old, Adapter):  # adapters stay for the requests that began with them
            old.remove()

    def renumber(self, version: int) -> None:
        """The present weights are those of this version, too. Blocks. Raises `PolicyFailure` as `exchange` does."""
        with self._putting:
            self._wake()
            old, self._current = self._current, self._current.renumbered(version)
            if isinstance(self._current, Adapter):
                self._adapters[self._current.name] = self._current
            with self.state.changed:
                for replica in self.replicas:
                    if replica.holds is old:
                        replica.holds, replica.version = self._current, version
                self.state.notify()

    def _wake(self) -> None:
        for replica in self.replicas:
            if replica.asleep:
                self._tell(replica, "wake_up")
                replica.asleep = False
        self._resting = False

    def sleep(self) -> None:
        """All replicas give up the memory of their GPU, and nothing is sampled until the next `exchange`. Requests
        under way end first. Blocks. Raises `PolicyFailure` where they do not."""
        with self._putting, self._alone(interrupt=False):
            self._resting = True
            for replica in self.replicas:
                if replica.condition == "up":
                    # Level 1 keeps the weights in main memory: adapters need those that the server was started with.
                    self._tell(replica, "sleep?level=1")
                    replica.asleep = replica.condition == "up"

    def bring_back(self, replica: Replica) -> None:
        """Requests go to a replica that answers again, once it has the present weights. Raises as `exchange` does, and
        `httpx.HTTPError`."""
        with self._putting:
            if replica.holds is not self._current:
                with self.state.changed:  # those that it lost are about to leave
                    self.state.changed.wait_for(lambda: not replica.tickets, timeout=self._drain_timeout_s)
                model = self._given(replica, self._current)
                with self.state.changed:
                    replica.retired.clear()
                    replica.model, replica.version, replica.holds = model, self._current.version, self._current
                    self._router.forget(replica)
            with self.state.changed:
                replica.condition, replica.problem = "up", ""
                self.state.notify()
            if self._resting:  # it was started again in the midst of an update, which needs the memory
                self._tell(replica, "sleep?level=1")
                replica.asleep = True

    def unload_unused(self, replica: Replica) -> None:
        """Take away the adapters of earlier versions that no request uses any more."""
        with self.state.changed:
            names = replica.unused()
        for name in names:
            try:
                unload(replica.url, self.client, name)
            except (PolicyFailure, httpx.HTTPError) as error:
                logger.warning("vLLM at %s keeps the old adapter %s: %s", replica.url, name, error)
        with self.state.changed:
            needed = {name for one in self.replicas for name in (one.model, *one.retired)}
            done = [a for a in self._adapters.values() if a.name not in needed and a is not self._current]
            for adapter in done:
                del self._adapters[adapter.name]
        for adapter in done:
            adapter.remove()

    def close(self) -> None:
        """Whoever waits hears of it. Running servers keep nothing of ours but full weights."""
        with self.state.changed:
            self._closed = True
            for replica in self.replicas:
                for ticket in replica.tickets:
                    ticket.lose("vLLM was closed")
                if replica.process is None and replica.condition == "up" and replica.model != replica.base:
                    replica.retired.append(replica.model)
                replica.tickets.clear()
            self.state.notify()
        for replica in self.replicas:
            if replica.process is None and replica.condition == "up":
                self.unload_unused(replica)
        for weights in (self._current, *self._adapters.values()):
            weights.remove()
        self.client.close()

    def _put_everywhere(self, weights: Weights) -> None:
        up = [replica for replica in self.replicas if replica.condition == "up"]
        if not up and all(replica.condition == "gone" for replica in self.replicas):
            raise PolicyFailure(f"no vLLM server is left to take the weights: {self._problems()}")
        if len(up) == 1:
            self._put(up[0], weights)
            return
        with ThreadPoolExecutor(max_workers=max(1, len(up))) as pool:
            for done in [pool.submit(self._put, replica, weights) for replica in up]:
                done.result()

    def _put(self, replica: Replica, weights: Weights) -> None:
        try:
            model = self._given(replica, weights)
        except httpx.HTTPError as error:
            # Whoever looks after the replica gives it the weights when it is back.
            why = f"{type(error).__name__} while it took weights: {error}"
            logger.warning("vLLM at %s: %s", replica.url, why)
            self.suspect(replica, why)
            return
        except PolicyFailure as error:
            if not isinstance(weights, Adapter):  # it may have a part of them
                self.suspect(replica, str(error), forgot=True)
            raise
        with self.state.changed:
            if replica.model != replica.base:
                replica.retired.append(replica.model)
            replica.model, replica.version, replica.holds = model, weights.version, weights
            if model == replica.base:
                self._router.forget(replica)
            self.state.notify()
        self.unload_unused(replica)

    def _given(self, replica: Replica, weights: Weights) -> str:
        """As `Weights.put`. A server whose engine died of it answers HTTP 500, too, and cannot be reached from then on:
        that is an `httpx.HTTPError` here."""
        try:
            return weights.put(replica.url, self.client, replica.base)
        except ServerFailed as error:
            if self._dies(replica):
                raise httpx.RemoteProtocolError(str(error)) from error
            raise

    def _dies(self, replica: Replica) -> bool:
        """Whether a server that failed is not well, or says so within `_DYING_S`."""
        condition, deadline = replica.condition, time.monotonic() + _DYING_S
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TimeoutException):
                if unwell(replica.url, self.client) is not None:
                    return True
            with self.state.changed:  # whoever looks after it may see it first
                if self.state.changed.wait_for(lambda: replica.condition != condition, timeout=_LOOK_AGAIN_S):
                    return True
        return False

    @contextlib.contextmanager
    def _alone(self, *, interrupt: bool) -> Iterator[None]:
        """Nothing of ours is under way in the block."""
        with self.state.changed:
            self._exchanging = True
        paused: set[Replica] = set()
        try:
            self._drain(paused, interrupt=interrupt)
            yield
        finally:
            try:
                for replica in paused:
                    if replica.condition == "up":  # others may have a part of the weights
                        self._tell(replica, "resume")
            finally:
                with self.state.changed:
                    self._exchanging = False
                    self.state.notify()

    def _drain(self, paused: set[Replica], *, interrupt: bool) -> None:
        """Wait until no request is under way. `interrupt`: cut off what is, into `paused`; again and again, for a
        request that reaches its server only after the first time."""
        deadline = time.monotonic() + self._drain_timeout_s
        while True:
            for replica in self.replicas if interrupt else ():
                if replica.condition == "up" and replica.tickets:
                    self.counts["interrupted"] += len(replica.tickets) if replica not in paused else 0
                    paused.add(replica)
                    self._tell(replica, "pause?mode=abort")
            with self.state.changed:
                if self.state.changed.wait_for(lambda: not self._under_way(), timeout=_LOOK_AGAIN_S):
                    return
            if time.monotonic() > deadline:
                raise PolicyFailure(
                    f"{self._under_way()} requests to vLLM have not ended within {self._drain_timeout_s:g} s; the "
                    "weights were not exchanged"
                )

    def _tell(self, replica: Replica, what: str) -> None:
        """To pause or to go on. One that does not is looked after, and is given the weights again, which ends a pause:
        what it may have died of (HTTP 500) is no reason to end the run."""
        try:
            call(self.client, f"{replica.url}/{what}")
        except (httpx.HTTPError, ServerFailed) as error:
            self.suspect(replica, f"{type(error).__name__} when told to {what}: {error}", forgot=True)

    def _under_way(self) -> int:
        return sum(len(replica.tickets) for replica in self.replicas)

    def _problems(self) -> str:
        return "; ".join(f"{replica.url}: {replica.problem}" for replica in self.replicas if replica.problem)
