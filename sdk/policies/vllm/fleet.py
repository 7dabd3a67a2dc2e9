"""The fleet of vLLM replicas. It chooses the replica of each request and gives all replicas the same weights. A thread
for each replica notices within seconds that it broke, and starts it again if it can.

A request is admitted to a replica that is up, while no weights are being exchanged; until it leaves, the replica keeps
the weights that it was admitted with. So the version of each token is known, also where publication and sampling meet.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import threading
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

import anyio
import httpx

from ...errors import PolicyFailure
from ..server_process import ServerProcess
from .control import INCOMPLETE, ServerFailed, broken_off, call, held_version, unwell
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


# How full a server's cache is. Metrics have vLLM's names (`vllm/v1/metrics/loggers.py`), in Prometheus' text format.

USAGE = "vllm:kv_cache_usage_perc"
WAITING = "vllm:num_requests_waiting"
PREEMPTED = "vllm:num_preemptions_total"

_SAMPLE = re.compile(
    r"^(?P<name>vllm:[a-z_]+)(?:\{(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*\})? (?P<value>[^ ]+)(?: -?\d+)?$", re.MULTILINE
)
_MUCH = 0.75
"""Of the cache: above it requests are taken to wait for room in it, below for the end of the largest batch."""


@dataclass(frozen=True)
class CacheFigures:
    """What a server tells. With several engines in one server: of the fullest, and the sums."""

    usage: float
    """0 to 1: the blocks that requests under way hold. What is only kept to be found again is free."""
    waiting: int
    """Requests that wait for their first token, or for room after they were pre-empted."""
    preempted: int
    """Since the server's start: how often a request was thrown out for another, to be computed again."""


def read_figures(text: str) -> CacheFigures | None:
    """From the body of `/metrics`; None where it has not all three, as where the server keeps no statistics."""
    found: dict[str, list[float]] = {USAGE: [], WAITING: [], PREEMPTED: []}
    for sample in _SAMPLE.finditer(text):
        if sample["name"] in found:
            try:
                found[sample["name"]].append(float(sample["value"]))
            except ValueError:
                return None
    if not all(found.values()) or not all(0 <= value < 1e15 for values in found.values() for value in values):
        return None
    return CacheFigures(max(found[USAGE]), int(sum(found[WAITING])), int(sum(found[PREEMPTED])))


