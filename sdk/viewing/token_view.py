"""The tokens of a rollout as text, with the probability that the policy gave each it chose."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..traces.run_folder import RunFolder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NO_TEXT = "\ufffd"


def token_rows(line: Mapping[str, Any], run: RunFolder) -> dict[str, Any]:
    """`rows`: for each token row its prompt as text, and its pieces: text, sampled, log-probability in nats, version.

    `tokenizer`: the file that made text of the ids, None where the machine has none of this model: then the ids
    themselves are shown. Nothing is downloaded.
    """
    file = tokenizer_file(run) if find_spec("tokenizers") is not None else None
    tokenizer = _tokenizer(str(file)) if file is not None else None
    if tokenizer is not None and not _speaks(tokenizer, line):
        file = tokenizer = None
    rows = [_row(row, tokenizer) for row in line.get("rows") or () if isinstance(row, Mapping)]
    return {"tokenizer": str(file) if file is not None else None, "rows": rows}


def _speaks(tokenizer: Tokenizer, line: Mapping[str, Any]) -> bool:
    """Whether the tokens say with this tokenizer what the policy said: another policy's tokens would be nonsense."""
    said = [str(m.get("content") or "").strip() for m in line.get("messages") or () if m.get("role") == "assistant"]
    rows = [row for row in line.get("rows") or () if isinstance(row, Mapping)]
    ids = [token for row in rows for token in [*(row.get("prompt_ids") or []), *(row.get("completion_ids") or [])]]
    try:
        text = tokenizer.decode(ids, skip_special_tokens=False)
    except OverflowError:  # an id that no tokenizer has
        return False
    return all(one in text for one in said[-1:])


def _row(row: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    prompt, completion = row.get("prompt_ids") or [], row.get("completion_ids") or []
    pieces = zip(
        (_piece(token, tokenizer) for token in completion),
        row.get("sampled") or [],
        row.get("logprobs") or [],
        row.get("versions") or [],
        strict=False,
    )
    text = tokenizer.decode(prompt, skip_special_tokens=False) if tokenizer else " ".join(map(str, prompt))
    return {"prompt_tokens": len(prompt), "prompt": text, "pieces": [list(piece) for piece in pieces]}


def _piece(token: int, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return f"{token} "
    text: str = tokenizer.decode([token], skip_special_tokens=False)
    if text and _NO_TEXT not in text:
        return text
    # A part of a character, which has no text of its own.
    return f"<{tokenizer.id_to_token(token) or token}>"


def tokenizer_file(run: RunFolder) -> Path | None:
    """The tokenizer of the run's policy: of its saved model, of a checkpoint, or of the model that it began with."""
    folders = [run.model_dir, *sorted(run.checkpoints.glob("*")), *_starting_model(run)]
    return next((file for folder in folders if (file := folder / "tokenizer.json").is_file()), None)


def _starting_model(run: RunFolder) -> list[Path]:
    from ..policies.models.smollm2 import cache_folder

    config = run.config
    name = config.get("model", config.get("evaluate"))
    if name is None or name == "SmolLM2-135M-Instruct":
        return sorted(cache_folder().glob("smollm2-135m-instruct-*"))
    if not isinstance(name, str):
        return []
    return [Path(name).expanduser()] if Path(name).expanduser().is_dir() else _in_hub_cache(name)


def _in_hub_cache(name: str) -> list[Path]:
    if find_spec("huggingface_hub") is None:
        return []
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "tokenizer.json")
    except HFValidationError:
        return []
    return [Path(found).parent] if isinstance(found, str) else []


@functools.lru_cache(maxsize=8)
def _tokenizer(file: str) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(file)
