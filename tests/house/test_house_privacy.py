"""Nothing is sent to anybody, and nothing in the tree is of one machine."""

from __future__ import annotations

import re

import pytest
from project_files import read, text_files

# Put together here, so that this file is not its own first finding.
REGISTRY_HOSTS = ["pypi" + ".org", "files.python" + "hosted.org", "registry." + "npmjs", "download.py" + "torch.org"]
MACHINE_PATH = re.compile(r"(?<![\w.~}])/(?:home|Users|root|work|private|mnt)/[\w.]")


def test_no_package_registry_is_named() -> None:
    assert [(str(p), host) for p in text_files() for host in REGISTRY_HOSTS if host in read(p)] == []


def test_no_path_of_a_machine_is_written_down() -> None:
    assert [(str(p), found[0]) for p in text_files() if (found := MACHINE_PATH.search(read(p)))] == []


@pytest.mark.parametrize("folder", ["home", "root", "work", "Users"])
def test_a_path_of_a_machine_is_recognised(folder: str) -> None:
    assert MACHINE_PATH.search(f'open("/{folder}/ann/project")')
