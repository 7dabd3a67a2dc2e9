"""Loading a model: the embedded one, a hub name or a local folder; errors are found before work starts."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from mcp_bridge.safe_text import and_more

from ...errors import ConfigError, ModelError
from ..protocol import LOWEST_TEMPERATURE, Sampling
from ..tool_prompt import TrainedToolPrompt, as_trained
from .saving import NOTES_FILE, quiet_loading
from .smollm2 import embedded_folder

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
"""The name of the model that `None` means."""

DEFAULT_SAMPLING = Sampling(max_tokens=1024)
"""OpenAI's temperature, and a bound for models that do not stop by themselves."""


@dataclass(frozen=True)
class LoadedTokenizer:
    """What is needed to speak with a model: its tokenizer, with a chat template, and its name."""

    tokenizer: Any
    name: str
    source: str = ""
    """The model's folder or hub name."""
    family: str | None = None
    """The renderer it was trained with, where the folder says so; for `make_renderer`."""
    tool_prompt: TrainedToolPrompt | None = None
    """What its prompts showed of its tools, where the folder says so."""
    strict_tools: bool = False
    """Whether it was measured with `Sampling.strict_tools`, as the folder says."""


@dataclass(frozen=True)
class LoadedModel(LoadedTokenizer):
    """With a causal language model of transformers in eval mode."""

    model: Any = field(kw_only=True)
    sampling: Sampling = DEFAULT_SAMPLING
    """How to sample where a request leaves it open, by the folder's `generation_config.json`; for a model that
    `sdk.train` saved as it was measured. `DEFAULT_SAMPLING` for what the folder leaves open."""


def load_model(
    name_or_path: str | os.PathLike[str] | None = None, *, dtype: Any = None, device: str | None = None
) -> LoadedModel:
    """Load a model and its tokenizer: `None` for the embedded one, the folder of a model or of a finished run, or a
    name on the hub.

    `dtype` (a torch dtype or its name) is float32 on a CPU and bfloat16 on a GPU where not given; the model goes to
    `device`, where None to the GPU if there is one. Raises `ModelError` for a folder that is half written, a model
    without a chat template, an unknown name, or a name that is not on this machine while offline.
    """
    spoken = load_tokenizer(name_or_path)
    weights = _load_weights(spoken.source, spoken.name, dtype, device)
    sampling = _take_sampling(weights.generation_config, spoken.name)
    return LoadedModel(**vars(spoken), model=weights, sampling=sampling)


def load_tokenizer(name_or_path: str | os.PathLike[str] | None = None) -> LoadedTokenizer:
    """The tokenizer of a model, without its weights; arguments and errors as those of `load_model`."""
    name = EMBEDDED_NAME if name_or_path is None else os.fspath(name_or_path)
    source = str(embedded_folder()) if name_or_path is None else name
    require_place(source)
    folder = model_of(source)
    if folder.is_dir():
        _check_folder(folder)
        source = str(folder)
    from transformers import AutoTokenizer

    tokenizer = from_pretrained(AutoTokenizer, source, name, what="the tokenizer of the model")
    if not tokenizer.chat_template:
        raise ModelError(
            f"the model {name!r} has no chat template, so it is probably a base model; choose its instruct variant, "
            "or set tokenizer.chat_template, save the tokenizer to a folder beside the model, and name that folder"
        )
    return LoadedTokenizer(tokenizer, name, source, *read_notes(folder))


def require_place(name: str | os.PathLike[str]) -> None:
    """Raises `ModelError` for what is neither a folder nor may be a name on the hub: the path of a file, or a path that
    leads nowhere. `runs/desk` has the form of both; a path where `runs` is a folder here and no model of that name
    is in the hub's cache."""
    name = os.fspath(name)
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return
    parts = [part for part in name.split("/") if part]
    is_folder_here = parts[:1] == ["runs"] or (bool(parts) and Path(parts[0]).is_dir())
    is_path = name.startswith(("/", ".", "~")) or name.endswith("/") or "\\" in name or folder.exists()
    if not is_path and (len(parts) == 1 or (len(parts) == 2 and not (is_folder_here and not cached_folder(name)))):
        return
    near = _near_folders(folder) if name else []
    hint = f" Near it are {', '.join(near)}." if near else ""
    raise ModelError(
        f"model: there is no model folder {name!r}; give {_CHOICES}; without one it is the embedded model.{hint}"
        + " A model of the hub with such a name must be in its cache: hf download NAME."
        * (not is_path and len(parts) == 2)
    )


