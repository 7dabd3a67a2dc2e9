"""The folder of an export: of one model only, whole or not there, and made again as long as the model is the same.

Transformers and vLLM of the last two years can read it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from mcp_bridge.extras import require_extra

from ..errors import ConfigError, ModelError
from ..evaluation.report import Report
from ..evidence.saved_weights import files_digest
from ..policies.models.saving import fresh_folder
from ..serving.vllm_command import ServedModel
from ..traces import RunFolder
from .deployment_files import compose, dockerfile, kubernetes, modelfile, readme, serve_script
from .gguf_file import write_gguf

_MARK = re.compile(r"(\{%[-+]?)\s*(end)?generation\s*([-+]?%\})")
_OWN_CLASS = "TokenizersBackend"
"""What transformers 5 names a tokenizer that is all in its `tokenizer.json`."""


def copy_portable(source: Path, target: Path) -> None:
    """Copy a model's folder into one that is there. Raises `ModelError` where files are missing, or older readers
    cannot be told of it."""
    lost = [path.name for path in source.rglob("*") if path.is_symlink() and not path.exists()]
    lost += [name for name in ("config.json", "tokenizer_config.json") if not (source / name).is_file()]
    if lost:
        raise ModelError(
            f"{str(source)!r} lacks {lost[0]}; copy the whole folder there, or save model and tokenizer again with "
            "save_pretrained"
        )
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
    _rewrite(target / "config.json", _older_config)
    template = plain_template(chat_template(source))
    (target / "chat_template.jinja").write_text(template)
    _rewrite(target / "tokenizer_config.json", lambda config: {**_older_tokenizer(config), "chat_template": template})
    if (target / "generation_config.json").is_file():
        _rewrite(target / "generation_config.json", _own_generation)


def chat_template(folder: Path) -> str:
    """The template in a model's folder, by its tokenizer. Raises `ModelError` where it has several by name."""
    file = folder / "chat_template.jinja"
    found = (
        file.read_text()
        if file.is_file()
        else json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
    )
    if not isinstance(found, str):
        raise ModelError(
            f"{str(folder)!r} has not one chat template; write the one that it was trained with to chat_template.jinja"
        )
    return found


def plain_template(template: str) -> str:
    """Without the marks of what the assistant said, which only transformers knows. What it renders stays the same."""
    return _MARK.sub(lambda mark: f"{mark[1]} {'endif' if mark[2] else 'if true'} {mark[3]}", template)


