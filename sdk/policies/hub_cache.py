"""Models that are on this machine: in a folder, or in the hub's cache."""

from __future__ import annotations

from pathlib import Path


def folder_here(model: str | Path, file: str = "config.json") -> Path | None:
    """The folder of a model: a local one as it is, else that in the cache that has `file`."""
    folder = Path(model).expanduser()
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
