"""A model is served as it was measured: where a request leaves the sampling open, its folder says it."""

import json
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import openai
import pytest

from sdk.errors import ConfigError, ModelError
from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.models import load_model, save_model
from sdk.policies.models.loading import load_tokenizer
from sdk.policies.protocol import Sampling
from sdk.policies.rendering import make_renderer
from sdk.records import Message
from sdk.serving import serve

USER = "Where is order 4417?"
GREEDY = Sampling(temperature=0, max_tokens=24)


@pytest.fixture
def measured(tiny_model_folder: Path, tmp_path: Path) -> Path:
    loaded = load_model(tiny_model_folder)
    return save_model(loaded.model, loaded.tokenizer, tmp_path / "measured", family="template", sampling=GREEDY)


def ask(server, **options):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": USER}]
        reply = client.chat.completions.create(model=server.model_name, messages=messages, **options)
        return list(reply) if options.get("stream") else reply  # the client closes what it streams


def greedy_answer(folder: Path) -> str:
    loaded = load_model(folder)
    renderer = make_renderer(loaded.tokenizer, family="template")
    prompt = renderer.start([Message(role="user", content=USER)], [])
    with EmbeddedEngine(loaded.model) as engine:
        sample = partial(engine.sample, prompt, sampling=GREEDY, seed=0, stop_token_ids=renderer.stop_token_ids)
        completion = anyio.run(sample)
    return renderer.parse(completion.token_ids, []).content


def test_requests_without_a_temperature_get_the_answer_that_was_measured(measured: Path) -> None:
    expected = greedy_answer(measured)
    with serve(measured, port=0) as server:
        first, second = (ask(server) for _ in range(2))
        assert first.choices[0].message.content == second.choices[0].message.content == expected
        assert first.usage.completion_tokens == GREEDY.max_tokens
        sampled = {ask(server, temperature=1.0, seed=seed).choices[0].message.content for seed in (1, 2)}
        assert len(sampled | {expected}) == 3
        assert ask(server, max_tokens=30).usage.completion_tokens == 30


def test_the_endpoint_says_how_it_samples(measured: Path) -> None:
    with serve(measured, port=0) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            (model,) = client.models.list()
    assert model.default_sampling == {"temperature": 0, "top_p": 1, "max_tokens": 24, "strict_tools": False}
    assert server.defaults == GREEDY


def test_whoever_serves_may_choose_another_default(measured: Path, tiny_model_folder: Path) -> None:
    with serve(measured, port=0, temperature=0.5, default_max_tokens=9) as server:
        assert server.defaults == Sampling(temperature=0.5, max_tokens=9)
        assert ask(server).usage.completion_tokens == 9
    with serve(tiny_model_folder, port=0) as server:
        assert server.defaults == Sampling(temperature=1.0, max_tokens=1024)
    with pytest.raises(ConfigError, match="temperature is 3"):
        serve(measured, port=0, temperature=3)


def test_a_model_that_was_measured_greedily_loads_without_a_warning(measured: Path) -> None:
    script = f"from sdk.policies.models import load_model; load_model({str(measured)!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_the_folder_says_it_in_the_file_that_vllm_reads(measured: Path) -> None:
    settings = json.loads((measured / "generation_config.json").read_text())
    expected = {"do_sample": False, "temperature": 0, "top_p": 1, "max_new_tokens": 24}
    assert {name: settings[name] for name in expected} == expected


def test_a_measured_model_can_be_loaded_and_saved_again(measured: Path, tmp_path: Path) -> None:
    loaded = load_model(measured)
    assert loaded.sampling == GREEDY
    loaded.model.save_pretrained(tmp_path / "again")  # what TRL does with a checkpoint
    assert (tmp_path / "again" / "model.safetensors").is_file()


def test_a_models_own_defaults_are_read_and_wrong_ones_are_refused(measured: Path) -> None:
    file = measured / "generation_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}))
    assert load_model(measured).sampling == Sampling(temperature=0.6, top_p=0.95, max_tokens=24)
    file.write_text(json.dumps({**settings, "do_sample": True, "temperature": -1.0}))
    with pytest.raises(ModelError, match=r"generation_config\.json .* temperature is -1"):
        load_model(measured)


@pytest.mark.parametrize("stream", [False, True])
def test_a_token_that_ends_a_turn_by_these_defaults_alone_is_no_part_of_an_answer(measured: Path, stream: bool) -> None:
    file = measured / "generation_config.json"
    added = load_tokenizer(measured).tokenizer.added_tokens_decoder
    other_end = next(token for token, named in added.items() if named.content == "<|endoftext|>")
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "eos_token_id": [settings["eos_token_id"], other_end]}))
    with serve(measured, port=0) as server:
        reply = ask(server, logit_bias={str(other_end): 100}, stream=stream)
        choices = [chunk.choices[0] for chunk in reply] if stream else [reply.choices[0]]
    said = [(choice.delta if stream else choice.message).content or "" for choice in choices]
    assert ("".join(said), choices[-1].finish_reason) == ("", "stop")


def test_what_the_endpoint_does_not_do_of_a_models_defaults_is_said(measured: Path, caplog) -> None:
    file = measured / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "do_sample": True, "temperature": 0.6, "top_k": 20}))
    with serve(measured, port=0):
        assert "asks for top_k 20, which this endpoint does not do" in caplog.text


def test_all_files_of_a_saved_model_can_be_read_by_whom_the_umask_allows(measured: Path) -> None:
    modes = {path.name: stat.filemode(path.stat().st_mode) for path in measured.iterdir()}
    assert set(modes.values()) == {modes["config.json"]}
