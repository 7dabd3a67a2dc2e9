"""Security schemes: what is sent, what is renewed, and that no value is ever shown."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import logging
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

import mcp_bridge
from mcp_bridge import SourceError, ToolFailure, Toolset
from mcp_bridge.openapi.document import read_document
from mcp_bridge.openapi.source import OpenApiSource
from mcp_bridge.sources.connecting import identify

Connecting = Callable[..., AbstractAsyncContextManager[Toolset]]

SCHEMES: dict[str, Any] = {
    "header": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "api key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "key"},
    "bearer": {"type": "http", "scheme": "Bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "digest": {"type": "http", "scheme": "digest"},
    "mutual": {"type": "mutualTLS"},
    "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://id.example"},
}


PAIR = base64.b64encode("ann:pä55word".encode()).decode()


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


CLIENT = {"client_id": "a", "client_secret": "value-123", "token_url": "https://x.example"}


def secured(*alternatives: dict[str, list[str]], path: str = "/x") -> dict[str, Any]:
    return {path: {"get": {"operationId": "it", "security": list(alternatives)}}}


def oauth(token_url: str) -> dict[str, Any]:
    return {"shop": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": token_url, "scopes": {"read": ""}}}}}


@pytest.mark.parametrize(
    ("scheme", "value", "header", "sent"),
    [
        ("header", "k-123456", "x-key", "k-123456"),
        ("header", "k", "x-key", "k"),
        ("header", "Basic no-pair-123456", "x-key", "Basic no-pair-123456"),
        ("cookie", "k/123456", "cookie", "key=k/123456"),
        ("bearer", "t-123456", "authorization", "Bearer t-123456"),
        ("oidc", "t-123456", "authorization", "Bearer t-123456"),
        ("basic", {"username": "ann", "password": "pä55word"}, "authorization", f"Basic {PAIR}"),
    ],
)
async def test_a_scheme_is_sent_where_it_belongs_and_comes_back_hidden(
    api: Connecting, scheme: str, value: Any, header: str, sent: str
) -> None:
    async with api(secured({scheme: []}), components={"securitySchemes": SCHEMES}, auth={scheme: value}) as toolset:
        result = await toolset.call("it", {})
    assert result.structured["digests"][header] == digest(sent)
    # A value as short as one letter cannot be hidden: it would blank out ordinary words.
    assert (sent in result.text) == (len(sent) < 6)
    assert "123456" not in result.text


def asking(name: str, location: str, description: str = "", *, required: bool = True) -> dict[str, Any]:
    """Slack's way: the token is a parameter of each operation, beside the security scheme."""
    schema = {"type": "string"}
    return {"name": name, "in": location, "required": required, "description": description, "schema": schema}


@pytest.mark.parametrize(
    ("parameter", "sent"),
    [
        (asking("token", "query", "Authentication token. Requires scope: `chat:write`"), "token=t-123456"),
        (asking("access_token", "query"), "access_token=t-123456"),
        (asking("oauth_token", "query", required=False), ""),
        (asking("token", "header", "An auth token"), "t-123456"),
        (asking("X-Auth-Token", "header"), "t-123456"),
    ],
)
async def test_a_parameter_for_the_credential_is_filled_in_and_not_asked_of_the_model(
    api: Connecting, parameter: dict[str, Any], sent: str
) -> None:
    paths = secured({"bearer": []})
    paths["/x"]["get"]["parameters"] = [parameter, asking("page_token", "query"), asking("token_id", "query")]
    async with api(paths, components={"securitySchemes": SCHEMES}, auth={"bearer": "t-123456"}) as toolset:
        result = await toolset.call("it", {"page_token": "p", "token_id": "7"})
        schema = toolset.tools[0].input_schema
    assert list(schema["properties"]) == schema["required"] == ["page_token", "token_id"]
    assert result.structured["digests"]["authorization"] == digest("Bearer t-123456")
    if parameter["in"] == "query":
        assert result.structured["query"] == "page_token=p&token_id=7" + ("&" + sent if sent else "").replace(
            "t-123456", "***"
        )
    else:
        assert result.structured["digests"][parameter["name"].lower()] == digest(sent)
    assert "t-123456" not in result.text


