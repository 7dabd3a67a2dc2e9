"""What a release needs beside the code: version, changelog, licence, CI, and a README without gaps."""

from __future__ import annotations

import os
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
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


def test_the_workflow_does_nothing_but_call_the_ci_script() -> None:
    workflow = yaml.safe_load(read(Path(".github/workflows/ci.yml")))
    commands = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert commands == [".ci/run"]


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
            found |= {name} if name != "toolbake" else set().union(*map(brought, inner.split(",")))
        return found

    for extra, modules in EXTRAS.items():
        assert set(modules) <= brought(extra)
    assert {"serve", "train", "vllm", "twins", "quickstart", "all", "dev"} <= set(offered)
    assert set().union(*map(brought, EXTRAS)) == brought("all")
