"""The documentation site builds, and a broken link fails it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from project_files import ROOT

pytestmark = pytest.mark.timeout(300)


def build(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder, "--config-file", config)
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_the_site_builds_strictly_with_the_api_and_the_commands(tmp_path: Path) -> None:
    done = build(tmp_path, ROOT / "mkdocs.yml")
    assert done.returncode == 0, done.stderr
    assert 'id="sdk.trainer.pipeline.train_async"' in (tmp_path / "reference/python/index.html").read_text()
    assert "toolbake serve-tools" in (tmp_path / "reference/commands/index.html").read_text()


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/index.md").write_text("[nowhere](nowhere.md)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text("site_name: one\nstrict: true\ndocs_dir: pages\nvalidation: {links: {not_found: warn}}\n")
    done = build(tmp_path / "site", config)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