_CHOICES = "the folder of a finished training or of a model (it has a config.json), or a name on the hub"


def _near_folders(folder: Path) -> list[str]:
    """Model folders in `folder`, or about where it would be, those with the most similar paths first."""
    above = next((one for one in (folder, *folder.parents) if one.is_dir()), Path())
    found = {
        str(config.parent)
        for pattern in ("config.json", "*/config.json", "*/model/config.json", "*/*/model/config.json")
        for config in above.glob(pattern)
    }
    return sorted(found, key=lambda one: -difflib.SequenceMatcher(None, one, str(folder)).ratio())[:5]


class Notes(NamedTuple):
    """What a model's folder says of it; see `LoadedTokenizer`."""

    family: str | None = None
    tool_prompt: TrainedToolPrompt | None = None
    strict_tools: bool = False


def read_notes(folder: Path) -> Notes:
    """Raises `ModelError` where they are damaged."""
    file = folder / NOTES_FILE
    if not file.exists():
        return Notes()
    try:
        notes = json.loads(file.read_text())
        family, trained, strict = notes["family"], notes.get("tool_prompt"), notes.get("strict_tools", False)
        if not isinstance(strict, bool):
            raise TypeError(f"strict_tools is {strict!r}")
        return Notes(None if family is None else str(family), None if trained is None else as_trained(trained), strict)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _incomplete(folder, f"its {NOTES_FILE} is damaged ({type(error).__name__}: {error})") from error


