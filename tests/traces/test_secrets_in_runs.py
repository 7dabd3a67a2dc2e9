"""Secrets of a configuration never reach the disk, and do not decide which run it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sdk.traces import RunFolder
from sdk.traces.identity import is_secret_name, without_secrets

SECRET = "sk-THE-SECRET"

PLACES: list[dict[str, Any]] = [
    {"api_key": SECRET},
    {"endpoint": {"apiKey": SECRET}},
    {"HF_TOKEN": SECRET},
    {"token": SECRET},
    {"Authorization": SECRET},
    {"servers": [{"headers": {"X-Custom": SECRET}}]},
    {"mcpServers": {"a": {"command": "x", "env": {"DATABASE": SECRET}}}},
    {"db_password": SECRET},
    {"url": f"https://user:{SECRET}@host/mcp"},
    {"url": f"https://host/mcp?api_key={SECRET}&page=2"},
    {"args": ["serve", "--api-key", SECRET, "--port", "80"]},
    {"args": ["serve", f"--token={SECRET}"]},
    {"note": f"send Authorization Bearer {SECRET}"},
]


@pytest.mark.parametrize("config", PLACES, ids=str)
def test_a_secret_never_reaches_the_folder_or_an_error(tmp_path: Path, config: dict[str, Any]) -> None:
    with RunFolder.create_or_resume(tmp_path, config) as run:
        run.append_metrics({"step": 0})
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert SECRET.encode() not in written
    assert b"***" in written
    with pytest.raises(Exception, match="holds another run") as error:
        RunFolder.create_or_resume(tmp_path, {**config, "seed": 1})
    assert SECRET not in str(error.value)


def test_a_new_key_is_still_the_same_run(tmp_path: Path) -> None:
    RunFolder.create_or_resume(tmp_path, {"model": "m", "api_key": "old"}).close()
    with RunFolder.create_or_resume(tmp_path, {"model": "m", "api_key": "new"}) as run:
        assert run.resumed
    with RunFolder.create_or_resume(tmp_path, {"model": "m"}) as run:
        assert run.resumed


@pytest.mark.parametrize(
    "name", ["max_tokens", "tokens", "stop_token", "eos_token", "seconds_per_token", "environment", "tokenizer", "key"]
)
def test_ordinary_options_are_not_hidden(name: str) -> None:
    assert not is_secret_name(name)
    assert without_secrets({name: "value"}) == {name: "value"}


def test_what_is_around_a_secret_stays_readable() -> None:
    assert without_secrets({"args": ["--api-key", "x", "--port", "80"]}) == {
        "args": ["--api-key", "***", "--port", "80"]
    }
    assert without_secrets("https://host/mcp?api_key=x&page=2") == "https://host/mcp?api_key=***&page=2"
    assert without_secrets({"api_key": None}) == {"api_key": None}
