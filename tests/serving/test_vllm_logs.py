"""vLLM's log is a temporary file: it goes with a server that was stopped, and stays where it tells of a failure. Its
arguments are handed on.

In vLLM's place a small program listens, dies and is killed.
"""

from __future__ import annotations

import datetime
import os
import signal
import ssl
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

import sdk
from sdk.cli.app import app
from sdk.errors import PolicyFailure
from sdk.serving.vllm_server import ServedModel, VllmServer, serve_with_vllm

PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then echo '[["vllm", "0.32.0", ""]]'; else exec {python} {program} "$@"; fi
"""
"""A Python that is asked which vLLM its environment has, and then is told to run it."""

PROGRAM = """
import http.server, os, signal, ssl, sys

def die(): os.kill(os.getpid(), signal.SIGKILL)
def interrupt(): os.kill(os.getppid(), signal.SIGINT)
def live(): pass

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())
    def finish(self):
        super().finish()
        self.connection.close()
        {then}()
    def log_message(self, *_):
        pass

print("looking for a device", flush=True)
{first}
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
files = dict(argument.split("=", 1) for argument in sys.argv if argument.startswith("--ssl-"))
if files:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["--ssl-certfile"], files["--ssl-keyfile"])
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""

Vllm = Callable[..., str]


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vllm:
    """Installs one that does something before it listens, and after each answer. Returns its Python."""

    def install(*, first: str = "", then: str = "live") -> str:
        (tmp_path / "program.py").write_text(PROGRAM.format(first=first, then=then))
        python = tmp_path / "python"
        python.write_text(PYTHON.format(python=sys.executable, program=tmp_path / "program.py"))
        python.chmod(0o755)
        monkeypatch.setenv("TOOLBAKE_VLLM_PYTHON", str(python))
        return str(python)

    return install


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Path]]:
    """The logs that are there."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return lambda: list(place.rglob("*.log"))


Logs = Callable[[], list[Path]]


def killed(server: VllmServer) -> None:
    """Kill it, and return when it is dead. It is not waited for."""
    pid = int(httpx.get(f"{server.url}/health").text)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def told_of(log: Path, status: int) -> str:
    return f"vLLM exited with status {status}; the end of {log}:\nlooking for a device"


def test_the_log_goes_with_a_server_that_is_stopped(tiny_model_folder: Path, vllm: Vllm, logs: Logs) -> None:
    vllm()
    with serve_with_vllm(tiny_model_folder, port=0) as server, ThreadPoolExecutor(1) as pool:
        assert len(logs()) == 1
        waiting = pool.submit(server.wait)
        server.close()
        assert waiting.result(60) is None
        assert logs() == []


def test_the_command_shows_the_log_and_keeps_no_more_of_it_than_its_end(
    tiny_model_folder: Path, vllm: Vllm, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdk.policies.server_process._LONGEST_LOG", 1000)
    vllm(first="print('a line of the log\\n' * 1000, flush=True); sys.exit(3)")
    told = CliRunner().invoke(app, ["serve", str(tiny_model_folder), "--engine", "vllm", "--port", "0"])
    assert told.stderr.count("a line of the log") > 1000  # and at the end once more
    (log,) = logs()
    assert log.stat().st_size < 1100


def test_vllm_is_told_the_number_format(tiny_model_folder: Path, vllm: Vllm) -> None:
    vllm()
    with serve_with_vllm(tiny_model_folder, port=0, dtype="bfloat16") as server:
        assert server.command[server.command.index("--dtype") + 1] == "bfloat16"
    with serve_with_vllm(tiny_model_folder, port=0) as server:
        assert "--dtype" not in server.command


def test_vllm_speaks_tls_with_the_files_that_are_handed_on(tiny_model_folder: Path, vllm: Vllm, tmp_path: Path) -> None:
    vllm()
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(self_signed("models.example.com", key))
    files = (f"--ssl-certfile={certificate}", f"--ssl-keyfile={key}")
    with serve_with_vllm(tiny_model_folder, port=0, arguments=files) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(certificate))
        trusted.check_hostname = False  # the server's clients know it by its name
        assert httpx.get(f"{server.url}/health", verify=trusted).status_code == 200


def self_signed(name: str, key_file: Path) -> bytes:
    """A certificate, whose key is written."""
    key = ec.generate_private_key(ec.SECP256R1())
    whose, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(days=1)
    made = x509.CertificateBuilder(whose, whose, key.public_key(), x509.random_serial_number(), now, until)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key_file.write_bytes(secret)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_the_log_goes_with_a_start_that_is_interrupted(tiny_model_folder: Path, vllm: Vllm, logs: Logs) -> None:
    vllm(first="interrupt()")
    told = CliRunner().invoke(app, ["serve", str(tiny_model_folder), "--engine", "vllm", "--port", "0"])
    assert told.exit_code == 130
    assert "starting vLLM" in told.stderr
    assert logs() == []


@pytest.mark.parametrize(
    ("does", "status"), [({"first": "sys.exit(3)"}, 3), ({"then": "die"}, -9)], ids=["exits early", "is killed"]
)
def test_the_command_ends_with_an_error_that_names_the_log_of_a_server_that(
    does: dict[str, str], status: int, tiny_model_folder: Path, vllm: Vllm, logs: Logs
) -> None:
    vllm(**does)
    told = CliRunner().invoke(app, ["serve", str(tiny_model_folder), "--engine", "vllm", "--port", "0"])
    assert told.exit_code == 1
    (log,) = logs()
    assert told.stderr.rstrip().endswith(told_of(log, status))
    assert told.stderr.count("exited with") == 1


def test_a_release_of_vllm_that_was_not_tested_is_named_where_it_does_not_start(
    tiny_model_folder: Path, vllm: Vllm, logs: Logs
) -> None:
    python = Path(vllm(first="sys.exit(2)"))
    python.write_text(python.read_text().replace("0.32.0", "0.8.5"))
    told = CliRunner().invoke(app, ["serve", str(tiny_model_folder), "--engine", "vllm", "--port", "0"])
    assert f"vLLM 0.8.5 is installed in {python}, and toolbake is tested with 0.32 and 0.33" in told.stderr
    assert told.stderr.count("exited with") == len(logs()) == 1


def test_a_server_that_died_unnoticed_is_told_of_where_it_is_closed(
    tiny_model_folder: Path, vllm: Vllm, logs: Logs, caplog: pytest.LogCaptureFixture
) -> None:
    vllm()
    with serve_with_vllm(tiny_model_folder, port=0) as server:
        killed(server)
    server.close()
    (log,) = logs()
    assert told_of(log, -9) in caplog.messages


def get_order(order_id: str) -> str:
    """Read an order."""
    return f"order {order_id}: shipped"


def test_the_log_of_a_vllm_that_samples_stays_where_it_did_not_start(
    tiny_model_folder: Path, vllm: Vllm, logs: Logs
) -> None:
    python = vllm(first="sys.exit(3)")
    model = {"engine": "vllm", "model": str(tiny_model_folder), "python": python}
    with pytest.raises(PolicyFailure) as raised:
        sdk.rollout([get_order], "Where is order 4417?", model=model)
    (log,) = logs()
    assert told_of(log, 3) in str(raised.value)


@pytest.mark.parametrize("on_the_hub", [True, False])
def test_only_for_a_model_on_the_hub_does_vllm_get_the_hub_s_token_which_no_text_shows(
    on_the_hub: bool,
    vllm: Vllm,
    logs: Logs,
    tiny_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = tmp_path / "given"
    vllm(first=f"open({str(given)!r}, 'w').write(os.environ.get('HF_TOKEN', 'none')); die()")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    if on_the_hub:
        model = replace(ServedModel.read(tiny_model_folder), source="someone/gated")
        monkeypatch.setattr(ServedModel, "read", lambda *_, **__: model)
    with pytest.raises(PolicyFailure) as failure:
        serve_with_vllm(tiny_model_folder, port=0)
    assert given.read_text() == ("hf_secret" if on_the_hub else "none")
    (log,) = logs()
    assert "hf_secret" not in str(failure.value) + log.read_text()
