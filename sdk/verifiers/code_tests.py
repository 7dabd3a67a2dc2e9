"""The verifier of code: it runs the code, confined, against tests that the code cannot see."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

from mcp_bridge.safe_text import and_more

from ..errors import ConfigError, VerifierError
from ..records import Rollout, Verdict
from .calls import fits
from .confined_process import ConfinedLimits, Outcome, call_confined, confinement, run_confined
from .value_checks import shortened, wrong_expected
from .verifier import ReadyMade

Need = Literal["files", "network", "processes"]
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)\n?```", re.DOTALL)
_CALL_KEYS = frozenset({"call", "args", "kwargs", "returns", "raises"})
_PROGRAM_KEYS = frozenset({"stdin", "prints"})
_FORM = (
    "a list of {'call': name, 'args': [...], 'returns': value} (or 'raises': 'ValueError'), or of {'stdin': text, "
    "'prints': text}"
)
_LIMITS = ConfinedLimits()
_MOST_CHARS = 100_000
_SHOWN = 3


@dataclass(eq=False, repr=False)
class code_passes(ReadyMade):
    """A verifier: Python code passes every test in `task.expected["tests"]`, each in a confined process of its own.

    A test is `{"call": name, "args": [...], "kwargs": {...}, "returns": value}`, or with `"raises": "ValueError"` in
    place of `returns` (the exception's own class, or the built-in one that it derives from), or
    `{"stdin": text, "prints": text}` for a whole program. `returns` may be a pattern, such as
    `{"$near": 0.5, "within": 0.001}`. Arguments and results are JSON. The process is given the inputs only; what is
    expected is compared outside of it, so that code can neither read nor forge it.

    `limits.seconds` is the wall time of all tests together; a test that has not ended by then has failed.

    `source` takes the code from the rollout, for example from a call's argument; None takes the answer's only fenced
    block, or the whole answer. `limits`: a `ConfinedLimits`. `needs`: what the kernel must keep the code from; rollouts
    stay unscored on a machine that cannot. `docs/verifiers.md` describes how far the confinement goes.

    Example: `code_passes(limits={"cpu_seconds": 2})`
    """

    source: Callable[[Rollout], str] | None = None
    _: KW_ONLY
    limits: ConfinedLimits | Mapping[str, Any] = _LIMITS
    needs: Sequence[Need] = get_args(Need)

    def __post_init__(self) -> None:
        if self.source is not None and not callable(self.source):
            raise ConfigError(f"code_passes: source is {self.source!r}; give a function from the rollout to the code")
        if isinstance(self.needs, str) or not set(self.needs) <= set(get_args(Need)):
            raise ConfigError(f"code_passes: needs is {self.needs!r}; choose among {', '.join(get_args(Need))}")
        self.needs = tuple(self.needs)
        if not isinstance(self.limits, ConfinedLimits):
            names = [field.name for field in dataclasses.fields(ConfinedLimits)]
            if wrong := sorted(set(self.limits) - set(names)):
                raise ConfigError(f"code_passes: there is no limit {wrong[0]!r}; the limits are {', '.join(names)}")
            self.limits = ConfinedLimits(**self.limits)

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the code passes every test, 0 otherwise, with the first that fails."""
        assert isinstance(self.limits, ConfinedLimits)
        tests = _tests(rollout)
        self._require_confinement()
        code = self.source(rollout) if self.source is not None else _code(rollout)
        if code is None or not code.strip():
            return _verdict(0, len(tests), ["there is no code: write the whole answer as one fenced block"])
        if len(code) > _MOST_CHARS:
            return _verdict(0, len(tests), [f"the code has {len(code)} characters, more than {_MOST_CHARS}"])
        problems = []
        ends = time.monotonic() + self.limits.seconds
        for number, test in enumerate(tests, start=1):
            left = ends - time.monotonic()
            limits = dataclasses.replace(self.limits, seconds=left)
            problem = self._problem(code, test, rollout, limits) if number == 1 or left > 1 else "no time was left"
            problems += [f"test {number} of {len(tests)}: {problem}"] * (problem is not None)
        return _verdict(len(tests) - len(problems), len(tests), problems)

    def _problem(self, code: str, test: Mapping[str, Any], rollout: Rollout, limits: ConfinedLimits) -> str | None:
        """Why a test fails, or None. Each runs in a process of its own: nothing is kept from one to the next."""
        if "prints" in test:
            out = run_confined(code, test.get("stdin", ""), limits=limits)
            same = _lines(out.stdout) == _lines(test["prints"])
            return out.problem or (None if same else f"it printed {shortened(out.stdout, 80)}")
        args, kwargs = test.get("args", []), test.get("kwargs", {})
        out = call_confined(code, test["call"], args, kwargs, limits=limits)
        return _call_problem(out, test, f"task {rollout.task.id!r}: expected['tests']")

    def _require_confinement(self) -> None:
        missing = [need for need in self.needs if not getattr(confinement(), need)]
        if missing:
            raise VerifierError(
                f"code_passes: this machine cannot keep the code from {' and '.join(missing)} ({confinement()}); "
                f"run where it can (Linux 5.13 or newer), or accept it: needs={tuple(set(self.needs) - set(missing))!r}"
            )


def _call_problem(out: Outcome, test: Mapping[str, Any], where: str) -> str | None:
    if "raises" in test:
        if test["raises"] in out.raised:
            return None
        return out.problem or f"it returned {shortened(out.returned, 80)} instead of raising"
    if out.problem is not None:
        return out.problem
    return None if fits(test["returns"], out.returned, where) else f"it returned {shortened(out.returned, 80)}"


def _tests(rollout: Rollout) -> list[Mapping[str, Any]]:
    tests = rollout.task.expected.get("tests")
    if not isinstance(tests, list) or not tests:
        raise wrong_expected(rollout.task, "tests", f"is {shortened(tests)}; it must be {_FORM}")
    for test in tests:
        keys = set(test) if isinstance(test, Mapping) else set()
        calls = {"call"} < keys <= _CALL_KEYS and len(keys & {"returns", "raises"}) == 1
        if not calls and not {"prints"} <= keys <= _PROGRAM_KEYS:
            raise wrong_expected(rollout.task, "tests", f"holds {shortened(test)}; write {_FORM}")
    return tests


def _code(rollout: Rollout) -> str | None:
    if rollout.stop_reason != "answered":
        return None
    blocks: list[str] = _FENCED.findall(rollout.answer)
    if len(blocks) == 1:
        return blocks[0]
    return None if blocks or "```" in rollout.answer else rollout.answer


def _verdict(passed: int, tests: int, problems: Sequence[str]) -> Verdict:
    said = and_more(problems, _SHOWN, ";") or f"all {tests} tests"
    return Verdict(score=float(passed == tests), components={"tests": passed / tests}, explanation=said)


def _lines(text: str) -> list[str]:
    """The printed lines, without blanks at their ends and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