def pressure_of(now: CacheFigures, before: CacheFigures | None) -> float:
    """The share of the cache in use; 1 and above where it is too small for what is under way.

    That is where requests were pre-empted since the look before, or wait while more than three quarters are in use.
    A server that has fewer pre-emptions than before was started again.
    """
    lost = now.preempted - before.preempted if before is not None and now.preempted >= before.preempted else 0
    crowded = now.usage >= _MUCH and now.waiting > 0
    return max(now.usage, 1.0) + lost if lost or crowded else now.usage


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
        self._below = self._current
        """The latest that are not an adapter: those that an adapter is added to."""
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
        """A place for a request with this prompt, as soon as there is one. Raises `PolicyFailure` where all have
        been away for `recover_timeout_s`, at once where none will come back."""
        loop = asyncio.get_running_loop()

        def look() -> Ticket | None:
            if self._closed:
                raise PolicyFailure("vLLM was closed; open it again")
            if all(replica.condition == "gone" for replica in self.replicas):
                raise PolicyFailure(f"no vLLM server is left: {self._problems()}")
            able = [replica for replica in self.replicas if replica.condition == "up"]
            if self._exchanging or self._resting:
                patience.reschedule(None)  # it ends by itself
                return None
            if not able:
                if patience.when() is None:
                    patience.reschedule(loop.time() + self._recover_timeout_s)
                return None
            replica = self._router.choose(tokens, able, lambda one: len(one.tickets))
            self._router.note(tokens, replica)
            ticket = Ticket(replica, replica.model, replica.version, loop)
            replica.tickets.add(ticket)
            return ticket

        try:
            async with asyncio.timeout(None) as patience:
                return await self.state.until(look)
        except TimeoutError:
            why = self._problems()
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
        """What the servers say that they have, below an adapter, too, where all their weights were exchanged."""
        return getattr(self._below, "mark", None)

    def mark_of(self, held: Weights | None) -> str | None:
        """What a server with these weights says that it has; None where that is not known."""
        return getattr(held, "mark", self.mark if held is self._current else None)

    @property
    def putting(self) -> bool:
        """Whether some server is being given weights now."""
        return self._putting.locked()

    def exchange(self, weights: Weights, *, interrupt: bool = False) -> None:
        """All replicas sample from `weights` when this returns; one that is down does so when it comes back.

        Adapters are exchanged beside requests under way. Other weights wait until those have ended, or with
        `interrupt` cut them off. Blocks. Raises `PolicyFailure` where a server refuses them or no replica is left.
        """
        with self._putting, weights.at_hand(), self._awake():
            self._current, below = weights, self._below
            if isinstance(weights, Adapter):  # which stays for the requests that began with it
                self._adapters[weights.name] = weights
                self._put_everywhere(weights)
            else:
                self._below = weights
                with self._alone(interrupt=interrupt):
                    self._put_everywhere(weights)
                below.remove()
            self.counts["publications"] += 1

    def renumber(self, version: int) -> None:
        """The present weights are those of this version, too. Blocks. Raises `PolicyFailure` as `exchange` does."""
        with self._putting, self._awake():
            old, self._current = self._current, replace(self._current, version=version)
            if isinstance(self._current, Adapter):
                self._adapters[self._current.name] = self._current
            else:
                self._below = self._current
            with self.state.changed:
                for replica in self.replicas:
                    if replica.holds is old:
                        replica.holds, replica.version = self._current, version
                self.state.notify()

    @contextlib.contextmanager
    def _awake(self) -> Iterator[None]:
        """In the block the servers have the memory of their GPU again; after it they are asked again."""
        try:
            for replica in self.replicas:
                if replica.asleep:
                    self._tell(replica, "wake_up")
                    replica.asleep = False
            yield
        finally:
            with self.state.changed:
                self._resting = False
                self.state.notify()

    def sleep(self) -> None:
        """All replicas give up the memory of their GPU, and nothing is sampled until the next `exchange`. Requests
        under way end first. Blocks. Raises `PolicyFailure` where they do not."""
        with self._putting, self._alone(interrupt=False):
            self._resting = True
            try:
                for replica in self.replicas:
                    if replica.condition == "up":
                        # Level 1 keeps the weights in main memory: adapters need those below them.
                        self._tell(replica, "sleep?level=1")
                        replica.asleep = replica.condition == "up"
            except PolicyFailure:
                self._resting = False
                raise

    def wait_while_resting(self, given_up: Callable[[], bool]) -> None:
        """Returns when the servers have their GPU's memory, without which none starts, or when it is given up."""
        with self.state.changed:
            self.state.changed.wait_for(lambda: given_up() or not self._resting)

    def bring_back(self, replica: Replica) -> None:
        """Requests go to a replica that answers again, once it has the present weights. Raises as `exchange` does, and
        `httpx.HTTPError`."""
        with self._putting:
            if replica.holds is not self._current:
                with self.state.changed:  # those that it lost are about to leave
                    self.state.changed.wait_for(lambda: not replica.tickets, timeout=self._drain_timeout_s)
                if isinstance(self._current, Adapter) and self.mark is not None:
                    self._given(replica, self._below)
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
        for weights in (self._below, *self._adapters.values()):
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
            self.state.notify()
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
        what it may have died of (HTTP 500) is not a reason to end the run."""
        try:
            call(self.client, f"{replica.url}/{what}")
        except (httpx.HTTPError, ServerFailed) as error:
            self.suspect(replica, f"{type(error).__name__} when told to {what}: {error}", forgot=True)

    def _under_way(self) -> int:
        return sum(len(replica.tickets) for replica in self.replicas)

    def _problems(self) -> str:
        return "; ".join(f"{replica.url}: {replica.problem}" for replica in self.replicas if replica.problem)


_EVERY_S = 1.0
_PROBE_S = 10.0
_SILENT_S = 60.0
"""A server that answers no question about its health for so long is taken to hang."""
_BUSY_S = 330.0
"""An engine that answers none for so long, either. It answers between two steps, and a step with many prompts takes a
CPU long; vLLM ends one itself after 300 s (`VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`)."""

StartAgain = Callable[[Replica], ServerProcess]
"""Starts a new server in the place of one of ours. Raises `PolicyFailure` where no more may be started."""


class Watcher:
    """Looks after one replica from `start` to `stop`."""

    def __init__(self, fleet: Fleet, replica: Replica, *, start_again: StartAgain, start_timeout_s: float) -> None:
        self._fleet = fleet
        self._replica = replica
        self._start_again = start_again
        self._start_timeout_s = start_timeout_s
        self._closing = self._told_silent = False
        self._heard = self._engine_heard = time.monotonic()
        self._client = httpx.Client(timeout=_PROBE_S)
        self._thread = threading.Thread(target=self._run, name=f"vllm-watcher-{replica.url}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Bounded by the few questions of one look at the server."""
        with self._fleet.state.changed:
            self._closing = True
            self._fleet.state.notify()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        replica, state = self._replica, self._fleet.state
        while True:
            with state.changed:
                state.changed.wait_for(lambda: self._closing or replica.condition == "suspect", timeout=_EVERY_S)
                if self._closing:
                    return
                suspected = replica.condition == "suspect"
            problem = self._probe()
            if problem:
                logger.warning("vLLM at %s broke: %s", replica.url, problem)
                with state.changed:
                    replica.lose(problem, "down")
                    state.notify()
                if not self._bring_back():
                    return
                continue
            if problem is None:
                if suspected and not self._welcome():
                    return
                self._fleet.unload_unused(replica)
            self._look_at_cache()

    def _probe(self) -> str | None:
        """What is wrong with the server. None: nothing; "": it did not answer, and may be busy."""
        process = self._replica.process
        if process is not None and process.ended is not None:
            return f"the server exited with status {process.ended}; {process.last_words()}"
        try:
            problem = unwell(self._replica.url, self._client, timeout_s=_PROBE_S)
        except httpx.TimeoutException:
            silent = time.monotonic() - self._heard
            return f"the server has not answered for {silent:.0f} s" if silent > _SILENT_S else ""
        self._heard = time.monotonic()
        if problem is None:
            return self._forgotten()
        return f"{problem}; {process.last_words()}" if process is not None else problem

    def _look_at_cache(self) -> None:
        """Note how full the cache is. A server that does not tell limits nobody, and the log says so once."""
        replica = self._replica
        try:
            answer = self._client.get(f"{replica.url}/metrics")
            figures = read_figures(answer.text) if answer.status_code == 200 else None
        except httpx.HTTPError:
            return  # the next question about its health finds out what is wrong
        if figures is None:
            if not self._told_silent:
                self._told_silent = True
                logger.warning(
                    "vLLM at %s does not report at /metrics how full its cache is, which then does not limit the "
                    "rollouts in flight. Was it started with --disable-log-stats?",
                    replica.url,
                )
            return
        with self._fleet.state.changed:
            before, replica.figures = replica.figures, figures
            replica.pressure = pressure_of(figures, before)
            if before is not None:
                self._fleet.counts["preemptions"] += max(0, figures.preempted - before.preempted)

    def _forgotten(self) -> str | None:
        """Whether it was started again since it took weights, and nobody saw it, or has a part of new ones; as `_probe`
        says it."""
        with self._fleet.state.changed:
            held = self._replica.holds
        # A server that does not know the adapter is found out by the next request. Below an adapter a server may have
        # others where somebody else started it again; ours are started by us.
        if self._fleet.mark is None or (isinstance(held, Adapter) and self._replica.process is not None):
            self._engine_heard = time.monotonic()
            return None
        try:
            has = held_version(self._replica.url, self._client)
        except httpx.TimeoutException:
            silent = time.monotonic() - self._engine_heard
            return f"the engine has not answered for {silent:.0f} s" if silent > _BUSY_S else ""
        except (httpx.HTTPError, PolicyFailure) as error:
            return f"the server does not report which weights it has ({type(error).__name__}: {error})"
        self._engine_heard = time.monotonic()
        with self._fleet.state.changed:
            being_exchanged = self._replica.condition == "up" and self._fleet.putting
            if being_exchanged or self._replica.holds is not held:
                return None
            if has.startswith(INCOMPLETE):
                return broken_off(has)
            if self._fleet.mark_of(held) in (None, has):
                return None
        return f"the server has other weights ({has}) than it was given: it was started again"

    def _bring_back(self) -> bool:
        """False when there is nothing left to look after."""
        replica = self._replica
        while not self._closing:
            if replica.process is not None:
                replica.process.stop()
                self._fleet.wait_while_resting(lambda: self._closing)
                if self._closing:
                    return False
                try:
                    replica.process = self._start_again(replica)
                except PolicyFailure as error:
                    self._give_up(str(error))
                    return False
                replica.url = replica.process.url
                self._fleet.counts["restarts"] += 1
            if self._answers_again():
                self._heard = self._engine_heard = time.monotonic()
                logger.warning("vLLM at %s answers again", replica.url)
                return self._welcome()
        return False

    def _answers_again(self) -> bool:
        """Wait for it. A server of ours has `start_timeout_s`; for others we wait as long as we run."""
        replica = self._replica
        deadline = time.monotonic() + self._start_timeout_s
        while not self._closing:
            problem = self._probe()
            if problem is None:
                return True
            if replica.process is not None and (replica.process.ended is not None or time.monotonic() > deadline):
                replica.problem = problem or f"no answer within {self._start_timeout_s:g} s of the start"
                return False
            with self._fleet.state.changed:
                self._fleet.state.changed.wait_for(lambda: self._closing, timeout=_EVERY_S)
        return False

    def _welcome(self) -> bool:
        """Give it the present weights; False where it refuses them and is given up."""
        try:
            self._fleet.bring_back(self._replica)
        except PolicyFailure as error:
            self._give_up(str(error))
            return False
        except httpx.HTTPError as error:
            logger.warning("vLLM at %s broke while it took weights: %s", self._replica.url, type(error).__name__)
            with self._fleet.state.changed:
                self._replica.lose(f"{type(error).__name__} while it took weights", "suspect")
        return True

    def _give_up(self, why: str) -> None:
        logger.warning("vLLM at %s is not used any more: %s", self._replica.url, why)
        with self._fleet.state.changed:
            self._replica.lose(why, "gone")
            self._fleet.state.notify()