def _rewrite(file: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    file.write_text(json.dumps(change(json.loads(file.read_text())), indent=2, ensure_ascii=False) + "\n")


def _older_config(config: dict[str, Any]) -> dict[str, Any]:
    """With the names that transformers 4 reads, beside those of 5."""
    changed = dict(config)
    if isinstance(config.get("text_config"), dict):
        changed["text_config"] = _older_config(config["text_config"])
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        changed["rope_theta"] = rope["rope_theta"]
        if "partial_rotary_factor" in rope:
            changed["partial_rotary_factor"] = rope["partial_rotary_factor"]
        if rope.get("rope_type", "default") != "default":
            changed["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    if "dtype" in config:
        changed["torch_dtype"] = config["dtype"]
    return changed


def _older_tokenizer(config: dict[str, Any]) -> dict[str, Any]:
    changed = dict(config)
    if config.get("tokenizer_class") == _OWN_CLASS:
        changed["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):
        changed["additional_special_tokens"] = changed.pop("extra_special_tokens")
    for name in ("is_local", "local_files_only"):  # of the machine that wrote it
        changed.pop(name, None)
    return changed


def _own_generation(config: dict[str, Any]) -> dict[str, Any]:
    """transformers 4 makes settings `_from_model_config` anew from the model's configuration."""
    return {name: value for name, value in config.items() if name != "_from_model_config"}


Kind = Literal["vllm", "docker", "compose", "kubernetes", "gguf", "ollama"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MARKER = "toolbake-export.json"
WITH_MODEL = frozenset({"vllm", "docker", "compose", "kubernetes"})
WITH_GGUF = frozenset({"gguf", "ollama"})


def export(
    model_dir: str | os.PathLike[str], to: Kind, output_dir: str | os.PathLike[str], *, call_parser: str | None = None
) -> Path:
    """Write a model for other servers, with how to start it and how it was measured; the folder.

    `model_dir`: the folder of a run or of a model. `to`: one of `KINDS`. `output_dir`: a new or an empty folder, or one
    with exports of the same weights, which stay. `call_parser`: vLLM's parser of the model's calls, where toolbake does
    not know it.

    Raises `ConfigError` for another kind or a folder that holds something else, and `ModelError` for a model that
    cannot be read or cannot be written in that form.
    """
    require_extra("serve", "toolbake export", ConfigError)
    if to not in KINDS:
        raise ConfigError(f"there is no export to {to!r}; choose one of {', '.join(KINDS)}")
    model = ServedModel.read(model_dir, call_parser=call_parser)
    source, target = Path(model.source), Path(output_dir).expanduser().resolve()
    if not source.is_dir():
        raise ConfigError(f"{os.fspath(model_dir)!r} is no folder; give the folder of a run or of a model")
    if target.is_relative_to(source.resolve()):
        raise ConfigError(f"{str(target)!r} is in the model's own folder and would be exported too; choose another")
    weights = _weights(source)
    kinds = _with_earlier(target, to, model.name, weights)
    with fresh_folder(target) as made:
        files = _write(made, source, model, kinds)
        limits, report = _of_run(Path(model_dir).expanduser())
        text = readme(model, kinds, weights=weights, gguf_name=gguf_name(model), limits=limits, report=report)
        (made / "README.md").write_text(text)
        marker = {"model": model.name, "weights": weights, "kinds": kinds, "files": [*files, "README.md"]}
        (made / MARKER).write_text(json.dumps(marker, indent=2) + "\n")
        if _with_earlier(target, to, model.name, weights) != kinds:
            raise ConfigError(f"another export was written to {str(target)!r} meanwhile; run this one again")
    return target


def _weights(folder: Path) -> str:
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise ConfigError(
            f"the weights in {str(folder)!r} are not in safetensors; save the model again with "
            "sdk.policies.models.save_model"
        )
    return files_digest(files)


def _with_earlier(target: Path, to: Kind, name: str, weights: str) -> list[str]:
    """All kinds that the folder shall have. Raises `ConfigError` where something would be lost."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return [to]
    try:
        earlier = json.loads((target / MARKER).read_text())
        same, kinds, files = earlier["weights"] == weights, set(earlier["kinds"]), {*earlier["files"], MARKER}
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{str(target)!r} is there already and holds no export; choose a new or an empty folder"
        ) from None
    if not same or earlier["model"] != name:
        what = "these weights under another name" if same else "other weights"
        raise ConfigError(
            f"{str(target)!r} holds an export of {what} ({earlier['model']}); choose another folder for {name}, "
            "or remove that one"
        )
    if others := sorted({path.name for path in target.iterdir()} - files):
        raise ConfigError(f"{str(target)!r} holds {others[0]}, which is of no export; move it to another folder")
    return [kind for kind in KINDS if kind in kinds | {to}]


def run_of(place: Path) -> Path | None:
    """The folder of the run, given that or its model's; None for a folder of another model."""
    place = place.resolve()  # "." and links have no name that tells
    folder = place.parent if place.name == "model" else place
    return folder if (folder / "run.json").is_file() else None


def _of_run(place: Path) -> tuple[dict[str, Any], str | None]:
    """The limits that the run was measured with, and the short form of its report; nothing of a folder of a model."""
    folder = run_of(place)
    if folder is None:
        return {}, None
    run = RunFolder.open_to_read(folder)
    report = run.report_json
    text = str(Report.model_validate_json(report.read_text())) if report.is_file() else None
    return dict(run.config["train"]["limits"]), text


def gguf_name(model: ServedModel) -> str:
    return re.sub(r"[^\w.-]+", "-", model.name) + ".gguf"


def _write(made: Path, source: Path, model: ServedModel, kinds: Sequence[str]) -> list[str]:
    template = plain_template(chat_template(source))
    wanted = set(kinds)
    texts = {}
    if "vllm" in wanted:
        texts["serve.sh"] = serve_script(model)
    if wanted & {"docker", "kubernetes"}:
        texts["Dockerfile"] = dockerfile(model)
    if "compose" in wanted:
        texts["compose.yaml"] = compose(model)
    if "kubernetes" in wanted:
        texts["kubernetes.yaml"] = kubernetes(model)
    if "ollama" in wanted:
        texts["Modelfile"] = modelfile(model, template, gguf_name(model))
    for name, text in texts.items():
        (made / name).write_text(text)
    if wanted & WITH_MODEL:
        (made / "model").mkdir()
        copy_portable(source, made / "model")
    if wanted & WITH_GGUF:
        write_gguf(source, made / gguf_name(model), name=model.name, sampling=model.sampling, template=template)
    return sorted(path.name for path in made.iterdir())