def _load_weights(source: str, name: str, dtype: Any, device: str | None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    on_gpu = torch.cuda.is_available()
    if dtype is None:
        dtype = torch.bfloat16 if on_gpu else torch.float32
    with quiet_loading():
        model = from_pretrained(AutoModelForCausalLM, source, name, dtype=dtype)
    return model.to(device or ("cuda" if on_gpu else "cpu")).eval()


def load_sampling(source: str, name: str) -> Sampling:
    """How to sample from the model in a folder, or on the hub; see `LoadedModel.sampling`. Raises `ModelError`."""
    from transformers import GenerationConfig

    if Path(source).is_dir() and not (Path(source) / "generation_config.json").is_file():
        return DEFAULT_SAMPLING
    with quiet_loading():
        return _take_sampling(from_pretrained(GenerationConfig, source, name), name)


def _take_sampling(settings: Any, name: str) -> Sampling:
    """The sampling in a `GenerationConfig`, as vLLM reads it. Raises `ModelError` where it cannot be."""
    temperature = 0.0 if settings.do_sample is False else settings.temperature
    if settings.do_sample is not True:
        settings.temperature = None  # transformers refuses to save a model that has one and does not sample
    found = {"temperature": temperature, "top_p": settings.top_p, "max_tokens": settings.max_new_tokens}
    try:
        if wrong := [key for key, value in found.items() if not isinstance(value, int | float | None)]:
            raise ValueError(f"{wrong[0]} is {found[wrong[0]]!r}; it must be a number")
        if temperature is not None and 0 < temperature < LOWEST_TEMPERATURE:
            found["temperature"] = 0.0
        return replace(DEFAULT_SAMPLING, **{key: value for key, value in found.items() if value is not None})
    except (ValueError, TypeError, ConfigError) as error:
        raise ModelError(f"the generation_config.json of {name!r} cannot be used: {error}; correct it there") from error


def from_pretrained(auto_class: Any, source: str, name: str, what: str = "the model", **options: Any) -> Any:
    """`from_pretrained`, with its failures as `ModelError`. `what` is loaded."""
    from safetensors import SafetensorError

    try:
        return auto_class.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "ignore_mismatched_sizes" in reason:  # transformers' advice, for who calls it
            reason = "its weights have other shapes than its config.json says"
        if "backend tokenizer" in reason:
            reason = "its files (tokenizer.json) are missing, or of a kind that needs another package"
        if not Path(source).is_dir():
            reason = f"there is no such folder here, and the hub did not give it ({reason.rstrip('.')})"
            what = "the model"
        if Path(source).is_dir():
            fix = "save the model again with sdk.policies.models.save_model, or choose another folder"
        elif os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
            fix = "HF_HUB_OFFLINE is set: unset it to download, or give a folder on this machine"
        else:
            fix = "check the spelling, the network and the access rights, or give a folder on this machine"
        raise ModelError(f"cannot load {what} {name!r}: {reason}; {fix}") from error


def _check_folder(folder: Path) -> None:
    """Find a half-written folder before torch is loaded. Raises `ModelError`."""
    if not (folder / "config.json").is_file():
        if (folder / "run.json").is_file():
            raise ModelError(
                f"{str(folder)!r} is the folder of a run that has no model: an evaluation has none, and a training "
                f"only once it is done. To finish it, run the command that began it again; or give {_CHOICES}"
            )
        if (folder / "adapter_config.json").is_file():
            raise ModelError(
                f"{str(folder)!r} holds a LoRA adapter and no model; merge it into its base model "
                "(merge_and_unload of peft) and save that with sdk.policies.models.save_model"
            )
        names = sorted(path.name for path in folder.iterdir())
        held = and_more(names, 8) or "nothing"
        if not any(name.startswith("tokenizer") or name.endswith((".safetensors", ".bin")) for name in names):
            near = _near_folders(folder)
            hint = f" In it are {', '.join(near)}." if near else ""
            raise ModelError(f"{str(folder)!r} is not a folder of a model (it holds: {held}); give {_CHOICES}.{hint}")
        raise _incomplete(folder, f"it has no config.json (it holds: {held})")
    for file in (folder / "config.json", folder / "generation_config.json"):
        try:
            found = json.loads(file.read_text()) if file.is_file() else {}
        except ValueError as error:
            raise _incomplete(folder, f"its {file.name} is not JSON ({error})") from error
        if not isinstance(found, dict):
            raise _incomplete(folder, f"its {file.name} is not a JSON object")
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
    """Its header, and that the file is as long as that promises; no weight is read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise _incomplete(folder, f"{file.name} is damaged or cut off ({error})") from error


def _incomplete(folder: Path, what: str) -> ModelError:
    return ModelError(
        f"the model folder {str(folder)!r} is not whole: {what}; save the model again with "
        "sdk.policies.models.save_model, or choose another folder"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Models that are on this machine: in a folder, or in the hub's cache.


def model_of(place: str | os.PathLike[str]) -> Path:
    """The model's folder where `place` is the folder of a finished run; anything else as a path."""
    folder = Path(place).expanduser()
    return folder / "model" if (folder / "run.json").is_file() and (folder / "model").is_dir() else folder


def folder_here(model: str | Path, file: str = "config.json") -> Path | None:
    """The folder of a model: a local one as `model_of` has it, else that in the cache that has `file`."""
    folder = model_of(model)
    return folder if folder.is_dir() else cached_folder(str(model), file)


def cached_folder(name: str, file: str = "config.json") -> Path | None:
    """The folder in the cache that has `file` of a model, by its name on the hub. None where there is none, also where
    `name` is not a name of a model, or huggingface_hub is not installed."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:  # it comes with the extra that loads models
        return None
    try:
        found = try_to_load_from_cache(name, file)
    except ValueError:  # of the hub's own kind: no name of a model
        return None
    return Path(found).parent if isinstance(found, str) else None


def has_bfloat16() -> bool | None:
    """Whether this machine's processor has instructions for bfloat16; None where torch cannot tell. Only newer releases
    of it know, of x86."""
    import torch

    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    known = [capabilities[name] for name in ("avx512_bf16", "amx_bf16") if name in capabilities]
    return any(known) if known else None
