"""Checks a call's arguments against the tool's schema, and says what is wrong so that a model can correct it."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from jsonschema import ValidationError
from jsonschema.exceptions import SchemaError
from referencing.exceptions import Unresolvable

from ..errors import SourceError, ToolFailure, kind_of
from ..records import Tool
from ..safe_text import and_more, plural, shortened
from .schema_checks import SchemaTimeout, compiled_schema, satisfiable, schema_errors
from .schema_parts import SharedParts, followed

logger = logging.getLogger(__name__)

_MOST_PROBLEMS = 5
_LONGEST_VALUE = 120
_MOST_NAMES = 60
_UNCHECKABLE = "- they are nested too deeply to be checked, or hold a number that is too large or not finite"


class ArgumentChecker:
    """The compiled schemas of a set of tools. Compiling happens once, here."""

    def __init__(self, tools: Iterable[Tool], *, lenient: Collection[str] = ()) -> None:
        """`lenient`: the names of tools behind which somebody checks the arguments again, and may take more than the
        schema says. What is likely to be taken is then no problem here: a required argument that has a default may be
        missing, and a value may be of another type that is often converted, such as a number as text.

        Raises `SourceError` where a tool's input schema is not a valid JSON Schema.
        """
        self._tools = {tool.name: tool for tool in tools}
        self._lenient = frozenset(lenient)
        parts = SharedParts()
        self._checks = {name: _compile(tool, parts) for name, tool in self._tools.items()}

    def problem(self, name: str, arguments: object, *, strict: bool = False) -> str | None:
        """What is wrong with `arguments` for the tool `name`, or `None`. `strict`: also for a lenient tool.

        Raises `ToolFailure` where the schema itself cannot be applied: a `$ref` leads nowhere.
        """
        tool = self._tools[name]
        if not isinstance(arguments, Mapping):
            lines = [f"- the arguments must be one JSON object, not {_show(arguments)}"]
            return self._report(tool, lines)
        try:
            errors = sorted(schema_errors(self._checks[name], dict(arguments)), key=_order)
            if name in self._lenient and not strict:
                errors = [error for error in errors if not _may_be_taken(error)]
            lines = [f"- {_explain(error, tool.input_schema)}" for error in errors[:_MOST_PROBLEMS]]
        except SchemaTimeout as timeout:
            logger.warning("a call of tool %r (%s) was refused: %s", tool.name, tool.source, timeout)
            return self._report(tool, [f"- they could not be checked in time, and so are not accepted: {timeout}"])
        except Unresolvable as error:
            raise ToolFailure(
                f"the input schema of tool {tool.name!r} ({tool.source}) has a reference that leads nowhere: {error}. "
                "Correct the schema in the server, or leave the tool out: "
                f'"toolbake": {{"deny": ["{tool.name_at_source or tool.name}"]}}',
                delivery="not_sent",
            ) from error
        except (OverflowError, RecursionError, ValueError):
            return self._report(tool, [_UNCHECKABLE])
        if dropped := len(errors) - len(lines):
            lines.append(f"- and {dropped} more {plural(dropped, 'problem')}")
        return self._report(tool, lines) if errors else None

    def _report(self, tool: Tool, lines: list[str]) -> str:
        signature = _signature(tool, is_lenient=tool.name in self._lenient)
        return "\n".join([f"Invalid arguments for {tool.name}; nothing was called.", *lines, signature])

    def place(self, name: str, arguments: Mapping[str, Any]) -> tuple[str | int, ...]:
        """The way into `arguments` to a part that is wrong, or to the name of one that is missing.

        Empty where it is the whole, or nothing was found in time.
        """
        try:
            found = schema_errors(self._checks[name], dict(arguments), most=1)
        except (SchemaTimeout, RecursionError):
            return ()
        way: list[str | int] = [*found[0].absolute_path] if found else []
        if found and found[0].validator == "required":
            way += [part for part in found[0].validator_value if part not in found[0].instance][:1]
        return tuple(way)


def unknown_tool(name: object, tools: Iterable[str]) -> str:
    """The text for a call of a tool that does not exist: near names first, then all of them."""
    names = list(tools)
    near = difflib.get_close_matches(str(name)[:200], names, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"There is no tool {_show(name)}.{hint} The tools are: {and_more(names, _MOST_NAMES)}."


def _compile(tool: Tool, parts: SharedParts) -> Any:
    def left_out(part: str) -> None:
        told = "tool %r (%s): arguments are not checked against %r, which cannot be checked here"
        logger.warning(told, tool.name, tool.source, part)

    def contradicts(which: str) -> None:
        logger.warning("tool %r (%s): nothing satisfies %s; it is not enforced", tool.name, tool.source, which)

    try:
        schema = parts.rewritten("contradictions", tool.input_schema, satisfiable, contradicts)
        return compiled_schema(schema, left_out, parts=parts)
    except SchemaError as error:
        raise SourceError(
            f"the input schema of tool {tool.name!r} ({tool.source}) is not a valid JSON Schema: {error.message} "
            f"at {error.json_path}. Correct the schema in the server."
        ) from error


_TRUTHS = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0"})


def _may_be_taken(error: ValidationError) -> bool:
    """Whether servers often take a value all the same: FastMCP and pydantic read numbers, truths, lists and objects out
    of text, zod and web frameworks convert between texts and numbers, and `null` often means that nothing was given."""
    wanted, value = error.validator_value, error.instance
    if error.validator == "required":
        return all(_has_default(error.schema, name) for name in _missing(error))
    if error.validator in {"anyOf", "oneOf"}:
        return any(all(map(_may_be_taken, problems)) for problems in _by_choice(error))
    if value is None:
        return error.validator in {"type", "enum", "const"} and bool(error.absolute_path)
    if error.validator == "type":
        return any(_is_often_converted(value, kind) for kind in ([wanted] if isinstance(wanted, str) else wanted))
    if error.validator in {"enum", "const"}:
        return _scalar_text(value) in map(_scalar_text, wanted if error.validator == "enum" else [wanted])
    return False


def _is_often_converted(value: object, kind: str) -> bool:
    text = _scalar_text(value)
    if text is None:
        return False
    if kind == "string":
        return True
    if kind == "boolean":
        return text.lower() in _TRUTHS
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if kind in {"integer", "number"}:
        is_number = isinstance(read, int | float) and not isinstance(read, bool)
        return is_number and (kind == "number" or read == read // 1)
    return isinstance(read, {"array": list, "object": dict}.get(kind, ()))


def _scalar_text(value: object) -> str | None:
    """As it would be written in a URL; None for lists, objects and `null`."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, int | float) else None


