"""Loading and saving models: whole or a clear error that names the folder and the fix."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import tiny_model
from full_disk import files_of_at_most
from transformers import AutoTokenizer

import sdk
from sdk.errors import ModelError
from sdk.policies.models import LoadedModel, load_model, save_model
from sdk.policies.models.loading import require_place
from sdk.policies.models.saving import fresh_folder
from sdk.policies.models.smollm2 import embedded_folder, embedded_tokenizer_folder


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(embedded_folder())


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Any) -> Path:
    return save_model(tiny_model(vocab_size=49152), tokenizer, tmp_path / "model")


def test_a_saved_model_loads_with_the_same_weights_and_template(folder: Path, tokenizer: Any) -> None:
    loaded = load_model(folder)
    saved = tiny_model(vocab_size=49152).state_dict()
    assert all(torch.equal(t, saved[name]) for name, t in loaded.model.state_dict().items())
    assert loaded.tokenizer.chat_template == tokenizer.chat_template
    assert (loaded.name, loaded.model.training) == (str(folder), False)
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def test_the_embedded_model_knows_tools_and_can_be_saved(embedded_model: LoadedModel, tmp_path: Path) -> None:
    assert embedded_model.name == "SmolLM2-135M-Instruct"
    assert sum(p.numel() for p in embedded_model.model.parameters()) == 134_515_008
    assert "<tool_call>" in embedded_model.tokenizer.chat_template
    ids = embedded_model.tokenizer.encode("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        likely = int(embedded_model.model(ids).logits[0, -1].argmax())
    assert embedded_model.tokenizer.decode([likely]) == " Paris"


def damage_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def cut_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "lla')


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def cut_header(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])


def lose_a_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def cut_sampling(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"temperature": 0')


def replace_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def remove_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def cut_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": ')


def widen_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 2 * config["hidden_size"]}))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (cut_sampling, "generation_config.json is not JSON"),
        (replace_config, "config.json is not a JSON object"),
        (remove_tokenizer, r"cannot load the tokenizer of the model .* its files \(tokenizer.json\) are missing"),
        (cut_tokenizer, r"cannot load the tokenizer of the model .* line 1 column 13"),
        (widen_config, "its weights have other shapes than its config.json says"),
        (damage_config, "no config.json"),
        (cut_config, "config.json is not JSON"),
        (remove_weights, "no weights"),
        (cut_weights, "model.safetensors is damaged or cut off"),
        (cut_header, "model.safetensors is damaged or cut off"),
        (lose_a_shard, "1 of 2 weight files are missing, first model-00002-of-00002.safetensors"),
    ],
)
def test_a_half_written_folder_is_named_with_what_is_missing(folder: Path, damage: Any, named: str) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=named) as caught:
        load_model(folder)
    assert str(folder) in str(caught.value)
    assert "save the model again" in str(caught.value)


def test_an_adapter_without_its_base_model_is_named(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")
    with pytest.raises(ModelError, match="holds a LoRA adapter and no model; merge it into its base model"):
        load_model(folder)


def test_a_sampling_that_is_no_number_is_named(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": "hot"}')
    with pytest.raises(ModelError, match="temperature is 'hot'; it must be a number; correct it there"):
        load_model(folder)


@pytest.mark.timeout(300)
def test_the_embedded_model_is_converted_only_for_its_weights_and_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOOLBAKE_CACHE", str(tmp_path))
    for _ in range(2):
        light = embedded_tokenizer_folder()
    assert [path.name for path in tmp_path.iterdir()] == [light.name]
    assert not list(light.glob("*.safetensors"))

    whole = embedded_folder()
    assert [record.message for record in caplog.records] == ["preparing the embedded model (once)"]
    assert capfd.readouterr().err == ""
    assert (whole / "model.safetensors").is_file()
    for path in light.iterdir():
        assert (whole / path.name).read_bytes() == path.read_bytes()
    assert embedded_tokenizer_folder() == embedded_folder() == whole
    (whole / "model.safetensors").unlink()  # pytest keeps the folder


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder())
    tokenizer.chat_template = None
    folder = save_model(tiny_model(vocab_size=49152), tokenizer, tmp_path / "base")
    with pytest.raises(ModelError, match="no chat template"):
        load_model(folder)


def test_an_unknown_name_offline_says_that_it_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("nobody/no-such-model", "nothere"):
        with pytest.raises(
            ModelError, match=f"cannot load the model '{name}': there is no such folder here.*HF_HUB_OFFLINE is set"
        ):
            load_model(name)


def test_a_folder_without_a_model_is_refused_with_the_models_in_it(folder: Path, tmp_path: Path) -> None:
    project = tmp_path / "rooms"
    (project / "runs" / "first").mkdir(parents=True)
    (project / "mcp.json").write_text("{}")
    with pytest.raises(
        ModelError, match=r"not a folder of a model \(it holds: mcp.json, runs\); give the folder of a fin"
    ):
        load_model(project)
    folder.rename(project / "runs" / "first" / "model")
    with pytest.raises(ModelError, match=r"or a name on the hub\. In it are \S+/rooms/runs/first/model\.$"):
        load_model(project)


@pytest.mark.parametrize("name", ["/no/such/folder", "./no-such-folder", "", "runs/nowhere", "a/b/model", "b\\c", "a/"])
def test_a_folder_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="there is no model folder"):
        load_model(name)


def test_a_mistyped_folder_is_named_at_once_with_those_near_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # asking the hub would be another error
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    for name in ("desk", "other"):
        (tmp_path / "mine" / name / "model").mkdir(parents=True)
        (tmp_path / "mine" / name / "model" / "config.json").write_text("{}")
    refusals: list[Callable[[str], Any]] = [
        load_model,
        lambda name: sdk.train([len], ["Hi"], lambda rollout: 1.0, model=name),
        lambda name: sdk.evaluate([len], ["Hi"], lambda rollout: 1.0, model=name),
        lambda name: sdk.serve(name, port=0),
    ]
    for refused in refusals:
        with pytest.raises(
            ModelError, match=r"no model folder 'mine/desc'.*Near it are mine/desk/model, mine/other/model"
        ):
            refused("mine/desc")


def test_the_folder_of_a_finished_run_is_its_model(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "desk"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    with pytest.raises(ModelError, match="is the folder of a run that has no model: an evaluation has none"):
        load_model(run)
    folder.rename(run / "model")
    for loaded in (load_model(run), load_model(str(run / "model"))):
        assert loaded.source == str(run / "model")
        assert loaded.tokenizer.get_vocab() == tokenizer.get_vocab()


def test_a_name_of_the_hub_that_is_on_this_machine_is_one_beside_a_folder_of_its_owners_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "hub" / "models--owner--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("a" * 40)
    shutil.copytree(folder, cached / "snapshots" / ("a" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    require_place("owner/tiny")
    with pytest.raises(ModelError, match="hf download NAME"):
        require_place("owner/tinier")


def test_saving_again_replaces_a_model_and_nothing_else(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    save_model(tiny_model(seed=1, vocab_size=49152), tokenizer, folder)
    new = tiny_model(seed=1, vocab_size=49152).state_dict()
    assert torch.equal(load_model(folder).model.state_dict()["model.norm.weight"], new["model.norm.weight"])
    other = tmp_path / "papers"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(ModelError, match="holds no model"):
        save_model(tiny_model(vocab_size=49152), tokenizer, other)
    assert (other / "thesis.txt").read_text() == "years of work"


def test_a_failure_while_saving_leaves_the_old_model_whole(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    model, tokenizer = tiny_model(seed=1, vocab_size=49152), load_model(folder).tokenizer
    with files_of_at_most(len(before) // 2), pytest.raises(ModelError, match=r"File too large.* free some space"):
        save_model(model, tokenizer, folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def test_a_process_killed_half_way_leaves_no_folder_under_the_name(tmp_path: Path) -> None:
    script = (
        "import sys, os, signal\nfrom pathlib import Path\nfrom sdk.policies.models.saving import fresh_folder\n"
        "with fresh_folder(Path(sys.argv[1])) as made:\n"
        "    (made / 'config.json').write_text('{}')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    target = tmp_path / "model"
    ended = subprocess.run([sys.executable, "-c", script, str(target)], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert not target.exists()
    with fresh_folder(target, keep_existing=True) as made:
        (made / "whole").touch()
    assert (target / "whole").exists()


def test_of_two_that_make_the_same_folder_at_once_the_first_wins(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with fresh_folder(target, keep_existing=True) as late:
        (late / "late").touch()
        with fresh_folder(target, keep_existing=True) as early:
            (early / "early").touch()
    assert [p.name for p in target.iterdir()] == ["early"]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_saved_model_keeps_the_family_it_was_trained_with(tmp_path: Path) -> None:
    tokenizer = load_model(None).tokenizer
    folder = save_model(tiny_model(vocab_size=49152), tokenizer, tmp_path / "model", family="qwen3")
    assert load_model(folder).family == "qwen3"
    (folder / "toolbake.json").write_text("{}")
    with pytest.raises(ModelError, match=r"toolbake\.json is damaged"):
        load_model(folder)
