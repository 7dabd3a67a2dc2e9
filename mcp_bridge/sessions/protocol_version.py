"""The revision of MCP that a session speaks. The user names it, or it is the newest that both sides know."""

from __future__ import annotations

from typing import Any, Literal

from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    REQUEST_TIMEOUT,
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    InitializedNotification,
    InitializeRequest,
    InitializeRequestParams,
    InitializeResult,
    ServerCapabilities,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import ValidationError

from ..sources.specs import Protocol

Era = Literal["auto", "legacy", "sse"]
"""How to begin: ask whether the server knows the newest revision (`auto`), or shake hands as all revisions before it
did (`legacy`; `sse` is the same over HTTP's old transport)."""


class WrongProtocol(Exception):
    """The server does not speak the revision that the user asks for. The message is complete."""


def client_mode(era: Era, asked: Protocol | None) -> str:
    """The SDK's `mode` for a session. Where it sends nothing at the beginning, `agree` does."""
    if asked is None:
        return "auto" if era == "auto" else "legacy"
    return "legacy" if asked == LATEST_HANDSHAKE_VERSION else LATEST_MODERN_VERSION


async def agree(client: Client, asked: Protocol | None, capabilities: ClientCapabilities) -> None:
    """Begin a session in the revision `asked`, where that is not the SDK's own choice.

    `client` was entered with `client_mode`. Raises `WrongProtocol` where the server answers in another revision, and
    the SDK's errors where it does not answer.
    """
    if asked is None:
        return
    if asked == LATEST_MODERN_VERSION:
        try:
            offered = DiscoverResult.model_validate(await _discovered(client, asked))
        except (MCPError, ValidationError) as error:
            raise _wrong("an older revision", asked) from error
        if asked not in offered.supported_versions:
            raise _wrong(f"revision {', '.join(offered.supported_versions)}", asked)
        client.session.adopt(offered)
    elif asked != LATEST_HANDSHAKE_VERSION:
        await _shake_hands(client, asked, capabilities)
    if client.protocol_version != asked:
        raise _wrong(f"revision {client.protocol_version}", asked)


async def _discovered(client: Client, asked: Protocol) -> dict[str, Any]:
    while True:
        try:
            return await client.session.send_discover(asked)
        except MCPError as error:
            # The SDK gives up after ten seconds, which says nothing of a server that is slow to start. The time limit
            # for opening a session holds all the same.
            if error.code != REQUEST_TIMEOUT:
                raise


def is_handshake(version: str) -> bool:
    """Whether sessions of this revision begin with a handshake."""
    return version in HANDSHAKE_PROTOCOL_VERSIONS


async def _shake_hands(client: Client, asked: Protocol, capabilities: ClientCapabilities) -> None:
    session = client.session
    # What is sent from here on is to look as `asked` says; the server's own answer takes its place below.
    nobody = Implementation(name="", version="")
    session.adopt(InitializeResult(protocol_version=asked, capabilities=ServerCapabilities(), server_info=nobody))
    parameters = InitializeRequestParams(
        protocol_version=asked, capabilities=capabilities, client_info=client.client_info or nobody
    )
    answer = await session.send_request(InitializeRequest(params=parameters), InitializeResult)
    if answer.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
        raise _wrong(f"revision {answer.protocol_version}", asked)
    session.adopt(answer)
    await session.send_notification(InitializedNotification())


def _wrong(spoken: str, asked: str) -> WrongProtocol:
    return WrongProtocol(
        f"it speaks {spoken} of MCP, not {asked}, which `protocol` asks for. Name a revision that it speaks, "
        "or leave `protocol` out"
    )
