"""A signature over a run's root (Ed25519, RFC 8032): who holds the key vouches for what the run recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .canonical import canonical, parse

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = "evidence.sig.json"
_HOW = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"


def signature_of(root: str, entries: int, key_file: Path) -> bytes:
    """The content of `evidence.sig.json`: a signature over the root after so many entries.

    What is signed are the ASCII bytes `toolbake evidence <entries> <root>`. Raises `ConfigError` for a file that is no
    Ed25519 private key in PEM without a passphrase.
    """
    key = _private_key(key_file)
    content = {
        "algorithm": "Ed25519",
        "entries": entries,
        "public_key": key.public_key().public_bytes_raw().hex(),
        "root": root,
        "signature": key.sign(_message(root, entries)).hex(),
    }
    return canonical(content) + b"\n"


def check_signature(raw: bytes, public_key_file: Path | None) -> tuple[dict[str, Any], str | None]:
    """The content of `evidence.sig.json`, and what is wrong with it; None where the signature is right.

    With `public_key_file` it must be that key's. Raises `ConfigError` for a file that is no such key.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    wanted = _public_key(public_key_file) if public_key_file is not None else None
    try:
        content = parse(raw)
        root, entries = content["root"], content["entries"]
        if not isinstance(root, str) or not isinstance(entries, int):
            raise ValueError("root is no text, or entries no number")
        given = bytes.fromhex(content["public_key"])
        Ed25519PublicKey.from_public_bytes(given).verify(bytes.fromhex(content["signature"]), _message(root, entries))
        if canonical(content) + b"\n" != raw or content.get("algorithm") != "Ed25519":
            return {}, "its bytes are not those of a signature that toolbake wrote"
    except InvalidSignature:
        return {}, "the signature is not one of this root by this key"
    except (ValueError, KeyError, TypeError) as error:
        return {}, f"it is damaged: {error}"
    if wanted is not None and wanted.public_bytes_raw() != given:
        return content, f"it was signed with another key ({content['public_key']}) than the one that was given"
    return content, None


def _message(root: str, entries: int) -> bytes:
    return f"toolbake evidence {entries} {root}".encode()


def _private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"the key {path} cannot be read: {error.strerror or error}; {_HOW}") from error
    except (ValueError, TypeError) as error:  # TypeError: it has a passphrase
        raise ConfigError(f"{path} holds no private key in PEM without a passphrase; {_HOW}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds a key of another kind ({type(key).__name__}); {_HOW}")
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    how = "write it with: openssl pkey -in key.pem -pubout -out public.pem"
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"the key {path} cannot be read: {error.strerror or error}; {how}") from error
    except ValueError as error:
        raise ConfigError(f"{path} holds no public key in PEM; {how}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} holds a key of another kind ({type(key).__name__}); {how}")
    return key
