"""Errors in the form that OpenAI's clients read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mcp_bridge.safe_text import shortened

from .request_record import current_record

log = logging.getLogger(__name__)

_MOST_CHARS = 2000
_SHOWN_CHARS = 100


class ApiError(Exception):
    """A request that cannot be answered: the HTTP status and OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = shown(message, _MOST_CHARS)
        param = None if param is None else shown(param)
        super().__init__(message)
        self.status = status
        self.kind = code or kind
        """In a word."""
        self.headers = headers
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def shown(text: str, most: int = _SHOWN_CHARS) -> str:
    """What a client sent, cut to what helps: it may have sent megabytes."""
    return shortened(text, most)


def as_api_error(error: Exception) -> ApiError:
    """An error that nobody thought of goes to the log, and the client learns its kind."""
    if isinstance(error, ApiError):
        return error
    log.error("the endpoint failed", exc_info=error)
    record = current_record()
    by_id = "" if record is None else f" about {record.id}"
    return ApiError(500, f"the server failed: {type(error).__name__}; its log says more{by_id}", kind="server_error")


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)
