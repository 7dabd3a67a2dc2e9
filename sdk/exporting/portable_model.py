"""A model's folder as transformers and vLLM of the last two years read it: release 4 of transformers, too."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ModelError

_MARK = re.compile(r"(\{%[-+]?)\s*(end)?generation\s*([-+]?%\})")
_OWN_CLASS = "TokenizersBackend"
"""What transformers 5 names a tokenizer that is all in its `tokenizer.json`."""


def copy_portable(source: Path, target: Path) -> None:
    """Copy a model's folder into one that is there. Raises `ModelError` where older readers cannot be told of it."""
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
