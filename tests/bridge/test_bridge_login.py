"""Logins of users: an OAuth server of FastMCP's in a process of its own, and a browser that follows redirects."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import socket
import stat
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx
import pytest
from free_ports import free_port
from other_environments import python_of
from typer.testing import CliRunner, Result

from mcp_bridge import SourceError, ToolFailure, connect
from sdk.cli.app import app

SERVER = Path(__file__).parent / "servers" / "oauth_server.py"
BROWSER = """
import sys
from urllib.request import ProxyHandler, build_opener

def browse(url):
    build_opener(ProxyHandler({})).open(url).read()
    return True

if __name__ == "__main__":
    browse(sys.argv[1])
"""

Start = Callable[..., str]


@pytest.fixture(scope="module")
def oauth() -> Iterator[Start]:
    """Starts a server and gives its URL; all in one process, each with clients and tokens of its own."""
    command = [str(python_of("fastmcp")), str(SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def start(kind: str = "") -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            print(kind, file=process.stdin, flush=True)
            return f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"

        yield start
        process.kill()


@pytest.fixture
def config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tokens are kept: in files, as on a machine without a keyring. And a browser, here and in processes."""
    (tmp_path / "browser.py").write_text(BROWSER)
    monkeypatch.setattr(webbrowser, "open", runpy.run_path(str(tmp_path / "browser.py"))["browse"])
    monkeypatch.setenv("BROWSER", f"{sys.executable} {tmp_path / 'browser.py'} %s")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    return tmp_path / "config" / "toolbake" / "logins"


def log_in(*words: str) -> Result:
    """The command in this process, to be called where no event loop runs."""
    done = CliRunner().invoke(app, ["login", *words])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def log_in_process(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toolbake", "login", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def kept(folder: Path) -> Any:
    """The one login that is kept, in a file that nobody else can read."""
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (file,) = folder.glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return json.loads(file.read_text())


def config(url: str, **more: Any) -> dict[str, Any]:
    return {"mcpServers": {"accounts": {"url": url, **more}}}


async def test_a_login_in_the_browser_is_kept_and_used_by_every_connection(
    oauth: Start, config_folder: Path, tmp_path: Path
) -> None:
    url = oauth()
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(config(url)))
    with pytest.raises(SourceError, match=r"refused us; log in with `toolbake login MCP_JSON --server accounts`"):
        async with connect(file):
            pass
    done = log_in_process(str(file), "--server", "accounts")
    assert done.returncode == 0, done.stderr
    assert "logged in; the tokens are kept in" in done.stdout
    assert re.search(r"log in at this address, .*: http://127\.0\.0\.1:\d+/authorize\?", done.stderr)
    tokens = kept(config_folder)["tokens"]
    assert not any(tokens[name] in done.stdout + done.stderr for name in ("access_token", "refresh_token"))
    async with connect(file) as toolset:
        assert (await toolset.call("echo", {"text": "in"})).text == "in"
        assert json.loads((await toolset.call("asked", {})).text) == {"clients": 1, "refreshed": 0}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_client_that_is_registered_with_one_address_logs_in_with_it(
    host: str, oauth: Start, config_folder: Path, tmp_path: Path
) -> None:
    redirect = f"http://{host}:{free_port()}/oauth/back"
    url, file = oauth(redirect), tmp_path / "mcp.json"
    auth = {"type": "authorization_code", "client_id": "desktop", "redirect_uri": redirect}
    file.write_text(json.dumps(config(url, auth=auth)))
    done = await anyio.to_thread.run_sync(log_in, str(file))
    assert done.exit_code == 0, done.stderr
    async with connect(file) as toolset:
        assert (await toolset.call("echo", {"text": "in"})).text == "in"


