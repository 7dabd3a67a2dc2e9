"""Keeps the tokens of users' logins between programs: in the system's keyring, or in files that only the user can read.

Imports `mcp`: load it late.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from mcp.shared.auth_utils import resource_url_from_server_url
from pydantic import BaseModel, Field, ValidationError

from .settings import UserLogin

logger = logging.getLogger(__name__)

_SERVICE = "toolbake"
_LOOK_S = 0.05
_RECOMMENDED = 1
"""The lowest priority at which `keyring` counts a backend as safe."""


class KeptTokens(BaseModel, frozen=True):
    """What a login brought, and what is needed to renew it without the user."""

    tokens: OAuthToken = Field(repr=False)
    expires_at: float | None = None
    """In seconds since the epoch; None where the authorization server does not tell."""
    client: OAuthClientInformationFull = Field(repr=False)
    authority: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None
    wanted_scope: str | None = None
    """What the server has asked for since, and the tokens were not given for. The next login asks for it."""


def store_key(server_url: str, login: UserLogin | None) -> str:
    """Under which name the tokens for a server are kept. It holds no secret."""
    key = resource_url_from_server_url(server_url).partition("?")[0]
    if login is None or login.client_id is None:
        return key
    if login.refresh_token is None:
        return f"{key} as {login.client_id}"
    # Another token in the configuration is another login: what came of the former one is of no use any more.
    return f"{key} as {login.client_id}, from {hashlib.sha256(login.refresh_token.encode()).hexdigest()[:16]}"


def read_tokens(key: str) -> KeptTokens | None:
    """The tokens of a login; None where there was none, or what is kept cannot be read, which is logged."""
    # A file is there only where the keyring did not take what is newest.
    text = _from_file(key) or _from_keyring(key)
    if text is None:
        return None
    try:
        return KeptTokens.model_validate_json(text)
    except ValidationError:
        logger.warning("the login that is kept for %s has not the right form and is not used; log in again", key)
        return None


def write_tokens(key: str, kept: KeptTokens) -> str:
    """Keep the tokens of a login in place of earlier ones. Gives where they are, in words. Raises `OSError`."""
    text = kept.model_dump_json(exclude_none=True)
    path = _path(key)
    ring = _keyring()
    if ring is not None:
        try:
            ring.set_password(_SERVICE, key, text)
        except Exception as error:  # each backend has errors of its own: a text that is too long, a locked keyring
            logger.warning("the system's keyring took no login (%s); it goes into a file", type(error).__name__)
        else:
            path.unlink(missing_ok=True)
            return f"the system's keyring ({ring.get_keyring().name})"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # of mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return str(path)


@contextlib.asynccontextmanager
async def renewing(key: str) -> AsyncIterator[None]:
    """While the block runs, no other program renews this login: many refresh tokens serve once. Not on Windows."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = _path(key).with_suffix(".lock")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await anyio.sleep(_LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _path(key: str) -> Path:
    import typer

    return Path(typer.get_app_dir("toolbake")) / "logins" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _from_file(key: str) -> str | None:
    try:
        return _path(key).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _from_keyring(key: str) -> str | None:
    ring = _keyring()
    if ring is None:
        return None
    try:
        found: str | None = ring.get_password(_SERVICE, key)
    except Exception as error:  # each backend has errors of its own
        logger.warning("the system's keyring cannot be read (%s); unlock it, or log in again", type(error).__name__)
        return None
    return found


def _keyring() -> Any:
    """The package `keyring` where it is installed and the system has a safe backend for it."""
    try:
        ring = importlib.import_module("keyring")
    except ImportError:
        return None
    return ring if ring.get_keyring().priority >= _RECOMMENDED else None
