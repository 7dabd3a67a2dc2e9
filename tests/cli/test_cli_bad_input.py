"""What cannot work is said in one clean message, with the fix, before work is lost. See also `typical_mistakes`."""

from __future__ import annotations

import socket
import sys

import pytest
from command_line import toolbake

TRAIN = ("train", "desk.py:tools", "tasks.jsonl", "--verifier", "checks.py:verify")


def refused(*words, code=1, **environment):
    """The one message of a command that ends with `code`; without a traceback, and with nothing on stdout."""
    result = toolbake(*words, **environment)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("command", ["train", "evaluate", "rollout"])
def test_a_missing_mcp_json_is_named_with_what_could_be_given(desk, command):
    more = {
        "rollout": ["Hi there"],
        "train": ["tasks.jsonl", "--verifier", "checks.py:verify"],
        "evaluate": ["tasks.jsonl", "--verifier", "checks.py:verify"],
    }
    message = refused(command, "none.json", *more[command])
    assert "TOOLS is 'none.json', and there is no such file" in message
    assert "--command" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tools", "--command", ""], "--command is empty"),
        (["tools", "--command", "no-such-program-here"], "no-such-program-here"),
        (["tools", "none.py:tools"], "there is no file 'none.py'"),
        (["rollout", "desk.py:tools", "Hi you", "--task-id", "t1"], "--task-id t1 does nothing without --tasks"),
        (["rollout", "desk.py:tools", "Hi you", "--limit", "max_turns=0"], "limit max_turns is 0"),
        (["rollout", "desk.py:tools", "Hi you", "--api-key-env", "KEY"], "--api-key-env does nothing without"),
        (["rollout", "desk.py:tools", "Hi you", "--model", "./none"], "there is no model folder './none'"),
        (["tools", "desk.py:tools", "--connect-timeout", "0"], "--connect-timeout is 0.0; it must be a number above 0"),
        (["serve", "./none", "--port", "0"], "there is no model folder './none'"),
        (["serve", "--log-format", "xml"], "--log-format is 'xml'; give one of text, json"),
        (["serve", "--tool-prompt", "short"], "tool_prompt is 'short'; give one of full, names, none"),
        ([*TRAIN, "--set", "tool_prompt=short"], "tool_prompt is 'short': give one of 'full', 'names', 'none'"),
        ([*TRAIN, "--set", "tool_prompt.full=0.5"], "the shares add up to 0.5; they must make 1"),
        ([*TRAIN, "--set", "seed=1", "--set", "seed=2"], "--set sets 'seed' twice"),
        ([*TRAIN, "--set", "seed.of=2", "--set", "seed=2"], "--set sets 'seed.of', and then 'seed' in its place"),
        ([*TRAIN, "--set", "seed=2", "--set", "seed.of=2"], "'seed' is 2 and has no options of its own"),
        ([*TRAIN, "--set", "seed=" + "[" * 50_000 + "]" * 50_000], "--set seed: nested too deeply to be read"),
        ([*TRAIN, "--config", "none.json"], "config file 'none.json' cannot be read"),
        ([*TRAIN, "--config", "checks.py"], "is not valid JSON"),
        ([*TRAIN, "--set", "evaluation.heldout=1", "--output-dir", "checks.py"], "checks.py"),
    ],
)
def test_the_message_names_the_value_and_the_fix(desk, words, message):
    assert message in refused(*words)


@pytest.mark.parametrize("text", ["1 / 0", "raise SystemExit(3)", "def verify(:", "import no_such_library"])
def test_a_users_file_that_fails_while_it_is_loaded_is_named(desk, text):
    (desk / "broken.py").write_text(f"# a comment\n{text}\n")
    message = refused(*TRAIN[:4], "broken.py:verify")
    assert "--verifier: broken.py cannot be loaded" in message
    assert "2)" in message or ":2" in message or "line 2" in message


def test_a_port_in_use_is_said_at_once(desk):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port} of 127.0.0.1 is in use" in refused("serve", "--port", port)


def test_an_output_folder_with_other_files_is_refused_and_left_as_it_is(desk):
    folder = desk / "full"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert "is not empty and holds no run" in refused(*TRAIN, "--set", "evaluation.heldout=1", "--output-dir", "full")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_key_is_never_shown(desk):
    result = toolbake(
        *("rollout", "desk.py:tools", "Hi you", "--model", "m", "--endpoint", "http://127.0.0.1:1/v1"),
        *("--api-key-env", "DESK_KEY", "--limit", "max_seconds=1"),
        DESK_KEY="sk-very-secret",
    )
    assert result.exit_code == 1
    assert "sk-very-secret" not in result.output


def test_debug_shows_the_whole_traceback(desk):
    result = toolbake("tools", "none.json", "--debug")
    assert result.exit_code == 1
    assert type(result.exception).__name__ == "ConfigError"


def test_a_fault_of_ours_keeps_its_traceback():
    from sdk.cli.failing import clean_errors

    with pytest.raises(ZeroDivisionError):
        with clean_errors(False):
            raise ZeroDivisionError


def test_grouped_errors_are_told_once_each_unless_a_fault_of_ours_is_among_them(capsys):
    import typer

    from sdk.cli.failing import clean_errors
    from sdk.errors import ConfigError

    twice = ExceptionGroup("two", [ConfigError("bad a"), ExceptionGroup("inner", [ConfigError("bad a"), OSError("b")])])
    with pytest.raises(typer.Exit):
        with clean_errors(False):
            raise twice
    assert capsys.readouterr().err == "error: bad a\nerror: b\n"
    with pytest.raises(ExceptionGroup):
        with clean_errors(False):
            raise ExceptionGroup("mixed", [ConfigError("bad a"), ZeroDivisionError()])


def test_a_full_disk_is_told_with_what_to_do(capsys):
    import typer

    from sdk.cli.failing import clean_errors

    with pytest.raises(typer.Exit):
        with clean_errors(False), open("/dev/full", "w") as full:
            full.write("x" * 100_000)
    said = capsys.readouterr().err
    assert said == (
        "error: [Errno 28] No space left on device: make room where the output goes, and run the same command again\n"
    )


def test_control_characters_of_a_server_do_not_reach_the_terminal(capsys):
    from sdk.cli.failing import say_red

    say_red("died: \x1b[2Jgone")
    assert capsys.readouterr().err == "error: died: \\x1b[2Jgone\n"


def test_an_option_that_is_not_there_exits_with_2():
    result = toolbake("tools", "--commnd", "x")
    assert result.exit_code == 2
    assert "--command" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["tools"],
        ["rollout", "Hi"],
        ["evaluate", "tasks.jsonl", "--verifier", "checks.py:verify"],
        ["train", "tasks.jsonl", "--verifier", "checks.py:verify", "--set", "evaluation.heldout=0.5"],
        ["serve-tools"],
        ["synthesize", "--to", "made.jsonl"],
        ["synthesize", "--check", "tasks.jsonl"],
        ["record", "--to", "recorded.jsonl"],
    ],
)
def test_a_server_that_takes_long_to_start_is_waited_for_as_long_as_the_command_says(desk, words):
    slow = f"{sys.executable} -c 'import time; time.sleep(60)'"
    command, *more = words
    message = refused(command, *more, "--command", slow, "--connect-timeout", "0.3")
    assert "did not answer within 0.3 s" in message
    assert "--connect-timeout 0.9 on the command line" in message
