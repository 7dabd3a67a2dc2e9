"""The check of an export: what the run asked its model through the endpoint, asked again at the exported files.

Each answer is asked for with the conversation before it as it was measured, and a client's defaults: no tool runs.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from mcp_bridge.records import Tool

from ..errors import ConfigError, PolicyFailure
from ..evaluation.measurement import NOT_SENT, SERVED
from ..evaluation.report import CONDITIONS
from ..policies.embedded.scheduler import free_bytes
from ..policies.endpoint import EndpointAgent
from ..policies.protocol import Sampling
from ..policies.server_process import ServerProcess, free_port, wait_until_ready
from ..policies.tool_prompt import shown_tools
from ..policies.vllm.server_command import VllmBuild, find_vllm
from ..progress import Progress, Silent
from ..records import CUT_OFF, Message, Rollout
from ..serving.vllm_server import ServedModel, serve_with_vllm
from ..tasks import counted
from ..traces import RunFolder
from ..trainer.run_identity import weight_bytes
from .exported_folder import WITH_GGUF, Kind, gguf_name, llama_words, run_of

LLAMA_SERVER = "llama-server"
_START_S = 600.0
SHOWN_CHARS = 160
"""Of an answer that differs."""
_STARTING = "starting {} to check the export (--no-check leaves that out)"


@dataclass(frozen=True)
class Difference:
    """A measured answer that the exported model does not give."""

    task: str
    """The task's id."""
    answer: int
    """Which of its answers, from 1."""
    measured: str
    """Of a long answer, the part with the first difference; `found`, too."""
    found: str


@dataclass(frozen=True)
class ExportCheck:
    """How an exported model answers, beside what was measured."""

    server: str
    """What served it."""
    asked: list[Rollout]
    """The measured rollouts whose answers were asked for again."""
    left_out: list[Rollout]
    """Those with an answer that was cut off or a call that is not valid: servers report these each in its own way."""
    differences: list[Difference] = field(default_factory=list)

    @property
    def differ(self) -> list[str]:
        """Tasks with a difference, by their ids."""
        return list(dict.fromkeys(one.task for one in self.differences))

    @property
    def like_measured(self) -> bool:
        """Whether at least half of the tasks are answered as measured. Sums in another order may turn an answer."""
        return 2 * len(self.differ) <= len(self.asked)

    def __str__(self) -> str:
        answers = sum(len(answers_of(rollout)) for rollout in self.asked)
        tasks = counted([rollout.task for rollout in self.asked], "held-out task")
        lines = [f"asked {self.server} again for the {answers} answers of {tasks}: "]
        if self.left_out:
            ids = ", ".join(rollout.task.id for rollout in self.left_out)
            lines.insert(0, f"not asked again, as an answer was cut off or a call was not valid: {ids}")
        if not self.differences:
            return "\n".join([*lines[:-1], lines[-1] + "all are those that were measured"])
        lines[-1] += f"{len(self.differences)} differ, in {len(self.differ)} of the tasks"
        lines += [
            f"  {one.task}, answer {one.answer}: measured {one.measured}; now {one.found}" for one in self.differences
        ]
        lines.append(
            "Sums in another order, or in fewer digits, may turn an answer. More than one or two tasks mean that "
            "something else is served than was measured."
        )
        return "\n".join(lines)


def check_export(
    output_dir: str | os.PathLike[str],
    run: str | os.PathLike[str],
    to: Kind,
    *,
    call_parser: str | None = None,
    progress: Progress | None = None,
) -> ExportCheck:
    """Serve an exported model on a free port of this machine, and ask it what the run asked through its endpoint.

    `output_dir`, `to` and `call_parser` are those of `export`; `run`: the run's folder, or its model's. GGUF files are
    served by llama.cpp, if `llama-server` is on the PATH. Other models are served by vLLM, if there is one that can
    compute here (see `find_vllm`), and by the embedded engine otherwise.

    Raises `ConfigError` where there is nothing to ask or to ask it with; the text names the reason. Raises what
    `sdk.serve` and `serve_with_vllm` raise where the model cannot be served.
    """
    questions, tools = _measured(run)
    asked = [rollout for rollout in questions if _is_whole(rollout)]
    left_out = [rollout for rollout in questions if not _is_whole(rollout)]
    if not asked:
        raise ConfigError("each of the run's answers through the endpoint was cut off, or has a call that is not valid")
    folder, model = Path(output_dir).expanduser().resolve(), ServedModel.read(run, call_parser=call_parser)
    progress = progress or Silent()
    with _serving(folder, to, model, asked, progress) as server:
        progress.say(f"asking it for the answers of {counted([one.task for one in asked], 'held-out task')}")
        found = anyio.run(partial(_ask, server, asked, tools))
    return ExportCheck(server.name, asked, left_out, found)


def answers_of(rollout: Rollout) -> list[int]:
    """Where the model's messages are, among those of a rollout."""
    opening = len(rollout.task.opening())
    return [n for n, message in enumerate(rollout.messages) if message.role == "assistant" and n >= opening]


def _measured(place: str | os.PathLike[str]) -> tuple[list[Rollout], list[Tool]]:
    """What the run asked through its endpoint, and the tools that it had."""
    folder = run_of(Path(place).expanduser())
    if folder is None:
        raise ConfigError(f"{os.fspath(place)!r} is not a run, and only runs have answers that were measured")
    run = RunFolder.open_to_read(folder)
    if "agent" in run.config:
        raise ConfigError("an agent of your own asked the model in this run; ask the server with it")
    noted = run.stage(CONDITIONS)
    if run.stage(SERVED) is None or noted is None:
        raise ConfigError(
            "the run asked its model nothing through the endpoint (evaluation.max_served); measure the server with "
            "the command in the README"
        )
    scored = [rollout for rollout in run.iter_rollouts(SERVED) if rollout.scored and answers_of(rollout)]
    return scored, [Tool.model_validate(tool) for tool in noted["tools"]]