async def test_an_argument_called_token_that_is_no_credential_stays_the_models(api: Connecting) -> None:
    paths = secured({"bearer": []})
    paths["/x"]["get"]["parameters"] = [asking("token", "query", "The token of the invitation")]
    async with api(paths, components={"securitySchemes": SCHEMES}, auth={"bearer": "t-123456"}) as toolset:
        assert (await toolset.call("it", {"token": "i"})).structured["query"] == "token=i"


async def test_without_a_credential_its_parameter_is_neither_asked_for_nor_sent(
    api: Connecting, caplog: pytest.LogCaptureFixture
) -> None:
    paths = secured({"bearer": []})
    paths["/x"]["get"]["parameters"] = [asking("token", "query", "Authentication token")]
    async with api(paths, components={"securitySchemes": SCHEMES}) as toolset:
        assert (await toolset.call("it", {})).structured["query"] == ""
    assert "no credentials for it, which need 'bearer'" in caplog.text


async def test_a_key_in_the_query_is_percent_encoded(api: Connecting) -> None:
    async with api(secured({"query": []}), components={"securitySchemes": SCHEMES}, auth={"query": "a&b"}) as toolset:
        assert (await toolset.call("it", {})).structured["query"] == "api%20key=a%26b"


async def test_the_first_alternative_that_can_be_met_is_taken_and_all_of_it(api: Connecting) -> None:
    wanted = secured({"header": []}, {"query": [], "bearer": []}, {})
    given = {"query": "q", "bearer": "b"}
    async with api(wanted, components={"securitySchemes": SCHEMES}, auth=given) as toolset:
        received = (await toolset.call("it", {})).structured
    assert received["query"] == "api%20key=q"
    assert received["digests"]["authorization"] == digest("Bearer b")


async def test_a_call_that_needs_nothing_carries_nothing(api: Connecting) -> None:
    async with api(secured(), components={"securitySchemes": SCHEMES}, auth={"header": "k"}) as toolset:
        assert "x-key" not in dict((await toolset.call("it", {})).structured["headers"])


@pytest.mark.parametrize("code", [401, 403])
async def test_missing_credentials_are_no_mistake_of_the_policy(
    api: Connecting, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    paths = secured({"header": []}, {"bearer": [], "cookie": []}, path=f"/status/{code}")
    async with api(paths, components={"securitySchemes": SCHEMES}) as toolset:
        with pytest.raises(ToolFailure, match=r"it needs 'header' or 'bearer' with 'cookie', set in \"auth\""):
            await toolset.call("it", {})
    assert "no credentials for it, which need 'header'" in caplog.text


async def test_what_the_policy_may_not_do_is_told_to_it(api: Connecting) -> None:
    paths = secured({"header": []}, path="/status/403")
    async with api(paths, components={"securitySchemes": SCHEMES}, auth={"header": "k-123456"}) as toolset:
        assert (await toolset.call("it", {})).error_kind == "tool_error"


async def test_credentials_that_are_refused_are_a_broken_tool(api: Connecting) -> None:
    paths = secured({"header": []}, path="/status/401")
    async with api(paths, components={"securitySchemes": SCHEMES}, auth={"header": "k-123456"}) as toolset:
        with pytest.raises(ToolFailure, match="check the credentials") as caught:
            await toolset.call("it", {})
    assert "k-123456" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "header"), [("header", "x-key"), ("bearer", "authorization"), ("basic", "AUTHORIZATION")]
)
async def test_a_header_that_is_given_twice_is_refused(api: Connecting, scheme: str, header: str) -> None:
    value = {"username": "ann", "password": "p-123456"} if scheme == "basic" else "k-123456"
    given = {"auth": {scheme: value}, "headers": {header: "k-654321"}}
    with pytest.raises(SourceError, match=f'"headers" has .{header}., which auth.{scheme} gives too') as caught:
        async with api(secured({scheme: []}), components={"securitySchemes": SCHEMES}, **given):
            pass
    assert "123456" not in str(caught.value)
    assert "654321" not in str(caught.value)


