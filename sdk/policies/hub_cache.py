"""Models that are on this machine: in a folder, or in the hub's cache."""

from __future__ import annotations

import os
from pathlib import Path


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
    `name` is no name of a model, or huggingface_hub is not installed."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:  # it comes with the extra that loads models
        return None
    try:
        found = try_to_load_from_cache(name, file)
    except ValueError:  # of the hub's own kind: no name of a model
        return None
    return Path(found).parent if isinstance(found, str) else None