def _is_whole(rollout: Rollout) -> bool:
    calls = [call for message in rollout.messages for call in message.tool_calls]
    return rollout.stop_reason not in CUT_OFF and not any(call.error for call in calls)


# ---------------------------------------------------------------------------------------------------------------------
# Asking.


@dataclass(frozen=True)
class _Serving:
    name: str
    url: str
    model: str
    key: str | None = None
    shows_less: bool = False
    """Whether it shows as much of the tools as the model was trained with, by itself."""


async def _ask(server: _Serving, rollouts: Sequence[Rollout], tools: Sequence[Tool]) -> list[Difference]:
    differences = []
    async with EndpointAgent(f"{server.url}/v1", server.model, server.key, extra_body=NOT_SENT) as agent:
        for rollout in rollouts:
            shown = rollout.tools_of(tools)
            shown = shown if server.shows_less else shown_tools(shown, rollout.tool_prompt)
            for number, place in enumerate(answers_of(rollout), start=1):
                measured, before = _said(rollout.messages[place]), rollout.messages[:place]
                talk = agent.start(shown, sampling=Sampling(), seed=0)
                try:
                    reply = await talk.reply(before)
                    found = (
                        "a prompt too long for its context" if reply.stop_reason == "context" else _said(reply.message)
                    )
                except PolicyFailure as error:
                    found = f"no answer: {error}"
                if found != measured:
                    differences.append(Difference(rollout.task.id, number, *_where_they_differ(measured, found)))
    return differences


def _where_they_differ(measured: str, found: str) -> tuple[str, str]:
    """Of long texts, the part with the first difference."""
    pairs = enumerate(zip(measured, found, strict=False))
    same = next((n for n, (one, other) in pairs if one != other), min(len(measured), len(found)))
    begin = max(0, same - SHOWN_CHARS // 2) if max(len(measured), len(found)) > SHOWN_CHARS else 0
    first, second = (
        f"{'...' * (begin > 0)}{text[begin : begin + SHOWN_CHARS]}{'...' * (len(text) > begin + SHOWN_CHARS)}"
        for text in (measured, found)
    )
    return first, second


def _said(message: Message) -> str:
    """A message in one line: its text, without white space around it, and its calls."""
    calls = [
        f"{call.name}({json.dumps(call.arguments, sort_keys=True, ensure_ascii=False)})" for call in message.tool_calls
    ]
    text = message.content.strip()
    return " ".join([*([repr(text)] if text or not calls else []), *calls])


# ---------------------------------------------------------------------------------------------------------------------
# What serves the exported files.


def _serving(
    folder: Path, to: Kind, model: ServedModel, asked: Sequence[Rollout], progress: Progress
) -> AbstractContextManager[_Serving]:
    build = None if to in WITH_GGUF else _vllm_that_computes()
    if to in WITH_GGUF or build is not None:
        if any(rollout.tool_prompt == "none" for rollout in asked):
            raise ConfigError(
                "the model's prompts show no tools, and such a server reads no calls where no tools are sent"
            )
        return _by_llama_cpp(folder, model, progress) if build is None else _by_vllm(folder, model, build, progress)
    return _by_the_embedded_engine(folder, progress)


def _vllm_that_computes() -> VllmBuild | None:
    """The vLLM of this machine, where it is one for CPUs or there is a GPU."""
    import torch

    try:
        build = find_vllm(None)
    except ConfigError:
        return None
    return build if build.cpu or torch.cuda.is_available() else None


@contextmanager
def _by_vllm(folder: Path, model: ServedModel, build: VllmBuild, progress: Progress) -> Iterator[_Serving]:
    progress.say(_STARTING.format("vLLM"))
    key = secrets.token_urlsafe(32)
    how: dict[str, Any] = {"tool_prompt": "full", "call_parser": model.call_parser, "drain_seconds": 0}
    with serve_with_vllm(folder / "model", port=0, api_key=key, progress=progress, **how) as server:
        yield _Serving(f"vLLM {build.version}", server.url, server.model_name, key)


@contextmanager
def _by_the_embedded_engine(folder: Path, progress: Progress) -> Iterator[_Serving]:
    import torch

    from ..serving import serve

    needed, free = weight_bytes(folder / "model"), free_bytes()
    if needed > free and not torch.cuda.is_available():
        raise ConfigError(f"the model takes {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free")
    progress.say(_STARTING.format("the embedded engine"))
    key = secrets.token_urlsafe(32)
    with serve(folder / "model", port=0, api_key=key, drain_seconds=0) as server:
        yield _Serving("the embedded engine", server.url, server.model_name, key, shows_less=True)


@contextmanager
def _by_llama_cpp(folder: Path, model: ServedModel, progress: Progress) -> Iterator[_Serving]:
    program = shutil.which(LLAMA_SERVER)
    if program is None:
        raise ConfigError(f"there is no {LLAMA_SERVER} on the PATH, which serves a GGUF file")
    progress.say(_STARTING.format("llama.cpp"))
    port = free_port()
    url, words = f"http://127.0.0.1:{port}", llama_words(model, str(folder / gguf_name(model)))
    command = [program, *words[1:], "--host", "127.0.0.1", "--port", str(port)]
    process = ServerProcess(LLAMA_SERVER, command, url=url, log=None, environment={})
    try:
        anyio.run(wait_until_ready, [process], _START_S, Silent())
        yield _Serving("llama.cpp", url, model.name)
    finally:
        process.stop()
