"""The commands under one name, and `--version`."""

from __future__ import annotations

import inspect
from importlib import metadata
from typing import Annotated

import typer

from .commands.certify import certify
from .commands.distill import distill
from .commands.doctor import doctor
from .commands.evaluate import evaluate, report
from .commands.export import export
from .commands.init import init
from .commands.judge import check, label
from .commands.login import login
from .commands.quickstart import quickstart
from .commands.recording import divergence, record, replay
from .commands.rollout import rollout
from .commands.serve import serve
from .commands.serve_tools import serve_tools
from .commands.synthesize import solve, synthesize
from .commands.tools import tools
from .commands.train import train
from .commands.verify import verify
from .commands.view import view
from .failing import Command, with_clean_errors

# Tracebacks with the values of local variables could show keys.
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"toolbake {metadata.version('toolbake')}")
        raise typer.Exit


def toolbake(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Turn your own tools into a model's skills: MCP servers in, a tuned and served open-weight model out.

    Start with `toolbake quickstart`: it trains a small model on a simulated helpdesk, with nothing to download. Then
    begin a project around your own tools (`init`), check that all is ready (`doctor`), log in with servers that ask
    for it (`login`), look at the tools (`tools`), watch a model use them once (`rollout`), measure it on your tasks
    (`evaluate`), train it (`train`), read what it did (`view`) and put it to use (`serve`, `export`). Where there are
    no tasks yet, make some (`synthesize`), or write requests with the calls that solve them (`solve`). Look for holes
    in the verifier (`certify`), and make a supervised data set of what it passed (`distill`). Where the real
    tools may not be called so often, make a twin of them from a recording (`record`), serve it (`replay`) and see how
    near it is (`divergence`). `serve-tools` gives tools to other MCP clients; `verify` recomputes what a run's rewards
    rest on.
    Each command explains itself with -h.

    Results go to stdout and progress to stderr. Exit codes: 0 done, 1 an error, 2 a mistyped command, 3
    what was checked does not hold (certify, verify, divergence), 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP.
    """


def _help(docstring: str | None) -> str:
    """A docstring for any width of terminal: lines are joined within paragraphs, examples stay as they are."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    joined = [text if "\n " in text else " ".join(text.split()) for text in paragraphs]
    return "\n\n".join(joined).replace("[", "\\[")


app.callback(help=_help(toolbake.__doc__))(toolbake)
for _command in (
    quickstart,
    init,
    doctor,
    login,
    train,
    evaluate,
    report,
    rollout,
    view,
    serve,
    export,
    serve_tools,
    tools,
    solve,
    synthesize,
    certify,
    distill,
    record,
    replay,
    divergence,
    verify,
):
    app.command(cls=Command, help=_help(_command.__doc__))(with_clean_errors(_command))

_judge = typer.Typer(no_args_is_help=True, help="Measure a judge, or ask a model about each row of a file.")
_judge.command("check", cls=Command, help=_help(check.__doc__))(with_clean_errors(check))
_judge.command("label", cls=Command, help=_help(label.__doc__))(with_clean_errors(label))
app.add_typer(_judge, name="judge")
