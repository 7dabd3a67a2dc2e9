"""The conformance suite of MCP tries our client: each scenario that a revision requires of clients."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance_suite import needs_suite, requirements, suite_command

HERE = Path(__file__).parent
BROWSER = """
import sys
from urllib.request import ProxyHandler, build_opener

build_opener(ProxyHandler({})).open(sys.argv[1]).read()
"""


def required() -> list[tuple[str, str]]:
    listed = {revision: required["client"] for revision, required in requirements().items()}
    return [(revision, name) for revision, names in listed.items() for name in names]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The command of the client."""
    place = tmp_path_factory.mktemp("clients") / "socket"
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, str(HERE / "conformance_client.py"), str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as forks:
        assert forks.stdout is not None
        assert forks.stdout.readline() == "listens\n"
        yield f"{sys.executable} -I -S {HERE / 'forked_client.py'} {place}"
        forks.terminate()


@needs_suite
@pytest.mark.parametrize(("revision", "scenario"), required() or [("", "")])
def test_the_client_conforms_to_its_revision(client: str, revision: str, scenario: str, tmp_path: Path) -> None:
    browser = tmp_path / "browser.py"
    browser.write_text(BROWSER)
    command = [*suite_command("client"), "--command", client]
    options = ["--scenario", scenario, "--spec-version", revision, "--timeout", "60000"]
    environment = {
        "BROWSER": f"{sys.executable} {browser} %s",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "HOME": str(tmp_path),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
    }
    ended = subprocess.run(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **environment},
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout
    assert " 0 failed, 0 warnings" in ended.stdout
