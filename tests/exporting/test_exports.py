"""Exports: a model goes to other servers with the settings of its measurement, whole or not at all."""

import json
import re
import shlex
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch
import yaml
from full_disk import files_of_at_most
from other_environments import python_of
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from typer.testing import CliRunner

import sdk
from sdk.cli.app import app
from sdk.errors import ConfigError, ModelError
from sdk.exporting import KINDS, export, exported_folder
from sdk.policies.models import load_model, save_model
from sdk.policies.models.saving import quiet_loading
from sdk.policies.protocol import Sampling
from sdk.traces import RunFolder

GREEDY = Sampling(temperature=0, max_tokens=24)
ASK = [{"role": "user", "content": 'Where is order 4417? It cost $12.50, "gift"\n\n  wrapped, é'}]
TOOL = {"type": "function", "function": {"name": "get_order", "description": "Read an order.", "parameters": {}}}
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 512}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.15}


@pytest.fixture(scope="module")
def tokenizer(tiny_model_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model_folder)


def saved(folder: Path, tokenizer: Any, seed: int = 0, *, kind: Any = LlamaForCausalLM, **settings: Any) -> Path:
    torch.manual_seed(seed)
    config = LlamaConfig if kind is LlamaForCausalLM else Qwen2Config
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "vocab_size": len(tokenizer)}
    model = kind(config(**SHAPE, **ids, **settings))
    return save_model(model, tokenizer, folder, family="template", tool_prompt="full", sampling=GREEDY)


