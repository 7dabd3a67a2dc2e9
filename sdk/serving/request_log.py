"""The log of requests: a line for each, as text or as JSON."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from mcp_bridge.safe_text import visible

from .requests import RequestRecord, current_record, shown

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")

log = logging.getLogger(__name__)


def log_request(record: RequestRecord, method: str, path: str, *, probe: bool = False) -> None:
    """A line for a request that has ended, without anything that was said. `probe`: one that only asks how the server
    is, which is logged for debugging only."""
    figures: dict[str, Any] = {
        "method": method,
        "path": visible(shown(path)).replace("\n", "\\n"),
        "status": record.status,
        "seconds": round(time.perf_counter() - record.began, 4),
    }
    if record.expected:
        first = min((times.first for times in record.answers.values()), default=None)
        figures |= {
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "completion_tokens": record.completion_tokens,
            "first_token_seconds": None if first is None else round(first - record.began, 4),
            "finish_reasons": record.finish_reasons,
        }
    if record.error is not None:
        figures["error"] = record.error
    rest = [f"{name} {value}" for name, value in figures.items() if name not in ("method", "path", "status")]
    log.log(
        logging.DEBUG if probe else logging.INFO,
        "%s %s %s: %s",
        method,
        figures["path"],
        record.status,
        ", ".join(rest),
        extra={"request": figures},
    )


class _WithRequest(logging.Formatter):
    """Text, with the id of the request that a line is about."""

    def format(self, record: logging.LogRecord) -> str:
        request = current_record()
        return super().format(record) + ("" if request is None else f" [{request.id}]")


class _AsJson(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        request = current_record()
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request is not None:
            line["request_id"] = request.id
        line |= getattr(record, "request", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


@contextmanager
def logging_to_stderr(log_format: LogFormat) -> Iterator[None]:
    """Inside, requests, reloads and whatever is a warning or worse go to stderr. For a process that only serves."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _AsJson() if log_format == "json" else _WithRequest("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    root, serving = logging.getLogger(), logging.getLogger(__package__)
    before = serving.level
    root.addHandler(handler)
    serving.setLevel(logging.INFO)
    try:
        yield
    finally:
        serving.setLevel(before)
        root.removeHandler(handler)
