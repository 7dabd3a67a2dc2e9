"""A rollout as the page shows it: its line in the list, its conversation, state changes and verdict, and its tokens."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes.divergence import Difference, differences

from ..policies.models.loading import folder_here
from ..traces.run_folder import RunFolder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from .index import Place


FIELDS = (
    *("run", "stage", "id", "task", "policy", "group", "step", "score", "state", "stop", "turns", "tokens"),
    *("seconds", "mistakes", "tools", "prompt", "answer", "tags", "note", "family"),
)
"""The places of a row, in their order. `run` is a number, `state` one of `scored`, `failed` and `unscored`, `mistakes`
the tool results that were errors, `tools` the names that were called in order, and `note` what broke or what the
verdict explains."""

_ROW_CHARS = 240
"""Of each text in a row; the search of whole conversations reads the rest."""


def summary(line: Mapping[str, Any], *, run: int, stage: str) -> list[Any]:
    """The row of one recorded rollout, in the order of `FIELDS`.

    Lenient: a run folder of another version is shown as far as it is understood. Raises `ValueError` for a line without
    an id, which every rollout has.
    """
    if not isinstance(line.get("id"), str):
        raise ValueError("it has no id")
    task, verdict, failure = _mapping(line, "task"), _mapping(line, "verdict"), _mapping(line, "failure")
    calls = _objects(line, "calls")
    scored = bool(verdict) and not failure
    broke = f"{failure.get('boundary')}: {failure.get('kind')}: {failure.get('message')}" if failure else ""
    return [
        run,
        stage,
        line["id"],
        str(task.get("id", "")),
        str(line.get("policy", "")),
        str(line.get("group", "")),
        line.get("step", -1),
        verdict.get("score") if scored else None,
        "scored" if scored else "failed" if failure else "unscored",
        str(line.get("stop_reason", "")),
        line.get("turns", 0),
        line.get("sampled_tokens", 0),
        line.get("duration_s", 0.0),
        sum(bool(_mapping(call, "result").get("is_error")) for call in calls),
        [str(_mapping(call, "call").get("name", "")) for call in calls],
        opening_text(task)[:_ROW_CHARS],
        str(line.get("answer", ""))[:_ROW_CHARS],
        {str(key): str(value) for key, value in _mapping(task, "tags").items()},
        (broke or str(verdict.get("explanation", "")))[:_ROW_CHARS],
        str(task.get("family") or task.get("id", "")),
    ]


def opening_text(task: Mapping[str, Any]) -> str:
    """What the user asks for first."""
    prompt = task.get("prompt", "")
    if isinstance(prompt, str):
        return prompt
    asked = [m for m in prompt if isinstance(m, Mapping) and m.get("role") == "user"]
    return str(asked[0].get("content", "")) if asked else ""


def _mapping(line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = line.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(line: Mapping[str, Any], name: str) -> list[Any]:
    found = line.get(name)
    return found if isinstance(found, list) else []


def _objects(line: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [one for one in _list(line, name) if isinstance(one, Mapping)]


def _ids(row: Mapping[str, Any], name: str) -> list[int]:
    return [token for token in _list(row, name) if isinstance(token, int)]


SHOWN_CHARS = 20_000
"""Of each text as it is sent; the page asks for the rest of it when somebody wants to read on."""

_AS_JSON = ("arguments", "structured", "setup", "expected", "before", "after")
"""Values of any shape. They travel as the text of their JSON: a browser's numbers would round large ones."""

_WHAT = {"missing": "removed", "extra": "added", "changed": "changed", "type": "changed"}


def detail(line: Mapping[str, Any], place: Place, evidence: Any) -> dict[str, Any]:
    """A recorded rollout for the page, its texts whole, with its `place` and what its run's `evidence` tells of it.

    The tokens stay behind (see `token_rows`), and in place of the two states are their differences:
    `changes`, a list, or None where a state was not recorded.
    """
    shown = {key: value for key, value in line.items() if key not in ("rows", "initial_state", "final_state")}
    shown["changes"] = state_changes(line.get("initial_state"), line.get("final_state"))
    shown["has_tokens"] = any(_ids(row, "completion_ids") for row in _objects(line, "rows"))
    shown["seed"] = str(line.get("seed", ""))
    shown["calls"] = [_without_repetition(call) for call in _objects(line, "calls")]
    return {"run": place.run, "stage": place.stage, "evidence": evidence, **with_json_text(shown)}


