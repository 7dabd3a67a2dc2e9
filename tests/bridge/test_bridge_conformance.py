"""The conformance suite of MCP tries our logins: each scenario that its revision requires of clients."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conformance_suite import needs_suite, requirements, suite_command

CLIENT = Path(__file__).parent / "conformance_client.py"
BROWSER = """
import sys
from urllib.request import ProxyHandler, build_opener

build_opener(ProxyHandler({})).open(sys.argv[1]).read()
"""


def required() -> list[tuple[str, str]]:
    listed = {revision: required["client"] for revision, required in requirements().items()}
    return [(revision, name) for revision, names in listed.items() for name in names if name.startswith("auth/")]


@needs_suite
@pytest.mark.parametrize(("revision", "scenario"), required() or [("", "")])
def test_a_login_conforms_to_its_revision(revision: str, scenario: str, tmp_path: Path) -> None:
    browser = tmp_path / "browser.py"
    browser.write_text(BROWSER)
    command = [*suite_command("client"), "--command", f"{sys.executable} {CLIENT}"]
    options = ["--scenario", scenario, "--spec-version", revision, "--timeout", "60000"]
    environment = {
        "BROWSER": f"{sys.executable} {browser} %s",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "HOME": str(tmp_path),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        "PYTHONPATH": str(Path(__file__).parents[2]),
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