def _order(error: ValidationError) -> tuple[str, str]:
    return (error.json_path, str(error.validator))


def _explain(error: ValidationError, root: Mapping[str, Any]) -> str:
    """`root`: the tool's schema, which the references in a part of it lead into."""
    where = error.json_path.removeprefix("$").removeprefix(".")
    prefix = f"in {where}: " if where else ""
    if error.validator == "required":
        missing = ", ".join(map(repr, _missing(error)))
        return f"{prefix}missing required argument {missing}{_strangers(error, root)}"
    if error.validator == "dependentRequired" and isinstance(error.instance, Mapping):
        return prefix + _not_alone(error)
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        return prefix + _unexpected(error)
    subject = f"{where} is {_show(error.instance)}" if where else f"the arguments are {_show(error.instance)}"
    if error.validator in {"anyOf", "oneOf"} and (told := _against_choices(error, root)):
        return f"{subject}; {told}"
    if error.validator in {"type", "enum", "const", "anyOf", "oneOf"} and isinstance(error.schema, Mapping):
        return f"{subject}; expected {_Describer(root).text(error.schema)}"
    # jsonschema's message repeats the whole value, which may be large: the keyword says it shorter.
    limit = _LIMITS.get(str(error.validator), f"{error.validator} {{}}")
    return f"{subject}; expected {limit.format(_show(error.validator_value))}"