async def test_a_parameter_that_the_configuration_gives_is_not_asked_of_the_model(api: Connecting) -> None:
    paths = secured({"header": []})
    paths["/x"]["get"]["parameters"] = [
        {"name": name, "in": "header", "required": True, "schema": {"type": "string"}}
        for name in ("X-KEY", "X-Tenant", "X-Other")
    ]
    async with api(
        paths, components={"securitySchemes": SCHEMES}, auth={"header": "k"}, headers={"x-tenant": "t"}
    ) as toolset:
        assert list(toolset.tools[0].input_schema["properties"]) == ["X-Other"]
        headers = dict((await toolset.call("it", {"X-Other": "o"})).structured["headers"])
    assert (headers["x-key"], headers["x-tenant"], headers["x-other"]) == ("k", "t", "o")


async def test_the_header_for_the_calls_key_is_not_asked_of_the_model(api: Connecting) -> None:
    parameter = {"name": "idempotency-key", "in": "header", "required": True, "schema": {"type": "string"}}
    paths = {"/x": {"post": {"operationId": "it", "parameters": [parameter]}}}
    async with api(paths, idempotency_header="Idempotency-Key") as toolset:
        assert toolset.tools[0].input_schema["properties"] == {}
        headers = (await toolset.call("it", {})).structured["headers"]
    assert len([name for name, _ in headers if name == "idempotency-key"]) == 1


