"""Help that teaches, and starts at once."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from importlib import metadata
from typing import get_args, get_type_hints

import pytest
from command_line import toolbake
from typer.main import get_command

from sdk.cli.app import app

COMMANDS = (
    "quickstart",
    "train",
    "evaluate",
    "report",
    "rollout",
    "view",
    "serve",
    "tools",
    "record",
    "replay",
    "divergence",
)
"""Those whose order on the overview is that of their use."""


def commands(group=None, before=()):
    """Every command by its words, those of groups too."""
    found = {}
    for name, command in (group or get_command(app)).commands.items():
        words = (*before, name)
        found |= commands(command, words) if hasattr(command, "commands") else {" ".join(words): command}
    return found


HEAVY = ("torch", "mcp", "transformers", "datasets", "matplotlib", "trl", "uvicorn")


def test_the_overview_names_every_command_in_the_order_of_use():
    result = toolbake("--help")
    assert result.exit_code == 0
    places = [result.stdout.index(f"│ {name} ") for name in COMMANDS]
    assert places == sorted(places)
    shown = " ".join(result.stdout.split())
    assert (
        "3 what was checked does not hold (certify, verify, divergence), 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP" in shown
    )


@pytest.mark.parametrize("name", commands())
def test_every_command_says_what_it_is_for_with_an_example_and_every_option(name):
    result = toolbake(*name.split(), "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert f"  toolbake {name}" in result.stdout
    command = commands()[name]
    for parameter in command.params:
        assert parameter.help, f"{parameter.name} is not explained"
        assert (parameter.metavar or "") in result.stdout
    assert len(command.help.split("\n\n")[1]) > 100, "a paragraph of what and why is missing"


@pytest.mark.parametrize("name", commands())
def test_every_option_with_a_value_tells_its_default(name):
    options = [one for one in commands()[name].params if one.param_type_name == "option"]
    with_a_value = [one for one in options if not one.required and not one.is_flag]
    assert with_a_value
    for option in with_a_value:
        assert option.show_default or option.name == "command", f"{name} --{option.name}"


def number_options():
    """The words of every command with each of its options that takes a number with a fraction."""
    found = []
    for group in (app, *(group.typer_instance for group in app.registered_groups)):
        for command in group.registered_commands:
            hints = get_type_hints(command.callback)
            words = ("judge",) if group is not app else ()
            words += (command.name or command.callback.__name__.replace("_", "-"),)
            found += [
                (*words, f"--{name.replace('_', '-')}")
                for name, kind in hints.items()
                if float in (kind, *get_args(kind))
            ]
    return found


@pytest.mark.parametrize("words", number_options(), ids=" ".join)
def test_no_option_takes_nan_for_a_number(words):
    result = toolbake(*words, "nan")
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-1]}': " in " ".join(result.stderr.split())


def test_the_options_that_take_numbers_are_found():
    assert {("evaluate", "--temperature"), ("judge", "check", "--min-kappa")} <= set(number_options())


def test_the_limits_in_the_help_are_all_there_are_with_their_defaults():
    from sdk.cli.options import limits
    from sdk.rollouts.limits import Limits

    (option,) = [one for one in commands()["rollout"].params if one.name == "limit"]
    shown = option.show_default.split(", ")
    assert [one.partition("=")[0] for one in shown] == list(Limits.model_fields)
    assert limits(shown) == Limits()


def test_the_version_is_the_packages():
    assert toolbake("--version").stdout == f"toolbake {metadata.version('toolbake')}\n"


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(words):
    code = (
        "import sys; from sdk.cli import main\n"
        f"sys.argv = ['toolbake', *{words!r}]\n"
        "try: main()\n"
        f"finally: sys.stderr.write(' '.join(sorted({set(HEAVY)!r} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


SMALL = """
import typer
app = typer.Typer()
@app.command()
def one(number: int = 1): "One."
@app.command()
def two(number: int = 1): "Two."
app(["--help"])
"""


def test_help_costs_little_more_than_that_of_the_smallest_program():
    """Processor time, of which no machine has the same: 1.8 times as much, where torch alone would be 20 times."""

    def cost(*words: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    pairs = [(cost("-m", "toolbake", "--help"), cost("-c", SMALL)) for _ in range(3)]
    assert min(ours for ours, _ in pairs) < 3 * min(smallest for _, smallest in pairs)


def test_the_installed_script_and_the_module_are_the_same_command():
    script = os.path.join(os.path.dirname(sys.executable), "toolbake")
    for start in ([script], [sys.executable, "-m", "toolbake"]):
        done = subprocess.run([*start, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("toolbake ")


def test_the_settings_of_training_are_listed_with_defaults_and_meaning():
    result = toolbake("train", "--list-settings")
    assert result.exit_code == 0
    assert "grpo.max_steps=26\n    Optimiser steps of GRPO; 0 stops after the warm start." in result.stdout
    assert "limits.max_turns=8\n    Assistant messages." in result.stdout


def test_every_listed_setting_can_be_set():
    from sdk.cli.commands.train import train_config
    from sdk.trainer.config import TrainConfig

    lines = [line for line in toolbake("train", "--list-settings").stdout.splitlines() if not line.startswith(" ")]
    assert train_config(None, lines) == TrainConfig()


def test_a_group_that_is_set_adds_its_options_to_those_of_the_file(tmp_path):
    from sdk.cli.commands.train import train_config
    from sdk.trainer.config import TrainConfig

    (tmp_path / "config.json").write_text('{"grpo": {"max_steps": 3, "num_generations": 4}, "tool_prompt": "names"}')
    settings = ['grpo={"max_steps": 5, "epsilon": 0.1}', "grpo.epsilon=0.3", 'tool_prompt={"full": 1.0}']
    assert train_config(tmp_path / "config.json", settings) == TrainConfig.of(
        {"grpo": {"max_steps": 5, "num_generations": 4, "epsilon": 0.3}, "tool_prompt": {"full": 1.0}}
    )