_LIMITS = {
    "minimum": "a number of at least {}",
    "maximum": "a number of at most {}",
    "exclusiveMinimum": "a number above {}",
    "exclusiveMaximum": "a number below {}",
    "multipleOf": "a multiple of {}",
    "minLength": "a text with a length of at least {}",
    "maxLength": "a text with a length of at most {}",
    "pattern": "a text that matches {}",
    "format": "a text in the format {}",
    "minItems": "a list with a length of at least {}",
    "maxItems": "a list with a length of at most {}",
    "uniqueItems": "a list without repeated items",
}
"""What a keyword of JSON Schema asks for."""


def _against_choices(error: ValidationError, root: Mapping[str, Any]) -> str:
    """Why a value fits no choice, by the one that it misses least; "" where it is of another type than all of them."""
    if not error.context:
        fitting = "several" if error.validator == "oneOf" else "none"
        return f"it fits {fitting} of {len(error.validator_value)} choices, and must fit one alone"
    near = [
        problems
        for problems in _by_choice(error)
        if not any(one.validator in {"type", "enum", "const"} and not one.relative_path for one in problems)
    ]
    if not near:
        return ""

    def misses(problems: list[ValidationError]) -> tuple[int, int, int, tuple[str, str]]:
        # A wrong value among fixed ones tells of another choice, more than anything else does.
        fixed = sum(one.validator in {"enum", "const", "not"} for one in problems)
        known = _properties(error.validator_value[problems[0].relative_schema_path[0]], root)
        strangers = sum(name not in known for name in error.instance) if isinstance(error.instance, Mapping) else 0
        return fixed, len(problems), strangers, min(map(_order, problems))

    least = min(near, key=misses)
    return f"of {len(error.validator_value)} choices the nearest says: {_explain(min(least, key=_order), root)}"


def _by_choice(error: ValidationError) -> list[list[ValidationError]]:
    """What each choice of `anyOf` or `oneOf` has against a value."""
    choices: dict[Any, list[ValidationError]] = {}
    for problem in error.context or ():
        if problem.relative_schema_path:  # none where the choice is `false`
            choices.setdefault(problem.relative_schema_path[0], []).append(problem)
    return list(choices.values())


def _missing(error: ValidationError) -> list[str]:
    """jsonschema reports each missing name in an error of its own: find the one this error is about."""
    missing = [name for name in error.validator_value if name not in error.instance]
    return [name for name in missing if error.message.startswith(repr(name))] or missing


def _not_alone(error: ValidationError) -> str:
    """jsonschema reports each missing name in an error of its own, here too."""
    given = error.instance
    pairs = [(need, name) for name, needs in error.validator_value.items() if name in given for need in needs]
    pairs = [(need, name) for need, name in pairs if need not in given]
    said = [pair for pair in pairs if error.message == f"{pair[0]!r} is a dependency of {pair[1]!r}"]
    need, name = (said or pairs)[0]
    return f"missing argument {need!r}, which must come with {name!r}"


def _has_default(schema: Any, name: str) -> bool:
    one = schema.get("properties", {}).get(name)
    return isinstance(one, Mapping) and "default" in one


def _strangers(error: ValidationError, root: Mapping[str, Any]) -> str:
    """Given names that the schema tolerates but does not know: with one missing, they are likely misspelled."""
    schema, around = error.schema, error
    keywords = [step for step in error.absolute_schema_path if isinstance(step, str) and step != "$ref"]
    if not {"dependentSchemas", "dependencies"}.isdisjoint(keywords[-3:-2]):
        return ""  # as below: this part is for whoever gives one of the others
    for keyword in reversed(keywords[:-1]):
        if keyword in {"allOf", "then", "else"}:
            return ""  # the other parts may know them
        if keyword not in {"anyOf", "oneOf"} or around.parent is None:
            break
        around = around.parent
        schema = around.schema
    known = _properties(schema, root)
    strangers = [str(name) for name in error.instance if name not in known]
    if not strangers or (isinstance(error.schema, Mapping) and error.schema.get("additionalProperties") is False):
        return ""
    return f" (given, but not known: {', '.join(_show(name) for name in strangers[:_MOST_PROBLEMS])})"