def test_an_address_whose_port_is_taken_is_named(tmp_path: Path, config_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        redirect = f"http://127.0.0.1:{taken.getsockname()[1]}/callback"
        file = tmp_path / "mcp.json"
        auth = {"type": "authorization_code", "client_id": "desktop", "redirect_uri": redirect}
        file.write_text(json.dumps(config("https://stock.example/mcp", auth=auth)))
        done = log_in(str(file))
    assert done.exit_code == 1
    assert f"cannot come back to auth.redirect_uri '{redirect}'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


async def test_tokens_that_end_during_a_session_are_refreshed_once_and_kept(
    oauth: Start, config_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    url = oauth()
    assert (await anyio.to_thread.run_sync(log_in, url)).exit_code == 0
    before = kept(config_folder)["tokens"]
    async with connect(url) as toolset, toolset.open_world("a") as one, toolset.open_world("b") as two:
        await one.call("end_tokens", {})
        assert (await two.call("echo", {"text": "still in"})).text == "still in"
        assert json.loads((await one.call("asked", {})).text)["refreshed"] == 1
        leaked = (await one.call("leak", {})).text
    after = kept(config_folder)["tokens"]
    assert before["access_token"] != after["access_token"]
    told = leaked + "".join(record.getMessage() for record in caplog.records)
    assert not any(one[name] in told for one in (before, after) for name in ("access_token", "refresh_token"))
    async with connect(url) as toolset:
        assert (await toolset.call("echo", {"text": "again"})).text == "again"
        assert json.loads((await toolset.call("asked", {})).text)["refreshed"] == 1


async def test_several_programs_with_one_login_refresh_it_once_between_them(oauth: Start, config_folder: Path) -> None:
    url = oauth()
    assert (await anyio.to_thread.run_sync(log_in, url)).exit_code == 0
    async with connect(url) as first, connect(url) as second, connect(url) as third:
        await first.call("end_tokens", {})

        async def call(toolset: Any) -> None:
            assert (await toolset.call("echo", {"text": "in"})).text == "in"

        async with anyio.create_task_group() as group:
            for toolset in (first, second):
                group.start_soon(call, toolset)
        await call(third)
        assert json.loads((await third.call("asked", {})).text)["refreshed"] == 1


async def test_a_login_that_cannot_be_refreshed_is_an_error_that_names_the_command(
    oauth: Start, config_folder: Path
) -> None:
    url = oauth("rejecting")
    assert (await anyio.to_thread.run_sync(log_in, url)).exit_code == 0
    async with connect(url) as toolset:
        await toolset.call("end_tokens", {})
        with pytest.raises(ToolFailure, match=r"status 401, error 'invalid_grant'. Log in again with `toolbake login`"):
            await toolset.call("echo", {"text": "out"})


def test_the_systems_keyring_is_used_where_it_has_a_safe_backend_and_a_file_where_it_takes_nothing(
    config_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("keyring")
    import keyring
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

    from mcp_bridge.access.logins import KeptTokens, read_tokens, write_tokens

    class Ring(keyring.backend.KeyringBackend):
        priority = 5
        longest = 10_000
        texts: ClassVar[dict[tuple[str, str], str]] = {}

        def get_password(self, service: str, username: str) -> str | None:
            return self.texts.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            if len(password) > self.longest:
                raise keyring.errors.PasswordSetError("too long")
            self.texts[service, username] = password

        def delete_password(self, service: str, username: str) -> None:
            del self.texts[service, username]

    def login(token: str) -> KeptTokens:
        return KeptTokens(tokens=OAuthToken(access_token=token), client=OAuthClientInformationFull(client_id="c"))

    ring = Ring()
    monkeypatch.setattr(keyring.core, "_keyring_backend", ring)
    assert "keyring" in write_tokens("https://stock.example/mcp", login("first"))
    assert not config_folder.exists()
    assert read_tokens("https://stock.example/mcp") == login("first")
    ring.longest = 10
    assert str(config_folder) in write_tokens("https://stock.example/mcp", login("second"))
    assert "took no login (PasswordSetError)" in caplog.text
    assert read_tokens("https://stock.example/mcp") == login("second")
    ring.longest = 10_000
    write_tokens("https://stock.example/mcp", login("third"))
    assert not list(config_folder.glob("*.json"))
    assert read_tokens("https://stock.example/mcp") == login("third")


def test_an_answer_to_another_login_is_refused_and_the_real_one_is_waited_for(
    oauth: Start, config_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browse, refused = webbrowser.open, []

    def browse_after_others(url: str) -> bool:
        redirect = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        for query in ("error=access_denied&state=other", "code=theirs"):
            refused.append(httpx.get(f"{redirect}?{query}", trust_env=False))
        return browse(url)

    monkeypatch.setattr(webbrowser, "open", browse_after_others)
    done = log_in(oauth())
    assert done.exit_code == 0, done.stderr
    assert [(one.status_code, "has a wrong state" in one.text) for one in refused] == [(400, True), (400, True)]
    assert kept(config_folder)["tokens"]


def test_an_answer_of_a_wrong_issuer_brings_no_login(oauth: Start, config_folder: Path) -> None:
    done = log_in(oauth("issuer"))
    assert done.exit_code == 1
    assert re.search(r"(?i)iss.*other\.example|other\.example.*iss", done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert not config_folder.exists()


async def test_a_refresh_token_of_ones_own_is_renewed_where_the_user_says_and_its_successors_are_kept(
    oauth: Start, config_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = oauth()
    assert (await anyio.to_thread.run_sync(log_in, url)).exit_code == 0
    login = kept(config_folder)
    shutil.rmtree(config_folder)
    monkeypatch.setenv("ACCOUNTS_TOKEN", login["tokens"]["refresh_token"])
    origin = url.removesuffix("/mcp")
    auth = {"type": "refresh_token", "client_id": login["client"]["client_id"], "refresh_token": "${ACCOUNTS_TOKEN}"}
    if "client_secret" in login["client"]:
        auth |= {"client_secret": login["client"]["client_secret"], "client_auth": "body"}
    for count, way in enumerate(({"token_url": f"{origin}/token"}, {"issuer": origin}), 1):
        async with connect(config(url, auth={**auth, **way})) as toolset:
            assert (await toolset.call("echo", {"text": "in"})).text == "in"
            assert os.environ["ACCOUNTS_TOKEN"] in toolset.secrets
            await toolset.call("end_tokens", {})
            assert json.loads((await toolset.call("asked", {})).text)["refreshed"] == count + 1
    assert kept(config_folder)["tokens"]["refresh_token"] != os.environ["ACCOUNTS_TOKEN"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"auth": {"type": "refresh_token", "client_id": "c", "issuer": "https://a"}}, "auth.refresh_token is missing"),
        ({"auth": {"type": "refresh_token", "client_id": "c", "refresh_token": "r"}}, "needs issuer"),
        ({"auth": {"type": "authorization_code", "issuer": "https://a"}}, "unknown key 'issuer'"),
        ({"auth": {"type": "authorization_code", "client_secret": "s"}}, "does nothing without client_id"),
        *(
            ({"auth": {"type": "authorization_code", "redirect_uri": uri}}, "an address of this machine with a port")
            for uri in (
                "https://127.0.0.1:8765/callback",
                "http://127.0.0.1/callback",
                "http://stock.example:8765/callback",
                "http://127.0.0.1:8765/callback?next=1",
                "http://127.0.0.1:port/callback",
            )
        ),
        ({"auth": {"type": "authorization_code"}, "headers": {"Authorization": "x"}}, "both auth and a header"),
    ],
)
async def test_a_login_that_cannot_work_is_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(SourceError, match=told):
        async with connect(config("https://stock.example/mcp", **more)):
            pass


def test_only_servers_that_take_a_login_are_logged_in_with(tmp_path: Path, config_folder: Path) -> None:
    file = tmp_path / "mcp.json"
    own = config("https://stock.example/mcp", headers={"Authorization": "Bearer x"})
    file.write_text(json.dumps(own))
    for words, told in (
        ((), "no server to log in with"),
        (("--server", "other"), "the servers with a URL are 'accounts'"),
    ):
        done = log_in(str(file), *words)
        assert done.exit_code == 1
        assert told in done.stderr
    assert "has a login of its own" in log_in(str(file), "--server", "accounts").stderr
