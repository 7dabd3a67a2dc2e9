"""Python objects that the user names: `file.py:name` or `package.module:name`. Only what is named is loaded."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ConfigError, users_frame

_WORD = r"[A-Za-z_]\w*"
_NAMED = re.compile(rf"(?P<module>.+\.py|{_WORD}(?:\.{_WORD})*):(?P<name>{_WORD}(?:\.{_WORD})*)")
_MOST_SHOWN = 20


def is_named_object(text: str) -> bool:
    """Whether `text` has the form `file.py:name` or `package.module:name`."""
    return _NAMED.fullmatch(text) is not None


def load_named(text: str, what: str) -> Any:
    """The object that `text` names. `what` is the option it was given to, for messages.

    The file's folder (for a module: the current one) is put first on Python's path, as `python file.py` does.
    Raises `ConfigError` for another form, a file or module that cannot be loaded, and a name that it does not
    have; the message lists what there is.
    """
    match = _NAMED.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{what} is {text!r}; name an object of a file or module: path/to/file.py:name or package.module:name"
        )
    module = _load(match["module"], what)
    found: Any = module
    for word in match["name"].split("."):
        try:
            found = getattr(found, word)
        except AttributeError:
            raise ConfigError(_no_such_name(what, match["module"], match["name"], module)) from None
    return found


def _load(name: str, what: str) -> ModuleType:
    try:
        return _load_file(Path(name).expanduser(), what) if name.endswith(".py") else _load_module(name, what)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what}: {name} cannot be loaded: {_described(error)}") from error


def _load_file(path: Path, what: str) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{what}: there is no file {str(path)!r}; give the path of a Python file, then :name")
    path = path.resolve()
    _put_first(path.parent)
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
        name = f"{name} of {path.parent}"  # a module of that name is loaded already, for example `json`
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{what}: {str(path)!r} is no Python file that can be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(name: str, what: str) -> ModuleType:
    _put_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{what}: there is no module {error.name!r}; install it, start from the folder that holds it, "
                "or give the path of a file: path/to/file.py:name"
            ) from None
        raise


def _put_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _described(error: BaseException) -> str:
    """The error with the line of the user's file where it came from."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    frame = users_frame(error)
    place = f" ({frame.filename}:{frame.lineno})" if frame else ""
    return f"{type(error).__name__}: {error}{place}"


def _no_such_name(what: str, module_name: str, wanted: str, module: ModuleType) -> str:
    names = _public_names(module)
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    shown = ", ".join(names[:_MOST_SHOWN]) or "nothing"
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"{what}: {module_name} has no {wanted!r}.{hint} It has: {shown}{more}"


def _public_names(module: ModuleType) -> list[str]:
    """What the module offers: `__all__`, or its own public names without what it only imported."""
    declared = getattr(module, "__all__", None)
    if declared is not None:
        return sorted(declared)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", module.__name__) != "__future__"
        and (not hasattr(value, "__qualname__") or getattr(value, "__module__", None) == module.__name__)
    )
