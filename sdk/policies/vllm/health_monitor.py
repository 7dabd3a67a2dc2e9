"""The health monitor: a thread for each replica notices within seconds that it broke, and restarts it if it can."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import httpx

from ...errors import PolicyFailure
from ..server_process import ServerProcess
from .control import INCOMPLETE, broken_off, held_version, pressure_of, read_figures, unwell
from .fleet import Fleet, Replica

logger = logging.getLogger(__name__)

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
        if self._fleet.mark is None:
            self._engine_heard = time.monotonic()
            return None  # it would not know the adapter, which the next request finds out
        with self._fleet.state.changed:
            held = self._replica.holds
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
            if has == getattr(held, "mark", has):
                return None
        return f"the server has other weights ({has}) than it was given: it was started again"

    def _bring_back(self) -> bool:
        """False when there is nothing left to look after."""
        replica = self._replica
        while not self._closing:
            if replica.process is not None:
                replica.process.stop()
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