@pytest.fixture(scope="module")
def model(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuned model: rotary positions of another base than transformers' own, which older readers must be told."""
    rope = {"rope_theta": 50000.0, "rope_type": "default"}
    return saved(tmp_path_factory.mktemp("models") / "desk", tokenizer, rope_parameters=rope)


def words_of(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


def value_of(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_every_kind_starts_vllm_with_the_settings_of_the_measurement(model: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        folder = export(model, kind, tmp_path / "out")
    docker = next(line for line in (folder / "Dockerfile").read_text().splitlines() if line.startswith("ENTRYPOINT"))
    composed = yaml.safe_load((folder / "compose.yaml").read_text())["services"]["model"]
    deployment, service = yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    started = json.loads(docker.removeprefix("ENTRYPOINT"))
    assert started == composed["entrypoint"]
    script = words_of((folder / "serve.sh").read_text().splitlines()[1])
    script = script[script.index("vllm") : -1]
    assert [word for word in script if word not in ("127.0.0.1", "model")] == [
        word for word in started if word not in ("0.0.0.0", "/model", "--shutdown-timeout", "30")
    ]
    assert value_of(started, "--middleware") == "toolbake_key.Key"
    assert (folder / "toolbake_key.py").is_file()
    assert "COPY toolbake_key.py /toolbake/" in (folder / "Dockerfile").read_text()
    assert "./toolbake_key.py:/toolbake/toolbake_key.py:ro" in composed["volumes"]
    assert composed["stop_grace_period"] == "45s"
    pod = deployment["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    waited = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > waited + int(value_of(started, "--shutdown-timeout"))
    assert value_of(started, "--max-model-len") == "512"
    assert value_of(started, "--tool-call-parser") == "hermes"
    assert value_of(started, "--served-model-name") == "desk"
    assert value_of(started, "--generation-config") == "auto"
    assert composed["environment"]["VLLM_API_KEY"].startswith("${VLLM_API_KEY:?")
    assert container["env"][0]["valueFrom"]["secretKeyRef"]["name"] == service["metadata"]["name"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    settings = json.loads((folder / "model" / "generation_config.json").read_text())
    assert (settings["do_sample"], settings["temperature"], settings["max_new_tokens"]) == (False, 0, 24)
    modelfile = (folder / "Modelfile").read_text().splitlines()
    assert modelfile[0] == "FROM ./desk.gguf"
    assert {"PARAMETER temperature 0", "PARAMETER num_predict 24", "PARAMETER num_ctx 512"} <= set(modelfile)


@pytest.mark.parametrize("strict", [True, False])
def test_vllm_holds_calls_to_their_schemas_where_the_model_was_measured_so(
    model: Path, tmp_path: Path, strict: bool
) -> None:
    loaded = load_model(model)
    sampling = replace(GREEDY, strict_tools=strict)
    source = save_model(loaded.model, loaded.tokenizer, tmp_path / "desk", family="template", sampling=sampling)
    export(source, "vllm", tmp_path / "out")
    readme, script = ((tmp_path / "out" / name).read_text() for name in ("README.md", "serve.sh"))
    assert ("--tool-strict-level parameter" in readme) == ("--tool-strict-level parameter" in script) == strict
    assert ("set `strict: true` in the tools, as for other servers" in readme) == strict
    assert ("| calls | held to the tools and their schemas |" in readme) == strict


def test_an_export_whose_tools_come_without_their_schemas_does_not_hold_calls_to_them(
    model: Path, tmp_path: Path
) -> None:
    loaded = load_model(model)
    how: dict[str, Any] = {"family": "template", "tool_prompt": "names"}
    sampling = replace(GREEDY, strict_tools=True)
    source = save_model(loaded.model, loaded.tokenizer, tmp_path / "desk", sampling=sampling, **how)
    export(source, "vllm", tmp_path / "out")
    assert "--tool-strict-level" not in (tmp_path / "out" / "README.md").read_text()
    assert "--tool-strict-level" not in (tmp_path / "out" / "serve.sh").read_text()


def test_the_exported_model_answers_as_the_one_that_was_measured(model: Path, tmp_path: Path) -> None:
    folder = export(model, "vllm", tmp_path / "out") / "model"
    ours, theirs = load_model(model), load_model(folder)
    prompts = [one.tokenizer.apply_chat_template(ASK, tools=[TOOL], return_tensors="pt") for one in (ours, theirs)]
    assert prompts[0]["input_ids"].equal(prompts[1]["input_ids"])
    assert torch.equal(ours.model(**prompts[0]).logits, theirs.model(**prompts[1]).logits)
    assert (theirs.sampling, theirs.family, theirs.tool_prompt) == (GREEDY, "template", "full")


def test_other_users_of_the_machine_can_read_an_export(model: Path, tmp_path: Path) -> None:
    folder = export(model, "vllm", tmp_path / "out")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
    assert modes == {0o644}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "model")} == {0o755}


def test_the_chat_template_is_read_by_plain_jinja_and_renders_the_same(model: Path, tmp_path: Path) -> None:
    folder = export(model, "vllm", tmp_path / "out") / "model"
    tokenizer = AutoTokenizer.from_pretrained(model)
    talk = [*ASK, {"role": "assistant", "content": "It is on its way."}, {"role": "user", "content": "Thanks"}]
    expected = tokenizer.apply_chat_template(talk, tools=[TOOL], tokenize=False, add_generation_prompt=True)
    template = (folder / "chat_template.jinja").read_text()
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(template)
    assert plain.render(messages=talk, tools=[TOOL], add_generation_prompt=True) == expected
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"] == template


OLDER = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.path.append(sys.argv[3])  # PyTorch alone is found there: what the environment has itself comes first
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer, model = (one.from_pretrained(sys.argv[1]) for one in (AutoTokenizer, AutoModelForCausalLM))
ids = tokenizer.apply_chat_template(json.loads(sys.argv[2]), add_generation_prompt=True)
said = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
print(json.dumps([model.config.rope_theta, str(model.config.torch_dtype), ids, said[0].tolist()]))
"""


@pytest.mark.timeout(600)
def test_a_transformers_of_two_years_ago_reads_the_exported_model(model: Path, tmp_path: Path) -> None:
    folder = export(model, "vllm", tmp_path / "out") / "model"
    site_packages = Path(torch.__file__).parents[1]
    command = [python_of("transformers-4"), "-c", OLDER, folder, json.dumps(ASK), site_packages]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    prompt = AutoTokenizer.from_pretrained(model).apply_chat_template(
        ASK, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with quiet_loading():
        said = AutoModelForCausalLM.from_pretrained(model).generate(**prompt, max_new_tokens=12, do_sample=False)
    expected = [50000.0, "torch.float32", prompt["input_ids"][0].tolist(), said[0].tolist()]
    assert json.loads(told.stdout.splitlines()[-1]) == expected


@pytest.mark.parametrize(("tied", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_a_gguf_file_has_the_weights_and_answers_of_the_model(
    tokenizer: Any, tmp_path: Path, tied: bool, dtype: torch.dtype
) -> None:
    rope = {"rope_theta": 50000.0, "rope_type": "default"}
    source = saved(tmp_path / "desk", tokenizer, tie_word_embeddings=tied, rope_parameters=rope, dtype=dtype)
    folder = export(source, "gguf", tmp_path / "out")
    with quiet_loading():
        ours = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file="desk.gguf", dtype=torch.float32)
    expected, found = ours.state_dict(), theirs.state_dict()
    assert {name: tensor.shape for name, tensor in found.items()} == {n: t.shape for n, t in expected.items()}
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    assert theirs.config.rope_parameters["rope_theta"] == 50000.0
    prompt = tokenizer.apply_chat_template(ASK, add_generation_prompt=True, return_tensors="pt")
    ours.generation_config.temperature = theirs.generation_config.temperature = None
    answers = [one.generate(**prompt, max_new_tokens=12, do_sample=False) for one in (ours, theirs)]
    assert answers[0].equal(answers[1])


def test_a_gguf_file_has_the_tokens_and_the_template_of_the_model(model: Path, tokenizer: Any, tmp_path: Path) -> None:
    folder = export(model, "gguf", tmp_path / "out")
    with quiet_loading():
        theirs = AutoTokenizer.from_pretrained(folder, gguf_file="desk.gguf")
    ours, read = (one.apply_chat_template(ASK, add_generation_prompt=True)["input_ids"] for one in (tokenizer, theirs))
    assert read == ours


LLAMA_CPP = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.use_jinja, params.warmup = sys.argv[1], 512, 1, True, False
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
answer = server.handle_chat_completions({"messages": json.loads(sys.argv[2]), "max_tokens": 8})
answer = json.loads(answer) if isinstance(answer, str) else answer
sys.stdout.write(json.dumps([answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]]))
"""


@pytest.mark.timeout(600)
def test_llama_cpp_gives_the_measured_answer_where_a_request_sets_no_sampling(model: Path, tmp_path: Path) -> None:
    loaded = load_model(model)
    prompt = loaded.tokenizer.apply_chat_template(ASK, add_generation_prompt=True, return_tensors="pt")
    length = prompt["input_ids"].shape[1]
    loaded.model.generation_config.temperature = None
    answer = loaded.model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, length:]
    file = export(model, "gguf", tmp_path / "out") / "desk.gguf"
    command = [python_of("llama.cpp"), "-c", LLAMA_CPP, file, json.dumps(ASK)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    text = loaded.tokenizer.decode(answer, skip_special_tokens=True)
    assert json.loads(told.stdout.splitlines()[-1]) == [text.lstrip(), length]  # llama.cpp leaves out spaces before it


def test_a_model_of_another_architecture_is_refused_for_gguf_and_nothing_is_left(
    tokenizer: Any, tmp_path: Path
) -> None:
    source = saved(tmp_path / "qwen", tokenizer, kind=Qwen2ForCausalLM)
    with pytest.raises(ModelError, match=r"its architecture is Qwen2ForCausalLM. Written are LlamaForCausalLM"):
        export(source, "gguf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["qwen"]


def test_scaled_rotary_positions_are_refused_for_gguf(tokenizer: Any, tmp_path: Path) -> None:
    rope = {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}
    source = saved(tmp_path / "long", tokenizer, rope_parameters=rope)
    with pytest.raises(ModelError, match=r"rotary positions are scaled \(linear\)"):
        export(source, "gguf", tmp_path / "out")
    config = json.loads((export(source, "vllm", tmp_path / "out") / "model" / "config.json").read_text())
    assert (config["rope_theta"], config["rope_scaling"]) == (10000.0, {"rope_type": "linear", "factor": 2.0})


def test_a_folder_takes_exports_of_one_model_only(model: Path, tokenizer: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(model, "vllm", out)
    export(model, "compose", out)
    assert {path.name for path in out.iterdir()} >= {"serve.sh", "compose.yaml"}
    other = saved(tmp_path / "desk", tokenizer, seed=1)
    with pytest.raises(ConfigError, match=r"holds an export of other weights \(desk\); choose another folder"):
        export(other, "vllm", out)
    with pytest.raises(ConfigError, match=r"holds an export of these weights under another name \("):
        export(shutil.copytree(model, tmp_path / "renamed"), "vllm", out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds notes.txt, which is of no export"):
        export(model, "vllm", out)
    (out / "notes.txt").rename(out / "model" / "notes.txt")
    with pytest.raises(ConfigError, match=r"holds model/notes.txt, which is of no export"):
        export(model, "vllm", out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds no export"):
        export(model, "vllm", tmp_path / "full")
    with pytest.raises(ConfigError, match="is in the model's own folder"):
        export(model, "vllm", model / "out")


def test_an_export_into_the_same_folder_refuses_to_write_over_what_was_edited(model: Path, tmp_path: Path) -> None:
    out = export(model, "vllm", tmp_path / "out")
    for name in ("README.md", "serve.sh"):
        with (out / name).open("a") as file:
            file.write("# mine\n")
    message = (
        r"holds README.md, serve.sh, edited since the export, and all files are written anew; move them to another"
    )
    with pytest.raises(ConfigError, match=message):
        export(model, "compose", out)
    assert (out / "serve.sh").read_text().endswith("# mine\n")
    for name in ("README.md", "serve.sh"):
        (out / name).rename(tmp_path / name)
    export(model, "compose", out)
    assert {path.name for path in out.iterdir()} >= {"serve.sh", "compose.yaml", "README.md"}


def test_an_export_into_the_same_folder_keeps_the_links_and_the_empty_folders_that_were_put_there(
    model: Path, tmp_path: Path
) -> None:
    out = export(model, "vllm", tmp_path / "out")
    for name in ("link", "model/link"):
        (out / name).symlink_to(tmp_path)
    (out / "empty").mkdir()
    for name in ("empty", "link", "model/link"):
        with pytest.raises(ConfigError, match=rf"holds {name}, which is of no export; move it to another folder"):
            export(model, "compose", out)
        (out / name).rename(tmp_path / "moved")
        (tmp_path / "moved").rename(tmp_path / name.replace("/", "-"))
    (out / "serve.sh").rename(tmp_path / "serve.sh")
    (out / "serve.sh").symlink_to(tmp_path / "serve.sh")
    with pytest.raises(ConfigError, match=r"holds serve.sh, edited since the export"):
        export(model, "compose", out)
    (out / "serve.sh").unlink()
    export(model, "compose", out)


def test_an_empty_folder_of_the_model_is_no_obstacle_to_a_second_export(model: Path, tmp_path: Path) -> None:
    source = shutil.copytree(model, tmp_path / "desk")
    (source / "empty").mkdir()
    out = export(source, "vllm", tmp_path / "out")
    export(source, "compose", out)
    assert (out / "model" / "empty").is_dir()


@pytest.mark.parametrize("lost", ["model", "weights", "kinds", "files"])
def test_a_marker_that_lacks_a_field_is_named(model: Path, tmp_path: Path, lost: str) -> None:
    marker = export(model, "vllm", tmp_path / "out") / "toolbake-export.json"
    marker.write_text(json.dumps({name: held for name, held in json.loads(marker.read_text()).items() if name != lost}))
    with pytest.raises(ConfigError, match=r"holds no export: its toolbake-export\.json is damaged; choose a new or an"):
        export(model, "compose", tmp_path / "out")


def test_a_model_that_nobody_may_change_is_exported_into_a_folder_that_can_be(model: Path, tmp_path: Path) -> None:
    kept = Path(shutil.copytree(model, tmp_path / "kept"))
    (kept / "adapter").mkdir()
    (kept / "adapter" / "adapter_config.json").write_text("{}")
    places = sorted(kept.rglob("*"), reverse=True)
    for place in [*places, kept]:
        place.chmod(0o555 if place.is_dir() else 0o444)
    try:
        folder = export(kept, "vllm", tmp_path / "out")
    finally:
        for place in (kept, kept / "adapter"):
            place.chmod(0o755)
    assert all(place.stat().st_mode & 0o200 for place in folder.rglob("*"))
    export(kept, "docker", folder)


def test_of_two_exports_into_one_folder_at_once_the_later_is_refused_and_nothing_is_lost(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = exported_folder.readme

    def meanwhile(*given: Any, **more: Any) -> str:
        monkeypatch.undo()
        export(model, "compose", tmp_path / "out")
        return made(*given, **more)

    monkeypatch.setattr(exported_folder, "readme", meanwhile)
    with pytest.raises(ConfigError, match=r"another export was written to .* meanwhile; run this one again"):
        export(model, "vllm", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    export(model, "vllm", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"serve.sh", "compose.yaml"}


def test_an_export_that_breaks_off_leaves_nothing(model: Path, tmp_path: Path) -> None:
    with files_of_at_most(100_000), pytest.raises(ModelError, match="free some space"):
        export(model, "vllm", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no export to 'vlm'; choose one of vllm, docker, compose"):
        export(model, "vlm", tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="no model folder"):
        export(tmp_path / "none", "vllm", tmp_path / "out")


@pytest.mark.parametrize("lost", ["config.json", "tokenizer_config.json"])
def test_a_folder_that_lacks_files_is_named_with_the_file(model: Path, tmp_path: Path, lost: str) -> None:
    source = tmp_path / "half"
    shutil.copytree(model, source)
    (source / lost).unlink()
    with pytest.raises(ModelError, match=lost):
        export(source, "vllm", tmp_path / "out")
    shutil.copy(model / lost, source)
    (source / "merges.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(ModelError, match=r"half' lacks merges\.txt; copy the whole folder"):
        export(source, "vllm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["2026-11-27", "desk-\U0001f600", "Desk 7 $HOME"])
def test_a_model_of_any_name_is_started_under_it_and_named_as_kubernetes_allows(
    model: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(model, tmp_path / name)
    for kind in ("compose", "kubernetes"):
        folder = export(tmp_path / name, kind, tmp_path / "out")
    composed = yaml.safe_load((folder / "compose.yaml").read_text())["services"]["model"]
    assert value_of(composed["entrypoint"], "--served-model-name") == name.replace("$", "$$")
    for one in yaml.safe_load_all((folder / "kubernetes.yaml").read_text()):
        assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", one["metadata"]["name"])


def test_a_template_whose_calls_vllm_is_not_known_to_read_needs_a_parser_by_name(
    tokenizer: Any, model: Path, tmp_path: Path
) -> None:
    source = saved(tmp_path / "other", tokenizer)
    template = (source / "chat_template.jinja").read_text().replace("tool_call>", "call>")
    (source / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match=r"writes calls in a form .* name vLLM's with --tool-call-parser"):
        export(source, "vllm", tmp_path / "out")
    folder = export(source, "vllm", tmp_path / "out", call_parser="pythonic")
    assert "--tool-call-parser pythonic" in (folder / "serve.sh").read_text()


def test_the_command_exports_a_run_with_its_limits_in_the_readme(model: Path, tokenizer: Any, tmp_path: Path) -> None:
    limits = sdk.Limits(max_turns=3, max_turn_tokens=24).model_dump(mode="json")
    with RunFolder.create_or_resume(tmp_path / "first", {"train": {"limits": limits}}) as run:
        saved(run.model_dir, tokenizer)
    words = ["export", str(tmp_path / "first"), "--to", "vllm", "--output-dir", str(tmp_path / "out"), "--quiet"]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.stderr
    readme = (tmp_path / "out" / "README.md").read_text()
    check = next(words_of(line) for line in readme.splitlines() if line.startswith("toolbake evaluate"))
    assert value_of(check, "--model") == "first"
    assert {"max_turns=3", "max_turn_tokens=24"} <= set(check)
    assert "| tool-call parser of vLLM | `hermes` |" in readme
