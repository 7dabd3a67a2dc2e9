"""Keys of rows: what a row is called in its table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random
from typing import Any
from uuid import UUID

from ..inference.model import Part, Table
from ..shapes import Shapes
from ..values.fitting import LINK, is_link
from ..values.making import scalar_fits, sized
from ..values.patterns import matching
from ..values.realistic import Realistic, words_of
from .store import Row, Store

ONLY = "it"
"""The key of the row of a table that has one row."""


def row_key(parent: str | None, values: Iterable[Any]) -> str:
    """The key of a row under `parent`: values joined by `/`, each with its own `/` escaped."""
    own = [str(value).replace("%", "%25").replace("/", "%2F") for value in values]
    return "/".join([*([parent] if parent else []), *own])


def free_key(store: Store, table: str, key: str) -> str:
    """`key`, or with a number after it where a row had it that is called otherwise by now."""
    free, number = key, 1
    while store.get(table, free) is not None:
        number += 1
        free = f"{key}~{number}"
    return free


def shown_key(store: Store, tables: dict[str, Table], table: str, key: str) -> Any:
    """What other rows write to name a row: the value of the last part of its key."""
    row = store.get(table, key)
    return None if row is None else part_value(store, tables, row, tables[table].key)


def part_value(store: Store, tables: dict[str, Table], row: Row, part: Part) -> Any:
    """The value of a part of a row's key, behind the link that it may be."""
    return column_value(store, tables, row.get(part.column))


def column_value(store: Store, tables: dict[str, Table], value: Any) -> Any:
    """A value, or what names the row that it links to."""
    if is_link(value):
        table, key = value[LINK]
        return shown_key(store, tables, table, key)
    return value


def with_key(table: Table, row: Row, value: Any) -> Row:
    """The row with the last part of its key, also where an object of the row shows it."""
    keyed = {**row, table.key.column: value}
    if table.key.shown is not None:
        holder, name = table.key.shown
        held = row.get(holder)
        keyed[holder] = {**(held if isinstance(held, dict) else {}), name: value}
    return keyed


def given_key(table: Table, row: Row) -> Any:
    """The last part of a key as a new row has it: in its column, or in the object that shows it."""
    if table.key.shown is None:
        return row.get(table.key.column)
    held = row.get(table.key.shown[0])
    return held.get(table.key.shown[1]) if isinstance(held, dict) else None


def new_key_value(shapes: Shapes, realistic: Realistic, table: Table, row: Row, serial: int) -> Any:
    """A value for the last part of a key, that the server chooses."""
    part = table.key
    shape = shapes.of(part.schema)
    if part.kind == "integer":
        number = max(serial, int(shape.says.get("minimum", 1)))
        return number if "integer" in shape.kinds else str(number)
    chance = realistic.chance
    if shape.says.get("format") == "uuid" or {"uuid", "guid"} & set(words_of(part.column)):
        return str(UUID(int=chance.getrandbits(128), version=4))
    if "pattern" in shape.says:
        low, high = int(shape.says.get("minLength", 0)), shape.says.get("maxLength")
        found = matching(shape.says["pattern"], chance, low=low, high=high)
        if found is not None:
            return found
    examples = [one for one in shape.says.get("examples", ()) if isinstance(one, str) and one]
    if examples:
        return like(examples[0], chance)
    if set(words_of(part.column)) & {"id", "sid", "token"} or part.column.startswith("@"):
        word = "".join(words_of(table.singular))[:3] or "id"
        made = f"{word}_{chance.getrandbits(40):010x}"
    elif isinstance(row.get("name"), str) and part.column != "name":
        made = _slug(row["name"])
    else:
        made = _slug(realistic.text(part.column, table.singular))
    made = sized(made, int(shape.says.get("minLength", 0)), shape.says.get("maxLength"))
    return made if scalar_fits(shape, made) else examples[0] if examples else made


def like(example: str, chance: Random) -> str:
    """Another identifier of the same make: digits stay digits, letters of the random part stay letters."""
    start = max(example.rfind("_"), example.rfind("-") if "_" not in example else -1) + 1
    head, tail = example[:start], example[start:]
    if not any(letter.isdigit() for letter in tail):
        return f"{example}-{chance.randrange(1000, 10_000)}" if not head else head + "".join(_again(tail, chance))
    return head + "".join(_again(tail, chance))


def _again(text: str, chance: Random) -> Iterable[str]:
    is_hex = re.fullmatch(r"[0-9a-f]+", text) is not None and not text.isdigit()
    for place, letter in enumerate(text):
        if is_hex:
            yield chance.choice("0123456789abcdef")
        elif letter.isdigit():
            yield chance.choice("123456789" if place == 0 else "0123456789")
        elif letter.isalpha() and letter.isascii():
            yield chance.choice("ABCDEFGHJKMNPQRSTUVWXYZ" if letter.isupper() else "abcdefghjkmnpqrstuvwxyz")
        else:
            yield letter


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-") or "x"
