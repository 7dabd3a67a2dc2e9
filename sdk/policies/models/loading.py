"""One way to load any model: the embedded one, a hub name, or a local folder; with errors found before work starts."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ..protocol import LOWEST_TEMPERATURE, Sampling
from ..tool_prompt import TrainedToolPrompt, as_trained
from .quiet_loading import quiet_loading
from .saving import NOTES_FILE
from .smollm2 import embedded_folder

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
"""The name of the model that `None` means."""

DEFAULT_SAMPLING = Sampling(max_tokens=1024)
"""OpenAI's temperature, and a bound for models that do not stop by themselves."""


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model of transformers in eval mode, its tokenizer with a chat template, and its name."""

    model: Any
    tokenizer: Any
    name: str
    family: str | None = None
    """The renderer it was trained with, where the folder says so; for `make_renderer`."""
    tool_prompt: TrainedToolPrompt | None = None
    """What its prompts showed of its tools, where the folder says so."""
    sampling: Sampling = DEFAULT_SAMPLING
    """How to sample where a request leaves it open, by the folder's `generation_config.json`; for a model that
    `sdk.train` saved as it was measured. `DEFAULT_SAMPLING` for what the folder leaves open."""


def load_model(
    name_or_path: str | os.PathLike[str] | None = None, *, dtype: Any = None, device: str | None = None
) -> LoadedModel:
    """Load a model and its tokenizer: `None` for the embedded one, a local folder, or a name on the hub.

    `dtype` (a torch dtype or its name) is float32 on a CPU and bfloat16 on a GPU where not given; the model goes to
    `device`, where None to the GPU if there is one. Raises `ModelError` for a folder that is half written, a model
    without a chat template, an unknown name, or a name that is not on this machine while offline.
    """
    spoken = load_tokenizer(name_or_path)
    weights = _load_weights(spoken.source, spoken.name, dtype, device)
    sampling = _take_sampling(weights.generation_config, spoken.name)
    return LoadedModel(weights, spoken.tokenizer, spoken.name, spoken.family, spoken.tool_prompt, sampling)


@dataclass(frozen=True)
class LoadedTokenizer:
    """What is needed to speak with a model that something else computes. `source`: its folder or hub name."""

    tokenizer: Any
    name: str
    source: str
    family: str | None = None
    tool_prompt: TrainedToolPrompt | None = None


def load_tokenizer(name_or_path: str | os.PathLike[str] | None = None) -> LoadedTokenizer:
    """The tokenizer of a model, without its weights; arguments and errors as those of `load_model`."""
    name = EMBEDDED_NAME if name_or_path is None else os.fspath(name_or_path)
    source = str(embedded_folder()) if name_or_path is None else name
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        _check_folder(folder)
        source = str(folder)
    elif not source or folder.exists() or source.startswith(("/", ".", "~")):
        raise ModelError(f"there is no model folder {name!r}; give a folder with a config.json, a hub name, or None")
    return LoadedTokenizer(_load_tokenizer(source, name), name, source, *read_notes(folder))


def read_notes(folder: Path) -> tuple[str | None, TrainedToolPrompt | None]:
    """What a model's folder says of its renderer and of the tool prompt that it was trained with; None where it does
    not. Raises `ModelError` where that is damaged."""
    file = folder / NOTES_FILE
    if not file.exists():
        return None, None
    try:
        notes = json.loads(file.read_text())
        family, trained = notes["family"], notes.get("tool_prompt")
        return None if family is None else str(family), None if trained is None else as_trained(trained)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _incomplete(folder, f"its {NOTES_FILE} is damaged ({type(error).__name__}: {error})") from error


def _load_tokenizer(source: str, name: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = _from_pretrained(AutoTokenizer, source, name)
    if not tokenizer.chat_template:
        raise ModelError(
            f"the model {name!r} has no chat template, so it is probably a base model; choose its instruct variant, "
            "or set tokenizer.chat_template, save the tokenizer to a folder beside the model, and name that folder"
        )
    return tokenizer


def _load_weights(source: str, name: str, dtype: Any, device: str | None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    on_gpu = torch.cuda.is_available()
    if dtype is None:
        dtype = torch.bfloat16 if on_gpu else torch.float32
    with quiet_loading():
        model = _from_pretrained(AutoModelForCausalLM, source, name, dtype=dtype)
    return model.to(device or ("cuda" if on_gpu else "cpu")).eval()


def _take_sampling(settings: Any, name: str) -> Sampling:
    """The sampling in a `GenerationConfig`, as vLLM reads it. Raises `ModelError` where it cannot be."""
    temperature = 0.0 if settings.do_sample is False else settings.temperature
    if settings.do_sample is not True:
        settings.temperature = None  # transformers refuses to save a model that has one and does not sample
    found = {"temperature": temperature, "top_p": settings.top_p, "max_tokens": settings.max_new_tokens}
    try:
        if temperature is not None and 0 < temperature < LOWEST_TEMPERATURE:
            found["temperature"] = 0.0
        return replace(DEFAULT_SAMPLING, **{key: value for key, value in found.items() if value is not None})
    except (ValueError, TypeError) as error:
        raise ModelError(f"the generation_config.json of {name!r} cannot be used: {error}; correct it there") from error


def _from_pretrained(auto_class: Any, source: str, name: str, **options: Any) -> Any:
    """`from_pretrained`, with its failures as `ModelError`."""
    from safetensors import SafetensorError

    try:
        return auto_class.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if Path(source).is_dir():
            fix = "save the model again with sdk.policies.models.save_model, or choose another folder"
        elif _offline():
            fix = "HF_HUB_OFFLINE is set: unset it to download, or give a folder on this machine"
        else:
            fix = "check the spelling, the network and the access rights, or give a folder on this machine"
        raise ModelError(f"cannot load the model {name!r}: {reason}; {fix}") from error


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _check_folder(folder: Path) -> None:
    """Find a half-written folder before torch is loaded. Raises `ModelError`."""
    if not (folder / "config.json").is_file():
        held = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        raise _incomplete(folder, f"it has no config.json (it holds: {held})")
    try:
        json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise _incomplete(folder, f"its config.json is not JSON ({error})") from error
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            wanted = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise _incomplete(folder, f"its {index.name} is damaged ({error})") from error
        missing = [name for name in wanted if not (folder / name).is_file()]
        if missing:
            raise _incomplete(folder, f"{len(missing)} of {len(wanted)} weight files are missing, first {missing[0]}")
        for name in wanted:
            _check_safetensors(folder, folder / name)
    elif (folder / "model.safetensors").is_file():
        _check_safetensors(folder, folder / "model.safetensors")
    elif not list(folder.glob("pytorch_model*.bin")):
        raise _incomplete(folder, "it has no weights (model.safetensors)")


def _check_safetensors(folder: Path, file: Path) -> None:
    """Compare a file's length with what its header promises: 8 bytes of length, the header, the tensors' bytes."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_length = int.from_bytes(stream.read(8), "little")
        if size < 8 or header_length > size - 8:
            raise _incomplete(folder, f"{file.name} is cut off in its header ({size} bytes)")
        try:
            header = json.loads(stream.read(header_length))
            ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise _incomplete(folder, f"the header of {file.name} is damaged ({error})") from error
    expected = 8 + header_length + max(ends, default=0)
    if size != expected:
        raise _incomplete(folder, f"{file.name} has {size} bytes where its header promises {expected}")


def _incomplete(folder: Path, what: str) -> ModelError:
    return ModelError(
        f"the model folder {str(folder)!r} is not whole: {what}; save the model again with "
        "sdk.policies.models.save_model, or choose another folder"
    )