def _without_repetition(call: Mapping[str, Any]) -> dict[str, Any]:
    """The call, its result without structured content that only repeats the text, as most servers send it."""
    result = call.get("result")
    if not isinstance(result, Mapping) or result.get("structured") is None:
        return dict(call)
    text, structured = result.get("text"), result["structured"]
    try:
        same = structured in (json.loads(str(text)), {"result": text}, {"result": json.loads(str(text))})
    except (ValueError, RecursionError):
        same = structured == {"result": text}
    return {**call, "result": {**result, "structured": None}} if same else dict(call)


def state_changes(before: Any, after: Any) -> list[dict[str, Any]] | None:
    """What a rollout changed in its world: `path`, `what` (`added`, `removed`, `changed`), `before` and `after`."""
    if before is None or after is None:
        return None
    return [_change(found) for found in differences(before, after, ("state",))]


def _change(found: Difference) -> dict[str, Any]:
    change: dict[str, Any] = {"path": found.path.removeprefix("state."), "what": _WHAT[found.kind]}
    if found.kind != "extra":
        change["before"] = found.recorded
    if found.kind != "missing":
        change["after"] = found.twin
    return change


def with_json_text(value: Any) -> Any:
    """The same with the values of `_AS_JSON` as the text of their JSON."""
    if isinstance(value, Mapping):
        return {
            key: json.dumps(item, ensure_ascii=False, separators=(",", ":"))
            if key in _AS_JSON and item is not None
            else with_json_text(item)
            for key, item in value.items()
        }
    return [with_json_text(item) for item in value] if isinstance(value, list) else value


def cut_texts(shown: dict[str, Any], most: int = SHOWN_CHARS) -> dict[str, Any]:
    """The detail with each text that is longer than `most` cut to it, and `cut`: where those are and how long.

    Each is `{"at": ["messages", 2, "content"], "chars": 21000000}`.
    """
    cut: list[dict[str, Any]] = []

    def walk(value: Any, at: tuple[str | int, ...]) -> Any:
        if isinstance(value, str) and len(value) > most:
            cut.append({"at": list(at), "chars": len(value)})
            return value[:most]
        if isinstance(value, dict):
            return {key: walk(item, (*at, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*at, number)) for number, item in enumerate(value)]
        return value

    short: dict[str, Any] = walk(shown, ())
    return {**short, "cut": cut}


def text_at(shown: Any, at: Sequence[str | int]) -> str:
    """The text at one of the places of `cut_texts`. Raises `LookupError` where there is none."""
    for step in at:
        try:
            shown = shown[step]
        except (KeyError, IndexError, TypeError) as error:
            raise LookupError(f"there is no text at {list(at)}") from error
    if not isinstance(shown, str):
        raise LookupError(f"there is no text at {list(at)}")
    return shown


# ---------------------------------------------------------------------------------------------------------------------
# The tokens of a rollout as text, with the probability that the policy gave to each.

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
    rows = [_row(row, tokenizer) for row in _objects(line, "rows")]
    return {"tokenizer": str(file) if file is not None else None, "rows": rows}


def _speaks(tokenizer: Tokenizer, line: Mapping[str, Any]) -> bool:
    """Whether this tokenizer turns the tokens into what the policy wrote: another policy's tokens would be nonsense."""
    said = [str(m.get("content") or "").strip() for m in _objects(line, "messages") if m.get("role") == "assistant"]
    ids = [
        token
        for row in _objects(line, "rows")
        for name in ("prompt_ids", "completion_ids")
        for token in _ids(row, name)
    ]
    try:
        text = tokenizer.decode(ids, skip_special_tokens=False)
    except OverflowError:  # an id that no tokenizer has
        return False
    return all(one in text for one in said[-1:])


def _row(row: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    prompt = _ids(row, "prompt_ids")
    told = (_list(row, name) for name in ("sampled", "logprobs", "versions"))
    pieces = zip((_piece(token, tokenizer) for token in _ids(row, "completion_ids")), *told, strict=False)
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
    found = folder_here(name, "tokenizer.json")
    return [] if found is None else [found]


@functools.lru_cache(maxsize=8)
def _tokenizer(file: str) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(file)
