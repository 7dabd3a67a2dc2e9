"""Saving a model so that its folder is either whole or not there."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ..protocol import Sampling
from ..tool_prompt import TrainedToolPrompt


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No "Loading weights" or "Writing model shards" bar inside: they would tear apart the caller's own bars. Nor the
    warning that greedy decoding has a temperature: ours is 0, for vLLM."""
    from transformers.utils import logging as transformers_logging

    enabled = transformers_logging.is_progress_bar_enabled()
    generation = logging.getLogger("transformers.generation.configuration_utils")
    level = generation.level
    transformers_logging.disable_progress_bar()
    generation.setLevel(logging.ERROR)
    try:
        yield
    finally:
        generation.setLevel(level)
        if enabled:
            transformers_logging.enable_progress_bar()


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def unwritten(error: Exception) -> int | None:
    """The system's number of the error where the disk had no room for weights; None for all others."""
    from safetensors import SafetensorError

    number: int | None = None
    if isinstance(error, OSError):
        number = error.errno
    elif isinstance(error, SafetensorError) and (found := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(found[1])
    elif isinstance(error, RuntimeError) and re.search("PytorchStreamWriter failed|unexpected pos", str(error)):
        number = errno.ENOSPC  # `torch.save` keeps the number to itself
    return number if number in _FULL else None


@contextmanager
def fresh_folder(target: Path, *, keep_existing: bool = False) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its place when the block ends without an error.

    A kill half-way leaves `target` as it was, and at most a folder `.<name>.*` beside it. A `target` that is
    there by then is replaced, or with `keep_existing` it stays and the new one is dropped: of several processes
    that make the same thing the first wins. Raises `ModelError` when the place cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise ModelError(
            f"cannot write the model to {str(target)!r}: {error}; choose a folder that can be written"
        ) from error
    try:
        yield made
        open_to_readers(made)
        _put(made, target, keep_existing=keep_existing)
    except Exception as error:
        if not isinstance(error, OSError) and unwritten(error) is None:
            raise
        raise ModelError(
            f"cannot write the model to {str(target)!r}: {error}; free some space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def remove_unfinished(place: Path, name: str = "*") -> None:
    """Remove what kills left in `place` of fresh folders of that name. Nothing else may be writing there."""
    for left in place.glob(f".{name}.????????"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)


NOTES_FILE = "toolbake.json"
"""Beside the weights: which renderer the model was trained with, how much of the tools its prompts showed, and whether
it was measured with `Sampling.strict_tools`. A folder's path does not tell its family."""


ADAPTER_FOLDER = "adapter"
"""Inside a model's folder: the LoRA adapter that was merged into its weights, in PEFT's format."""


def save_model(
    model: Any,
    tokenizer: Any,
    folder: str | Path,
    *,
    family: str | None = None,
    tool_prompt: TrainedToolPrompt | None = None,
    sampling: Sampling | None = None,
    state: Mapping[str, Any] | None = None,
    adapter: Any = None,
) -> Path:
    """Write model and tokenizer (with its chat template) to `folder`, whole or not at all.

    `family`: the renderer's, kept so that `load_model` can tell it; see `make_renderer`. `tool_prompt`: what the model
    was trained with, kept likewise; see `TrainConfig.tool_prompt`. `sampling`: how the model was measured, which
    becomes the default of whoever serves the folder. `state`: weights to write in place of the model's own.
    `adapter`: a PEFT model whose adapter is written beside the weights, in `adapter/`.
    A folder that is there already is replaced only if it is empty or holds a model; anything else
    raises `ModelError`, and so does a place that cannot be written.
    """
    target = Path(folder).expanduser().resolve()
    if target.exists() and not (target.is_dir() and (not any(target.iterdir()) or (target / "config.json").exists())):
        raise ModelError(
            f"{str(target)!r} is there already and holds no model, so it is not overwritten; "
            "choose an empty or a new folder"
        )
    with fresh_folder(target) as made, quiet_loading():
        model.save_pretrained(made, state_dict=state)
        tokenizer.save_pretrained(made)
        if adapter is not None:
            adapter.save_pretrained(made / ADAPTER_FOLDER, save_embedding_layers=False)
        if sampling is not None:
            _write_sampling(sampling, made / "generation_config.json")
        strict = sampling is not None and sampling.strict_tools
        if family is not None or tool_prompt is not None or strict:
            notes = {"family": family, "tool_prompt": tool_prompt, "strict_tools": strict}
            (made / NOTES_FILE).write_text(json.dumps(notes))
    return target


_OTHER_SAMPLING = ("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""What else vLLM reads as its defaults. It was not part of the measurement."""


def _write_sampling(sampling: Sampling, file: Path) -> None:
    """As JSON, since transformers does not save a temperature of 0, from which vLLM knows that decoding is greedy."""
    settings = json.loads(file.read_text())
    kept = {name: value for name, value in settings.items() if name not in _OTHER_SAMPLING}
    measured = {
        "do_sample": sampling.temperature > 0,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_new_tokens": sampling.max_tokens,
    }
    file.write_text(json.dumps(kept | measured, indent=2) + "\n")


def _put(made: Path, target: Path, *, keep_existing: bool) -> None:
    """Rename `made` to `target`. A full folder cannot be renamed over, so the old one is moved away first."""
    try:
        return os.rename(made, target)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        if keep_existing:
            return None
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    os.rename(target, aside / "old")
    try:
        os.rename(made, target)
    except OSError:
        os.rename(aside / "old", target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def open_to_readers(folder: Path) -> None:
    """Give a new folder and all in it the modes that the umask asks for: safetensors writes for the owner only, and the
    copy of a read-only folder could not be changed."""
    mask = os.umask(0o077)  # it can only be read by setting it
    os.umask(mask)
    for path in [folder, *folder.rglob("*")]:
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
