"""A hook of mkdocs: the reference page of the commands, made of their `--help`."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files
from typer.main import get_command
from typer.testing import CliRunner

from sdk.cli.app import app


def commands(group: Any = None, before: tuple[str, ...] = ()) -> list[str]:
    """Every command by its words, in the overview's order."""
    names = []
    for name, command in (group or get_command(app)).commands.items():
        words = (*before, name)
        names += commands(command, words) if hasattr(command, "commands") else [" ".join(words)]
    return names


def page() -> str:
    """Markdown: the help of `toolbake` and of each command."""
    parts = ["# Commands\n\nEach page of help is what the command prints with `--help`.\n"]
    for name in ("", *commands()):
        shown = CliRunner(env={"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}).invoke(
            app, [*name.split(), "--help"]
        )
        if shown.exit_code:
            raise RuntimeError(f"toolbake {name} --help failed: {shown.output}")
        parts.append(f"## toolbake {name}".rstrip() + f"\n\n```text\n{shown.output.strip()}\n```\n")
    return "\n".join(parts)


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs with the files of the site."""
    files.append(File.generated(config, "reference/commands.md", content=page()))
    return files