async def test_values_come_from_the_environment(api: Connecting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", "from-the-environment")
    async with api(
        secured({"header": []}), components={"securitySchemes": SCHEMES}, auth={"header": "${SHOP_KEY}"}
    ) as toolset:
        result = await toolset.call("it", {})
    assert ["x-key", "***"] in result.structured["headers"]
    assert "from-the-environment" not in result.text


async def test_a_token_is_fetched_once_for_many_calls_and_renewed_when_it_is_refused(
    api: Connecting, echo: str
) -> None:
    paths = {"/guarded": {"get": {"operationId": "it", "security": [{"shop": ["read"]}]}}}
    client = {"client_id": "shop", "client_secret": "s3cret-of-shop"}
    tokens = oauth(f"{echo}/token?uses=10")
    async with api(paths, components={"securitySchemes": tokens}, auth={"shop": client}) as toolset:
        before = await _count(echo, "token")
        answers: list[Any] = []

        async def one() -> None:
            answers.append((await toolset.call("it", {})).structured)

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(one)
        assert await _count(echo, "token") - before == 1
        # All are refused at once, and the first to notice renews it for all.
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(one)
        assert await _count(echo, "token") - before == 2
    # The token is a secret like any other.
    assert answers == [{"given": "***"}] * 18


@pytest.mark.parametrize("client_auth", ["basic", "body"])
async def test_a_client_names_itself_in_either_way(api: Connecting, echo: str, client_auth: str) -> None:
    paths = {"/guarded": {"get": {"operationId": "it", "security": [{"shop": []}]}}}
    client = {"client_id": "shop", "client_secret": "s3cret-of-shop", "client_auth": client_auth, "scopes": ["read"]}
    async with api(paths, components={"securitySchemes": oauth(f"{echo}/token")}, auth={"shop": client}) as toolset:
        assert not (await toolset.call("it", {})).is_error


async def test_a_server_that_asks_for_an_audience_is_given_it(api: Connecting, echo: str) -> None:
    paths = {"/guarded": {"get": {"operationId": "it", "security": [{"shop": []}]}}}
    schemes = {"securitySchemes": oauth(f"{echo}/token?audience=https%3A//a.example")}
    client: dict[str, Any] = {"client_id": "shop", "client_secret": "s3cret-of-shop"}
    async with api(paths, components=schemes, auth={"shop": client}) as toolset:
        with pytest.raises(ToolFailure, match="status 400, error 'invalid_target'"):
            await toolset.call("it", {})
    client["token_parameters"] = {"audience": "https://a.example"}
    async with api(paths, components=schemes, auth={"shop": client}) as toolset:
        assert not (await toolset.call("it", {})).is_error


def written_key(path: Path) -> str:
    """A private key in a file; its public half."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


async def test_a_client_with_a_key_signs_for_each_token_of_its_own(api: Connecting, echo: str, tmp_path: Path) -> None:
    public = written_key(tmp_path / "shop.key")
    written_key(tmp_path / "other.key")
    paths = {"/guarded": {"get": {"operationId": "it", "security": [{"shop": []}]}}}
    schemes = {"securitySchemes": oauth(f"{echo}/token?public={quote(public)}")}
    client = {"client_id": "shop", "private_key_file": str(tmp_path / "shop.key"), "algorithm": "ES256"}
    async with api(paths, components=schemes, auth={"shop": client}) as toolset:
        for _ in range(2):  # each token is good for one call
            assert (await toolset.call("it", {})).structured == {"given": "***"}
        assert len([one for one in toolset.secrets if len(one) > 60]) >= 1, "the lines of the key are secrets"
    client["private_key_file"] = str(tmp_path / "other.key")
    async with api(paths, components=schemes, auth={"shop": client}) as toolset:
        with pytest.raises(ToolFailure, match="status 401, error 'invalid_client'"):
            await toolset.call("it", {})


async def test_a_scheme_of_mutual_tls_is_met_by_a_certificate_of_ours(api: Connecting, tmp_path: Path) -> None:
    written_key(tmp_path / "client.key")
    key: Any = load_pem_private_key((tmp_path / "client.key").read_bytes(), None)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    (tmp_path / "client.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    own = {"cert": str(tmp_path / "client.pem"), "key": str(tmp_path / "client.key")}
    schemes, given = {"securitySchemes": SCHEMES}, {"header": "k-123456"}
    for tls, is_met in (({"tls": own}, True), ({}, False)):
        async with api(secured({"mutual": [], "header": []}), components=schemes, auth=given, **tls) as toolset:
            sent = (await toolset.call("it", {})).structured["digests"]
        assert ("x-key" in sent) == is_met


async def test_a_client_that_gets_no_token_says_so_without_its_secret(api: Connecting, echo: str) -> None:
    paths = {"/guarded": {"get": {"operationId": "it", "security": [{"shop": []}]}}}
    client = {"client_id": "shop", "client_secret": "a-wrong-secret"}
    async with api(paths, components={"securitySchemes": oauth(f"{echo}/token")}, auth={"shop": client}) as toolset:
        with pytest.raises(ToolFailure, match=r"/token gave no token .* status 401, error 'invalid_client'") as caught:
            await toolset.call("it", {})
    assert caught.value.delivery == "not_sent"
    assert "a-wrong-secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("auth", "complaint"),
    [
        ({"nobody": "value-123"}, "auth names 'nobody'; the security schemes of the API are header, query"),
        ({"header": ""}, "auth.header: must be a string that is not empty"),
        ({"header": {"a": "value-123"}}, "auth.header: must be a string"),
        ({"header": "value-123\nX: y"}, "auth.header: must be one line"),
        ({"basic": "value-123"}, 'auth.basic: must be {"username"'),
        ({"digest": "value-123"}, "'digest' is not supported; the choices are basic and bearer"),
        ({"mutual": "value-123"}, "type 'mutualTLS' takes no value"),
        ({"oidc": {"client_id": "a", "client_secret": "value-123"}}, "give token_url, or a token"),
        (
            {"oidc": {"client_id": "a", "client_secret": "value-123", "token_url": "http://x.example"}},
            "must be an https",
        ),
        ({"oidc": {"client_id": "a", "client_secret": "value-123", "url": "x"}}, "unknown key 'url'"),
        ({"oidc": {"client_id": "a", "token_url": "https://x.example"}}, "auth.oidc.client_secret: must be a string"),
        (
            {"oidc": {"client_id": "a", "client_secret": "value-123", "private_key": "b", "token_url": "https://x.a"}},
            "has both client_secret and private_key",
        ),
        (
            {"oidc": {**CLIENT, "token_parameters": {"audience": ["value-123"]}}},
            "token_parameters must be an object of strings",
        ),
        (
            {"oidc": {**CLIENT, "token_parameters": {"grant_type": "password"}}},
            "token_parameters has 'grant_type', which is made of the other keys",
        ),
        (
            {"oidc": {"client_id": "a", "private_key": "value-123", "token_url": "https://x.example"}},
            "the private key cannot sign with RS256",
        ),
    ],
)
async def test_a_value_of_the_wrong_form_is_refused_without_being_shown(
    api: Connecting, auth: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(SourceError) as caught:
        async with api(secured({"header": []}), components={"securitySchemes": SCHEMES}, auth=auth):
            pass
    assert complaint in str(caught.value)
    assert "value-123" not in str(caught.value)


async def test_no_repr_shows_a_value(echo: str) -> None:
    document = {
        "openapi": "3.1.0",
        "info": {},
        "servers": [{"url": echo}],
        "paths": secured({"header": []}),
        "components": {"securitySchemes": SCHEMES},
    }
    entry = {"openapi": document, "auth": {"header": "very-secret"}, "headers": {"X-More": "also-secret"}}
    specs = identify({"mcpServers": {"shop": entry}})
    source = OpenApiSource(specs[0], read_document(document))  # type: ignore[arg-type]
    shown = repr([specs, source, source.tools, vars(source)])
    await source.aclose()
    assert "very-secret" not in shown
    assert "also-secret" not in shown


async def test_the_http_client_logs_no_key(api: Connecting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with api(
        secured({"query": [], "header": []}),
        components={"securitySchemes": SCHEMES},
        auth={"query": "very-secret", "header": "also-secret"},
    ) as toolset:
        result = await toolset.call("it", {})
    assert result.structured["query"] == "api%20key=***"
    assert "/x" in caplog.text
    assert "very-secret" not in caplog.text
    assert "also-secret" not in caplog.text


async def test_a_key_that_a_redirect_repeats_is_sent_once_and_logged_nowhere(
    api: Connecting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    paths = secured({"query": []}, path="/again")
    paths["/again"]["get"]["parameters"] = [{"name": "q", "in": "query", "schema": {"type": "string"}}]
    async with api(paths, components={"securitySchemes": SCHEMES}, auth={"query": "very-secret"}) as toolset:
        result = await toolset.call("it", {"q": "a b"})
    assert result.structured["path"] == "/again/"
    assert result.structured["query"] == "q=a%20b&api%20key=***"
    assert "very-secret" not in caplog.text


KEY = "a+b/c+d/e="


async def test_a_key_that_the_api_repeats_with_escapes_in_its_json_is_hidden(api: Connecting) -> None:
    paths = secured({"header": []}, path="/escaped")
    async with api(paths, components={"securitySchemes": SCHEMES}, auth={"header": KEY}) as toolset:
        result = await toolset.call("it", {})
    assert ["x-key", "***"] in result.structured["headers"]
    assert ["host", "***"] not in result.structured["headers"]
    assert KEY not in result.text


async def test_a_key_in_the_place_that_the_api_names_is_hidden(api: Connecting) -> None:
    paths = secured({"header": []}, path="/told")
    async with api(paths, components={"securitySchemes": SCHEMES}, auth={"header": KEY}) as toolset:
        result = await toolset.call("it", {})
    assert result.text == "201 Created, Location: /orders/7?key=***"


async def test_a_failure_does_not_repeat_a_key_that_the_api_sent_back(api: Connecting) -> None:
    paths = secured({"header": []}, path="/redirect")
    paths["/redirect"]["get"]["parameters"] = [{"name": "to", "in": "query", "schema": {}}]
    async with api(paths, components={"securitySchemes": SCHEMES}, auth={"header": "very-secret"}) as toolset:
        with pytest.raises(ToolFailure, match=r"302 Found to https://else.example/\*\*\*,"):
            await toolset.call("it", {"to": "https://else.example/very-secret"})


async def _count(echo: str, name: str) -> int:
    paths = {f"/count/{name}": {"get": {"operationId": "count"}}}
    document = {"openapi": "3.1.0", "info": {}, "servers": [{"url": echo}], "paths": paths}
    async with mcp_bridge.connect(json.loads(json.dumps(document))) as toolset:
        return int((await toolset.call("count", {})).structured["count"])
