"""What a release needs beside the code: version, changelog, licence, CI, and a README without gaps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from project_files import PACKAGES, ROOT, own_files, read

PYPROJECT = tomllib.loads(read(Path("pyproject.toml")))
PROJECT = PYPROJECT["project"]


def test_the_changelog_has_the_version_of_the_project() -> None:
    versions = re.findall(r"^## \[([^\]]+)\]", read(Path("CHANGELOG.md")), flags=re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert versions[1] == PROJECT["version"]


def test_the_licence_is_the_whole_apache_licence() -> None:
    text = read(Path("LICENSE"))
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert "9. Accepting Warranty or Additional Liability." in text
    assert text.rstrip().endswith("limitations under the License.")


def test_what_the_packages_have_beside_python_is_put_into_the_wheel() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["*"]
    data = [path for path in own_files() if path.parts[0] in PACKAGES and path.suffix != ".py"]
    assert {"smollm2.jinja", "schema.sql", "index.html", "py.typed"} <= {path.name for path in data}
    assert [str(path) for path in data if not any(fnmatch(path.name, pattern) for pattern in patterns)] == []


def test_ci_runs_the_readmes_test_command_in_a_fresh_environment() -> None:
    script = read(Path(".ci/run"))
    assert re.search(r"^make test\b", read(Path("README.md")), flags=re.MULTILINE)
    assert re.search(r"^make test$", script, flags=re.MULTILINE)
    assert "rm -rf .venv" in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_workflow_does_nothing_but_call_the_ci_script_and_the_tests_of_the_seams() -> None:
    jobs = yaml.safe_load(read(Path(".github/workflows/ci.yml")))["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands == {"test": [".ci/run"], "seams": ["make test-${{ matrix.releases }}"]}
    assert jobs["seams"]["strategy"]["matrix"] == {"releases": ["oldest", "newest"]}


@pytest.mark.parametrize("releases", ["oldest", "newest"])
def test_the_tests_of_the_seams_are_there_for_both_ends_of_what_is_allowed(releases: str) -> None:
    planned = subprocess.run(
        ["make", "--dry-run", f"test-{releases}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"allowed_releases.py {releases} >.venv-{releases}/constraints.txt" in planned
    tests = re.findall(r"tests/\S+/test_\w+\.py", planned)
    assert "tests/trainer/test_trl_contract.py" in tests
    assert [test for test in tests if not (ROOT / test).is_file()] == []


def test_the_releases_of_the_constraints_are_allowed_and_so_are_the_oldest() -> None:
    oldest = subprocess.run(
        [sys.executable, "tests/allowed_releases.py", "oldest"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    listed = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    allowed = {wanted.name: wanted.specifier for wanted in map(Requirement, listed)}
    for line in [*oldest.splitlines(), *read(Path("constraints.txt")).splitlines()]:
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            assert allowed[name].contains(version), line
    for library in ("mcp", "trl", "transformers", "renderers", "peft", "faker"):
        assert f"{library}==" in oldest


def test_pre_commit_uses_the_environments_own_tools() -> None:
    config = yaml.safe_load(read(Path(".pre-commit-config.yaml")))
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert all(hook["language"] == "system" and hook["entry"].startswith(".venv/bin/") for hook in hooks)


@pytest.mark.parametrize("mark", ["To be filled in", "TBD", "lorem"])
def test_the_readme_has_no_gap(mark: str) -> None:
    assert mark.lower() not in read(Path("README.md")).lower()


def test_the_extras_that_errors_name_bring_the_modules_that_they_are_checked_for() -> None:
    from mcp_bridge.extras import EXTRAS

    offered = PROJECT["optional-dependencies"]

    def brought(extra: str) -> set[str]:
        found = set()
        for line in offered[extra]:
            name, inner = re.fullmatch(r"([\w-]+)(?:\[([\w,]+)\])?.*", line).groups()  # type: ignore[union-attr]
            found |= (
                {{"python-dotenv": "dotenv", "prometheus-client": "prometheus_client"}.get(name, name)}
                if name != "toolbake"
                else set().union(*map(brought, inner.split(",")))
            )
        return found

    for extra, modules in EXTRAS.items():
        assert set(modules) <= brought(extra)
    assert {"serve", "train", "vllm", "twins", "quickstart", "all", "dev"} <= set(offered)
    assert set().union(*map(brought, EXTRAS)) == brought("all")
