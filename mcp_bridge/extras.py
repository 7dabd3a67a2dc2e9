"""The optional parts of the distribution: which packages each extra brings, and the error where one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import BridgeError

EXTRAS: dict[str, tuple[str, ...]] = {
    "serve": ("torch", "transformers", "renderers", "jinja2", "numpy", "psutil", "prometheus_client"),
    "train": ("torch", "transformers", "renderers", "trl", "peft", "accelerate", "datasets"),
    "plots": ("matplotlib",),
    "twins": ("faker",),
    "desktop": ("keyring", "dotenv"),
    "quickstart": ("torch", "transformers", "renderers", "trl", "peft", "accelerate", "datasets", "gguf"),
}
"""Extra -> the modules that it brings, as they are imported."""


def missing_modules(extra: str) -> list[str]:
    """The modules of an extra that are not installed; nothing is imported."""
    return [name for name in EXTRAS[extra] if find_spec(name) is None]


def require_extra(extra: str, what: str, error: type[Exception] = BridgeError) -> None:
    """Raise `error`, which names the extra and the command that installs it, where one of its modules is missing.

    `what`: what needs the extra, as the subject of the message: "sdk.train".
    """
    missing = missing_modules(extra)
    if missing:
        raise error(
            f"{what} needs toolbake[{extra}] ({', '.join(missing)} not installed): pip install 'toolbake[{extra}]'"
        )
