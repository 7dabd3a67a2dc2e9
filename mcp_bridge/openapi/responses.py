"""Results of answers over HTTP: what the policy reads, or the failure to raise."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from ..errors import ToolFailure, retry_after_s
from ..records import ToolResult, compact_json, error_result
from ..safe_text import strict_json
from .requests import bare_type, is_json

_NOT_IN_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1d\x1f\x7f]")
"""By which bytes are told from text of a type that is not known for either."""

_LOST_BEHIND_A_GATEWAY = frozenset({502, 504})
"""A gateway got no answer, or none that it could use, from the API, which may have done its work (RFC 9110, 15.6)."""
# The document, the credentials or this bridge made the request wrong, and no other arguments would make it right.
_NOT_THE_MODELS = {405, 406, 407, 411, 415, 421, 426, 431, 511}


_RENAMED = {
    413: "Request Entity Too Large",
    414: "Request-URI Too Long",
    416: "Requested Range Not Satisfiable",
    422: "Unprocessable Entity",
}
"""Python 3.13 took the names of RFC 9110 for these; servers mostly say the older ones."""


def reason_phrase(status: int) -> str:
    """What a status is called, the same with every version of Python; empty where nothing calls it anything."""
    try:
        return _RENAMED.get(status) or HTTPStatus(status).phrase
    except ValueError:
        return ""


@dataclass(frozen=True)
class Answer:
    """One answer, read in full. `headers`: names in lower case. `next_page`: where the answer says that is."""

    status: int
    headers: dict[str, str]
    content: bytes
    next_page: str | None = None

    @property
    def line(self) -> str:
        """For example `404 Not Found`."""
        phrase = reason_phrase(self.status)
        return f"{self.status} {phrase}" if phrase else str(self.status)

    @property
    def retry_after_s(self) -> float | None:
        """How long the server asks to wait, in seconds from now."""
        return retry_after_s(self.headers.get("retry-after"))


def to_result(
    answer: Answer,
    operation: str,
    *,
    needs: str,
    declared: bool,
    prune: Callable[[Any], Any],
    hide: Callable[[str], str] = str,
    tells_401: bool = False,
) -> ToolResult:
    """What the policy reads. `operation`: for messages. `needs`: which credentials are missing, "" where none is.
    `declared`: the document has this status. `prune`: takes out what the policy must not see. `hide`: takes the
    secrets out of a text that is cut. `tells_401`: the policy reads that the caller is not known, in place of a
    failure: a simulated caller has no credentials on purpose.

    Raises `ToolFailure` for what the policy did not cause: missing credentials, an overloaded or broken server,
    an answer that is not what it says.
    """
    if 200 <= answer.status < 300 or (300 <= answer.status < 400 and declared):
        structured, text = _content(answer, operation, hide)
        if structured is not None:
            structured = prune(structured)
            text = compact_json(structured)
        return ToolResult(text=text or _done(answer), structured=structured)
    if not (tells_401 and answer.status == 401):
        _refuse_failures(answer, operation, needs, hide)
    structured, text = _content(answer, operation, hide, is_error=True)
    return error_result(f"{answer.line}: {text}" if text else answer.line, "tool_error", structured=structured)


def _refuse_failures(answer: Answer, operation: str, needs: str, hide: Callable[[str], str]) -> None:
    where = f"{operation} was answered with {answer.line}"
    wait = answer.retry_after_s
    if answer.status == 429 or (answer.status == 503 and wait is not None):
        asked = "and does not say how long to wait" if wait is None else f"and asks to wait {wait:.10g} s (Retry-After)"
        raise ToolFailure(
            f'{where}: the server takes no more calls for now {asked}. "toolbake": {{"calls_per_second": ...}} or '
            '{"max_concurrency": ...} keeps calls below its limit',
            delivery="refused",
            retry_after_s=wait,
        )
    if answer.status == 401 or (answer.status == 403 and needs):
        fix = f'; it needs {needs}, set in "auth" or "headers"' if needs else '; check the credentials in "auth"'
        raise ToolFailure(f"{where}{fix}: {_start(answer, hide)}", delivery="answered")
    if answer.status < 400 or answer.status in _NOT_THE_MODELS:
        raise ToolFailure(f"{where}, which no other arguments can change: {_start(answer, hide)}", delivery="answered")
    if answer.status >= 500:
        lost = answer.status in _LOST_BEHIND_A_GATEWAY
        raise ToolFailure(f"{where}: {_start(answer, hide)}", delivery="unknown" if lost else "answered")


def _start(answer: Answer, hide: Callable[[str], str]) -> str:
    """The beginning of an answer, for messages."""
    text = hide(answer.content[:2000].decode("utf-8", errors="replace")).strip()
    return f"{text[:300]}..." if len(text) > 300 else text or "(no text)"


def _done(answer: Answer) -> str:
    location = answer.headers.get("location")
    return f"{answer.line}, Location: {location}" if location else f"{answer.line} (empty)"


def _content(answer: Answer, operation: str, hide: Callable[[str], str], *, is_error: bool = False) -> tuple[Any, str]:
    """The value, where the answer is JSON, and the text."""
    if not answer.content.strip():
        return None, ""
    kind = answer.headers.get("content-type", "")
    bare = bare_type(kind)
    if is_json(bare) or not bare:
        try:
            value = _json(answer.content, kind)
            return value, compact_json(value)
        except ValueError as problem:
            if bare and not is_error:
                raise ToolFailure(
                    f"{operation} answered {answer.line} as {bare}, but that is not valid JSON ({problem}): "
                    f"{_start(answer, hide)}",
                    delivery="answered",
                ) from None
    text = _decoded(answer.content, kind)
    is_text = not bare or bare.startswith("text/") or bare.endswith(("+xml", "/xml")) or is_json(bare)
    if text is None and bare and is_text:
        # One letter in an old charset is not a reason to lose the answer. Bytes that only pass for text stay bytes.
        readable = answer.content.decode("utf-8-sig", errors="replace")
        text = None if _NOT_IN_TEXT.search(readable) else readable
    if text is not None and (is_text or (bare.startswith("application/") and not _NOT_IN_TEXT.search(text))):
        return None, text
    return None, f"[{bare or 'unknown type'}, {len(answer.content)} bytes]"


def _json(content: bytes, kind: str) -> Any:
    """By the bytes, as JSON is read; in the charset of its type only where that fails."""
    try:
        return strict_json(content)
    except UnicodeDecodeError:
        text = _decoded(content, kind)
        if text is None:
            raise
        return strict_json(text)


def _decoded(content: bytes, kind: str) -> str | None:
    """The text, in the charset of its type or in UTF-8: some name one that is none, as `undefined`. Without the mark of
    the byte order, which Excel puts before a CSV and which would be a part of its first name."""
    charset = kind.lower().partition("charset=")[2].partition(";")[0].strip(" \"'")
    for name in (charset, "utf-8"):
        with contextlib.suppress(UnicodeError, LookupError):
            return content.decode(name).removeprefix("\ufeff")
    return None
