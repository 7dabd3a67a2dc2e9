"""Servers behind a login, with certificates of their own, and behind a proxy: real ones, in threads."""

import base64
import datetime
import ipaddress
import json
import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from listening_servers import serving
from mcp.server.mcpserver import MCPServer
from servers.guarded import CLIENT, SECRET, app

from mcp_bridge import SourceError, connect

Start = Callable[..., str]
PEM = serialization.Encoding.PEM


@pytest.fixture
def guarded() -> Iterator[Start]:
    """Starts a server and gives the origin of its URL."""
    with ExitStack() as stack:

        def start(tls: tuple[str, str] | None = None, client_ca: str | None = None, **options: Any) -> str:
            """`tls`: certificate and key. `client_ca`: who signs the certificates that clients must have."""
            secured: dict[str, Any] = {"ssl_certfile": tls[0], "ssl_keyfile": tls[1]} if tls else {}
            if client_ca:
                secured |= {"ssl_ca_certs": client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
            port = stack.enter_context(serving(app(**options), **secured))
            return f"{'https' if tls else 'http'}://127.0.0.1:{port}"

        yield start


class Files:
    """Certificates of one authority."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test authority")])
        self.ca = self._write("ca.pem", self._signed(self._name, self._key.public_key(), is_ca=True))

    def certificate(self, name: str) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._write(f"{name}.pem", self._signed(subject, key.public_key(), is_ca=False)), self.key(name, key)

    def key(self, name: str, key: ec.EllipticCurvePrivateKey) -> str:
        unencrypted = serialization.NoEncryption()
        return self._write(f"{name}.key", key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, unencrypted))

    def _write(self, name: str, content: bytes) -> str:
        path = self._folder / name
        path.write_bytes(content)
        return str(path)

    def _signed(self, subject: x509.Name, public: ec.EllipticCurvePublicKey, *, is_ca: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = (
            x509.CertificateBuilder(self._name, subject, public, x509.random_serial_number(), now - day, now + day)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            # Python 3.13 takes no certificate without these (RFC 5280, sections 4.2.1.1 to 4.2.1.3).
            .add_extension(_usage(is_ca), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(PEM)


def _usage(is_ca: bool) -> x509.KeyUsage:
    unused = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    return x509.KeyUsage(digital_signature=True, key_cert_sign=is_ca, crl_sign=is_ca, decipher_only=False, **unused)


def public_pem(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(PEM, form).decode()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def entry(url: str, **more: Any) -> dict[str, Any]:
    return {"mcpServers": {"guarded": {"url": url, **more}}}


def login(origin: str, **more: Any) -> dict[str, Any]:
    auth = {"type": "client_credentials", "client_id": CLIENT, "client_secret": SECRET, "issuer": origin}
    return entry(f"{origin}/mcp", auth={**auth, **more})


async def asked_for(toolset: Any) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((await toolset.call("asked_for", {})).text)
    return found


async def test_a_token_is_found_by_discovery_and_shared_by_all_sessions(guarded: Start) -> None:
    origin = guarded()
    async with connect(login(origin)) as toolset:
        async with toolset.open_world("a") as one, toolset.open_world("b") as two:
            assert (await one.call("echo", {"text": "1"})).text == "1"
            assert (await two.call("echo", {"text": "2"})).text == "2"
        assert await asked_for(toolset) == [{"resource": f"{origin}/mcp", "how": "basic"}]


async def test_a_token_url_a_scope_and_the_body_are_used_as_the_user_says(
    guarded: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUARDED_SECRET", SECRET)
    origin = guarded()
    config = login(
        origin, client_secret="${GUARDED_SECRET}", token_url=f"{origin}/token", scope="orders", client_auth="body"
    )
    async with connect(config) as toolset:
        assert await asked_for(toolset) == [{"resource": f"{origin}/mcp", "how": "body", "scope": "orders"}]


@pytest.mark.parametrize("way", ["issuer", "token_url"])
async def test_a_private_key_signs_for_a_token(way: str, guarded: Start, files: Files) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    origin = guarded(public_key=public_pem(key))
    auth = {
        "type": "private_key_jwt",
        "client_id": CLIENT,
        "private_key_file": files.key("signing", key),
        "algorithm": "ES256",
        way: origin if way == "issuer" else f"{origin}/token",
    }
    async with connect(entry(f"{origin}/mcp", auth=auth)) as toolset:
        assert [one["how"] for one in await asked_for(toolset)] == ["jwt"]


async def test_a_token_that_is_refused_is_renewed_once_for_all_calls(guarded: Start) -> None:
    origin = guarded(uses=6)
    async with connect(login(origin)) as toolset:
        results: list[str] = []

        async def call(number: int) -> None:
            results.append((await toolset.call("echo", {"text": str(number)})).text)

        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(call, number)
        assert sorted(results, key=int) == [str(number) for number in range(12)]
        assert 2 <= len(await asked_for(toolset)) <= 5


async def test_a_token_that_is_never_taken_is_an_error_and_no_endless_renewal(guarded: Start) -> None:
    with pytest.raises(SourceError, match=r"refused us; set the right `headers` or `auth`.*HTTP 401"):
        async with connect(login(guarded(uses=0))):
            pass


@pytest.mark.parametrize("way", ["issuer", "token_url"])
async def test_a_wrong_secret_is_a_clear_error_that_shows_none(
    way: str, guarded: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    origin = guarded()
    wrong = "wrong-secret-of-the-client"
    where = {"token_url": f"{origin}/token"} if way == "token_url" else {}
    told = r"/token gave no token for client 'the-client': status 401.*invalid_client"
    with pytest.raises(SourceError, match=told) as raised:
        async with connect(login(origin, client_secret=wrong, client_auth="body", **where)):
            pass
    logged = "".join(logging.Formatter().format(record) for record in caplog.records)
    assert wrong not in f"{raised.value!r}{logged}"


async def test_a_token_does_not_come_back_in_what_people_read(guarded: Start) -> None:
    async with connect(login(guarded())) as toolset:
        assert (await toolset.call("newest_token", {})).text == "***"
        assert [one for one in toolset.secrets if one.startswith("token-number-1")]
        assert SECRET in toolset.secrets
        assert SECRET not in repr(toolset.servers)


async def test_credentials_go_to_the_issuer_of_the_user_alone(guarded: Start) -> None:
    real, other = guarded(), guarded()
    with pytest.raises(SourceError, match=r"gave no token: .*(mismatch|issuer)"):
        async with connect(entry(f"{other}/mcp", auth=login(real)["mcpServers"]["guarded"]["auth"])):
            pass
    async with connect(login(other)) as toolset:
        assert len(await asked_for(toolset)) == 1


async def test_a_certificate_of_ones_own_authority_is_trusted_where_it_is_named(guarded: Start, files: Files) -> None:
    url = f"{guarded(files.certificate('server'), is_open=True)}/mcp"
    with pytest.raises(SourceError, match=r"(?i)certificate.verify.failed"):
        async with connect(url):
            pass
    async with connect(entry(url, tls={"ca": files.ca})) as toolset:
        assert (await toolset.call("echo", {"text": "safe"})).text == "safe"


async def test_trusting_anybody_has_to_be_said_and_is_warned_of(
    guarded: Start, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{guarded(files.certificate('server'), is_open=True)}/mcp"
    async with connect(entry(url, tls={"verify": False})) as toolset:
        assert (await toolset.call("echo", {"text": "unsafe"})).text == "unsafe"
    assert "whoever answers is trusted" in caplog.text


async def test_a_server_that_asks_for_a_certificate_gets_ours(guarded: Start, files: Files) -> None:
    url = f"{guarded(files.certificate('server'), files.ca, is_open=True)}/mcp"
    with pytest.raises(SourceError, match="cannot be reached"):
        async with connect(entry(url, tls={"ca": files.ca})):
            pass
    own, own_key = files.certificate("client")
    async with connect(entry(url, tls={"ca": files.ca, "cert": own, "key": own_key})) as toolset:
        assert (await toolset.call("echo", {"text": "known"})).text == "known"


class Proxy:
    """Tunnels, and keeps the heads of what it was asked."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.port = 0

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        task_status.started()
        async with listener:
            await listener.serve(self._tunnel)

    async def _tunnel(self, client: anyio.abc.SocketStream) -> None:
        async with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await client.receive()
            self.heads.append(head.decode())
            host, _, port = head.split()[1].decode().rpartition(":")
            async with await anyio.connect_tcp(host, int(port)) as server, anyio.create_task_group() as group:
                await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
                group.start_soon(self._pipe, client, server, group.cancel_scope)
                group.start_soon(self._pipe, server, client, group.cancel_scope)

    async def _pipe(self, source: Any, sink: Any, done: anyio.CancelScope) -> None:
        try:
            async for chunk in source:
                await sink.send(chunk)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        done.cancel()


@pytest.mark.parametrize("way", ["named", "environment", "none"])
async def test_a_proxy_is_used_where_it_is_named_or_in_the_environment(
    way: str, guarded: Start, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = guarded(files.certificate("server"))
    proxy = Proxy()
    async with anyio.create_task_group() as group:
        await group.start(proxy.run)
        address = f"http://user:password-of-proxy@127.0.0.1:{proxy.port}"
        config = login(origin)
        config["mcpServers"]["guarded"]["tls"] = {"ca": files.ca}
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        if way == "named":
            config["mcpServers"]["guarded"]["proxy"] = address
        else:
            monkeypatch.setenv("HTTPS_PROXY", address)
            monkeypatch.setenv("https_proxy", address)
        if way == "none":
            config["mcpServers"]["guarded"]["proxy"] = False
        async with connect(config) as toolset:
            assert (await toolset.call("echo", {"text": "through"})).text == "through"
            assert ("password-of-proxy" in toolset.secrets) == (way == "named")
        group.cancel_scope.cancel()
    where = origin.removeprefix("https://")
    # The login goes the same way as the calls.
    assert all(head.startswith(f"CONNECT {where} ") for head in proxy.heads)
    assert bool(proxy.heads) == (way != "none")
    assert all("proxy-authorization: basic" in head.lower() for head in proxy.heads)


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_login_in_a_url_is_sent_and_stands_in_no_log(transport: str, caplog: pytest.LogCaptureFixture) -> None:
    server, seen = MCPServer("desk"), set()

    @server.tool()
    def echo(text: str) -> str:
        return text

    app = server.sse_app() if transport == "sse" else server.streamable_http_app()

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.add(dict(scope["headers"]).get(b"authorization"))
        await app(scope, receive, send)

    with serving(noting) as port, caplog.at_level(logging.DEBUG):
        path = "sse" if transport == "sse" else "mcp"
        url = f"http://ann:secret%40word@127.0.0.1:{port}/{path}"
        entry = {"url": url, **({"type": "sse"} if transport == "sse" else {})}
        async with connect({"mcpServers": {"desk": entry}}) as toolset:
            assert (await toolset.call("echo", {"text": "hello"})).text == "hello"
    assert seen == {b"Basic " + base64.b64encode(b"ann:secret@word")}
    assert not any(secret in caplog.text for secret in ("secret%40word", "secret@word"))


async def test_an_api_is_read_and_called_with_its_own_authority_and_through_its_proxy(
    guarded: Start, files: Files
) -> None:
    own, own_key = files.certificate("client")
    origin = guarded(files.certificate("server"), files.ca)
    proxy = Proxy()
    async with anyio.create_task_group() as group:
        await group.start(proxy.run)
        tls = {"ca": files.ca, "cert": own, "key": own_key}
        address = f"http://user:password-of-proxy@127.0.0.1:{proxy.port}"
        api = {"openapi": f"{origin}/openapi.json", "tls": tls, "proxy": address, "headers": {"X-Tenant": "north"}}
        # Its own host is the user's to name: a document could name any.
        with pytest.raises(SourceError, match=r"openapi.json answered 403"):
            async with connect({"mcpServers": {"api": api}}):
                pass
        async with connect({"mcpServers": {"api": {**api, "base_url": origin}}}) as toolset:
            assert "hello" in (await toolset.call("greet", {})).text
            assert "password-of-proxy" in toolset.secrets
        group.cancel_scope.cancel()
    # Once for each document, and once for the call.
    assert [head.split()[:2] for head in proxy.heads] == [["CONNECT", origin.removeprefix("https://")]] * 3


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"auth": {"type": "bearer", "token": SECRET}}, "auth.type must be one of client_credentials"),
        ({"auth": {"type": "client_credentials", "client_id": "c", "client_secret": SECRET}}, "needs issuer"),
        (
            {"auth": {"type": "client_credentials", "client_id": "c", "client_sekret": SECRET, "issuer": "https://a"}},
            "Did you mean 'client_secret'",
        ),
        (
            {"auth": {"type": "client_credentials", "client_id": "c", "client_secret": SECRET, "issuer": "http://a"}},
            "auth.issuer must be an https:// URL",
        ),
        (
            {"auth": {"type": "private_key_jwt", "client_id": "c", "private_key": SECRET, "token_url": "https://a"}},
            "the private key cannot sign with RS256",
        ),
        (
            {
                "auth": {
                    "type": "private_key_jwt",
                    "client_id": "c",
                    "private_key": SECRET,
                    "algorithm": "HS256",
                    "token_url": "https://a",
                }
            },
            "auth.algorithm is 'HS256'",
        ),
        (
            {
                "auth": {
                    "type": "client_credentials",
                    "client_id": "c",
                    "client_secret": SECRET,
                    "issuer": "https://a",
                },
                "headers": {"authorization": "Bearer x"},
            },
            "both auth and a header",
        ),
        ({"tls": {"verify": "no"}}, "verify must be true or false"),
        ({"tls": {"ca": "missing.pem"}}, "there is no file"),
        ({"tls": {"key": __file__}}, "does nothing without cert"),
        ({"tls": {"ca": __file__}}, "the files cannot be used"),
        ({"tls": {"ca": __file__, "verify": False}}, "ca does nothing where verify is false"),
        ({"proxy": f"socks://{SECRET}@host"}, "proxy must begin with http"),
    ],
)
async def test_access_that_cannot_work_is_refused_without_its_secrets(more: dict[str, Any], told: str) -> None:
    with pytest.raises(SourceError, match=told) as raised:
        async with connect(entry("https://stock.example/mcp", **more)):
            pass
    assert SECRET not in f"{raised.value!r}"
