"""Control of vLLM servers over HTTP: their health, the name of their weights, and the exchange of all weights."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from ...errors import PolicyFailure
from ..endpoint import error_text

INCOMPLETE = "incomplete-"
"""What a server says that it has begins so while its weights are exchanged, and ever after where that broke off."""
_OURS = "toolbake-"
_OTHERS_S = 60.0
"""How long requests that are not ours may take to end."""


class ServerFailed(PolicyFailure):
    """A server answered that it failed (HTTP 5xx): it refuses what it was asked, or its engine has died."""


def new_name() -> str:
    """A name for a version of the weights that no other has, in this run or another."""
    return f"{_OURS}{uuid.uuid4().hex[:12]}"


def is_published(has: str) -> bool:
    """Whether a server that says it `has` these weights got them from a run, this one or another."""
    return has.startswith(_OURS)


def call(
    client: httpx.Client, url: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
) -> httpx.Response:
    """POST, and a 200 back. Raises `PolicyFailure` for any other answer, `ServerFailed` for HTTP 500 and above,
    `httpx.HTTPError` where there is none."""
    timeout = client.timeout if timeout_s is None else httpx.Timeout(timeout_s)
    answer = client.post(url, json=body, timeout=timeout) if body is not None else client.post(url, timeout=timeout)
    if answer.status_code == 200:
        return answer
    fix = ""
    if answer.status_code in (403, 404, 405):
        fix = (
            "; start it with VLLM_SERVER_DEV_MODE=1 and, for adapters, with --enable-lora and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
        )
    kind = ServerFailed if answer.status_code >= 500 else PolicyFailure
    raise kind(f"{url} answered HTTP {answer.status_code}: {error_text(answer.text)}{fix}")


def held_version(url: str, client: httpx.Client) -> str:
    """The name of the weights that a server says it has. Raises `PolicyFailure` where it does not say it,
    `httpx.HTTPError` where it cannot be reached."""
    answer = client.get(f"{url}/weight_info")
    try:
        return str(answer.json()["weight_version"])
    except (ValueError, KeyError, TypeError):
        raise PolicyFailure(
            f"{url}/weight_info answered HTTP {answer.status_code} and no version of the weights; start it with "
            "VLLM_SERVER_DEV_MODE=1"
        ) from None


def unwell(url: str, client: httpx.Client, *, timeout_s: float = 10.0) -> str | None:
    """What is wrong with a server's health; None where nothing is. Raises `httpx.TimeoutException` where it does not
    answer, and may be busy."""
    try:
        status = client.get(f"{url}/health", timeout=timeout_s).status_code
    except httpx.TimeoutException:
        raise
    except httpx.HTTPError as error:
        return f"the server cannot be reached ({type(error).__name__}: {error})"
    return None if status == 200 else f"the server answers HTTP {status} when asked for its health"


def broken_off(has: str) -> str:
    """What is wrong with a server that says it `has` incomplete weights."""
    return (
        f"the server holds a part of new weights ({has}): an exchange broke off there, and it samples nothing until it "
        "is started again"
    )


@contextmanager
def exchanged(url: str, client: httpx.Client, *, mark: str, version: int) -> Iterator[None]:
    """All weights of the server are exchanged in the block; after it they are called `mark`.

    In the block it samples nothing and its weights are called incomplete. It stays so where the block fails or where
    its cache keeps keys and values of the weights before: whatever it has then, nobody is to sample from it. Raises
    `PolicyFailure` and `httpx.HTTPError`.
    """
    has = held_version(url, client)
    if has.startswith(INCOMPLETE):
        raise PolicyFailure(f"{url}: {broken_off(has)}")
    try:
        call(client, f"{url}/pause?mode=wait", timeout_s=_OTHERS_S)
    except httpx.ReadTimeout:
        call(client, f"{url}/resume", timeout_s=_OTHERS_S)
        raise PolicyFailure(
            f"{url} did not come to rest within {_OTHERS_S:g} s: requests that are not ours are under way there; give "
            "training a server of its own"
        ) from None
    call(client, f"{url}/update_weight_version", {"new_version": INCOMPLETE + mark})
    yield
    # Keys and values of the old weights must not meet the new ones.
    answer = call(client, f"{url}/reset_prefix_cache")
    if answer.json().get("success") is not True:
        raise PolicyFailure(
            f"{url} keeps keys and values of the weights before version {version}: requests that are not ours are "
            "under way there; give training a server of its own"
        )
    call(client, f"{url}/update_weight_version", {"new_version": mark})
    call(client, f"{url}/resume")
