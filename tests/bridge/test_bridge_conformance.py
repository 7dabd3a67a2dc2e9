"""The conformance suite of MCP tries our client: each scenario that a revision requires of clients."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conformance_suite import needs_suite, requirements, suite_command

HERE = Path(__file__).parent
BROWSER = """
import sys
from urllib.request import ProxyHandler, build_opener

build_opener(ProxyHandler({})).open(sys.argv[1]).read()
"""


WHEN = "-[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T*"
"""What the suite puts behind the name of a scenario in that of its folder."""
GIVES_UP = {
    "auth/scope-retry-limit",
    "auth/resource-mismatch",
    "auth/metadata-issuer-mismatch",
    *(f"auth/iss-{case}" for case in ("supported-missing", "wrong-issuer", "unexpected", "normalized")),
}
"""Scenarios of servers that our client must not log in at: it exits with an error."""


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


@pytest.fixture(scope="module")
def tried(client: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The folder with what the suite found in a scenario. It tries all of a revision at once, when the first is asked
    for: a process of the suite for each takes ten times as long."""

    @functools.cache
    def tried_all(revision: str) -> Path:
        folder = tmp_path_factory.mktemp("tried")
        browser = folder / "browser.py"
        browser.write_text(BROWSER)
        command = [*suite_command("client"), "--command", client, "--requirements", revision]
        environment = {
            "BROWSER": f"{sys.executable} {browser} %s",
            "HOME": str(folder),
            "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        }
        ended = subprocess.run(
            [*command, "--timeout", "240000", "--output-dir", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, **environment},
        )
        assert ended.returncode == 0, ended.stdout
        return folder

    def tried_one(revision: str, scenario: str) -> Path:
        (folder,) = tried_all(revision).glob(f"{scenario}{WHEN}")
        return folder

    return tried_one


@needs_suite
@pytest.mark.timeout(600)  # whichever comes first waits for its whole revision
@pytest.mark.parametrize(("revision", "scenario"), required() or [("", "")])
def test_the_client_conforms_to_its_revision(tried: Callable[[str, str], Path], revision: str, scenario: str) -> None:
    folder = tried(revision, scenario)
    checks = json.loads((folder / "checks.json").read_text())
    assert [check for check in checks if check["status"] in ("FAILURE", "WARNING")] == []
    assert any(check["status"] == "SUCCESS" for check in checks)
    said, errors = ((folder / name).read_text() for name in ("stdout.txt", "stderr.txt"))
    assert said.splitlines()[-1:] == [f"exits with {int(scenario in GIVES_UP)}"], errors
