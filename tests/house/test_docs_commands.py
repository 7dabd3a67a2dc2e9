"""Every `toolbake` command in the docs exists with those options, and every `make` target is there."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest
import typer
from doc_blocks import blocks
from project_files import ROOT, pages, read

from sdk.cli.app import app

COMMANDS = {
    "quickstart",
    "init",
    "doctor",
    "train",
    "evaluate",
    "export",
    "judge",
    "login",
    "report",
    "rollout",
    "serve",
    "serve-tools",
    "solve",
    "synthesize",
    "tools",
    "record",
    "replay",
    "divergence",
    "certify",
    "distill",
    "verify",
    "view",
}


def shell_lines() -> list[tuple[str, list[str]]]:
    """Where, and the words of each line of the shell blocks; a line that ends in a backslash goes on."""
    found = []
    for page in pages():
        for block in blocks(read(page), str(page)):
            if block.language == "bash":
                code = block.code.replace("\\\n", " ")
                found += [
                    (str(page), words) for line in code.splitlines() if (words := shlex.split(line, comments=True))
                ]
    return found


def lines_of(program: str) -> list[list[str]]:
    return [words[1:] for _, words in shell_lines() if words[0] == program]


def parse(words: list[str]) -> None:
    """Parse a command line as the command would, without running it. Raises `click.UsageError`."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    with group.make_context("toolbake", list(words)) as context:
        name, *rest = words
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        if command is None:
            raise click.UsageError(f"no command {name!r}")
        with command.make_context(name, rest, parent=context):
            pass


@pytest.mark.parametrize("words", lines_of("toolbake"), ids=" ".join)
def test_a_command_in_the_docs_exists_with_its_options(
    words: list[str], clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone)
    parse(words)


@pytest.mark.parametrize("words", [["trian"], ["serve", "--prot", "8000"], ["tools", "mcp.json", "one", "too", "many"]])
def test_a_mistyped_command_is_found(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)no (such )?(command|option)|unexpected"):
        parse(words)


def test_the_readme_shows_every_command() -> None:
    shown = {words[1] for page, words in shell_lines() if page == "README.md" and words[0] == "toolbake"}
    assert shown == COMMANDS == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", read(Path("Makefile")), flags=re.MULTILINE))


def test_every_make_target_in_the_docs_exists() -> None:
    named = {
        target for page in pages() for target in re.findall(r"\bmake(?: [A-Z]+=\S+)* ([a-z-]+)", _code(read(page)))
    }
    assert {"quickstart", "test", "install"} <= named
    assert named <= make_targets()


def _code(text: str) -> str:
    """The shell blocks and what stands between backticks."""
    shell = [block.code for block in blocks(text) if block.language == "bash"]
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join([*shell, *re.findall(r"`([^`]+)`", outside)])


def test_every_program_in_a_shell_block_is_a_known_one() -> None:
    known = {"toolbake", "make", "source", ".venv/bin/pre-commit", "npm", "python", "git", "export"}
    assert {words[0] for _, words in shell_lines()} <= known


@pytest.mark.parametrize("words", lines_of("python"), ids=" ".join)
def test_a_file_or_module_that_python_runs_in_the_docs_exists(words: list[str]) -> None:
    found = importlib.util.find_spec(words[1]) if words[0] == "-m" else (ROOT / words[0]).is_file()
    assert found, f"python {' '.join(words)}"