def _unexpected(error: ValidationError) -> str:
    properties = error.schema.get("properties", {}) if isinstance(error.schema, Mapping) else {}
    extra = [str(name) for name in error.instance if name not in properties]
    hints = []
    for name in extra[:_MOST_PROBLEMS]:
        near = difflib.get_close_matches(name[:200], list(properties), n=1)
        hints.append(_show(name) + (f" (did you mean {near[0]!r}?)" if near else ""))
    return f"unknown argument {_some(hints, len(extra))}"


def _signature(tool: Tool, *, is_lenient: bool) -> str:
    properties = _properties(tool.input_schema, tool.input_schema)
    if not properties:
        return f"{tool.name} takes no named arguments."
    required = set(followed(tool.input_schema, tool.input_schema).get("required") or [])
    if is_lenient:
        required -= {name for name in properties if _has_default(tool.input_schema, name)}
    parts = []
    for name in list(properties)[:_MOST_NAMES]:
        kind = _Describer(tool.input_schema).text(properties[name])
        parts.append(f"{name} ({kind}, {'required' if name in required else 'optional'})")
    return f"Arguments of {tool.name}: {_some(parts, len(properties))}."


def _properties(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of an object, also those that only a reference, a part or a choice of its schema names. One that
    it names itself is as it says there, and one of several choices is as any of them has it."""
    own = followed(schema, root).get("properties", {})
    found: dict[str, list[Any]] = {name: [one] for name, one in own.items()}
    waiting = [schema]
    for part in waiting:
        whole = followed(part, root)
        for name, one in whole.get("properties", {}).items():
            if name not in own and one not in found.setdefault(name, []):
                found[name].append(one)
        more = [*whole.get("anyOf", ()), *whole.get("oneOf", ()), whole.get("then"), whole.get("else")]
        waiting += more[: max(0, _MOST_PARTS - len(waiting))]
    return {name: ones[0] if len(ones) == 1 else {"anyOf": ones} for name, ones in found.items()}


_MOST_FIELDS = 12
_OBJECTS_DEEP = 2
_DEEPEST = 6
_MOST_PARTS = 60


class _Describer:
    """Tells a schema in a few words: `integer or null`, `one of "open", "closed"`, `object {name: string}`.

    It goes no deeper than a reader would, and ends where references lead back or each to many others.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        """`root`: the document that references lead into."""
        self._root = root
        self._parts = 0

    def text(self, schema: Any, objects: int = 0, depth: int = 0) -> str:
        """`objects`: in how many objects it is; `depth`: the same for parts of any kind."""
        self._parts += 1
        if depth > _DEEPEST or self._parts > _MOST_PARTS:
            return "anything"
        schema = followed(schema, self._root)
        if "const" in schema:
            return _show(schema["const"])
        if isinstance(schema.get("enum"), list):
            values = schema["enum"]
            return "one of " + _some([_show(value) for value in values[:_MOST_NAMES]], len(values))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                parts = [part for part in schema[keyword] if isinstance(part, Mapping)]
                told = " or ".join(dict.fromkeys(self.text(part, objects, depth + 1) for part in parts))
                if told not in ("", "anything"):  # as where the choices are only of what is required
                    return told
        kind = schema.get("type")
        if isinstance(kind, list):
            return " or ".join(str(one) for one in kind)
        if kind == "array" and isinstance(schema.get("items"), Mapping):
            return f"array of {self.text(schema['items'], objects, depth + 1)}"
        fields = schema.get("properties")
        if kind in ("object", None) and isinstance(fields, Mapping) and fields and objects < _OBJECTS_DEEP:
            required = schema.get("required") or ()
            shown = [
                f"{name}{'' if name in required else '?'}: {self.text(fields[name], objects + 1, depth + 1)}"
                for name in list(fields)[:_MOST_FIELDS]
            ]
            return f"object {{{_some(shown, len(fields))}}}"
        return str(kind) if kind else "object" if fields else "anything"


def _some(shown: list[str], of: int) -> str:
    return ", ".join(shown) + (f" and {of - len(shown)} more" if of > len(shown) else "")


def _show(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        try:
            text = repr(value)
        except (ValueError, RecursionError):  # of a number with thousands of digits, or a list in a list in a list
            text = kind_of(value)
    return shortened(text, _LONGEST_VALUE)
