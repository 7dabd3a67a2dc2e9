"""Lists that an API answers page by page, where only the header `Link` (RFC 8288) tells that there is a next page."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qs

import httpx

from .document import Parameter
from .requests import Plan


def next_page(response: httpx.Response) -> str | None:
    """The address of the next page, as the answer has it; None where it names none."""
    links = [{name.lower(): text for name, text in one.items()} for one in response.links.values()]
    return next((one.get("url") for one in links if "next" in one.get("rel", "").lower().split()), None)


def told_of(link: str, plan: Plan, sent: str, *, reserved: Collection[str] = ()) -> str:
    """A line for the model: that there is more, and with which arguments of the operation. `link`: of the next page.
    `sent`: the query of this call. `reserved`: names in the query that no model gives, and none is shown."""
    query = link.partition("#")[0].partition("?")[2]
    wanted, given = (parse_qs(one, keep_blank_values=True) for one in (query, sent))
    changed = {name: texts for name, texts in wanted.items() if texts != given.get(name) and name not in reserved}
    names = {one.name: argument for argument, one in plan.parameters.items() if one.location == "query"}
    arguments = {
        names[name]: _value(plan.parameters[names[name]], texts) for name, texts in changed.items() if name in names
    }
    others = ", ".join(json.dumps(name) for name in changed if name not in names)
    if not arguments:
        lacks = f": its link has {others}, which no argument of this tool is" if others else ""
        return f"[This is one page of a longer list. This tool cannot ask for the next page{lacks}]"
    also = f"; its link has {others} too, which no argument of this tool is" if others else ""
    shown = json.dumps(arguments, ensure_ascii=False)
    return f"[This is one page of a longer list. For the next page, call again with these arguments too: {shown}{also}]"


def _value(parameter: Parameter, texts: list[str]) -> Any:
    if len(texts) > 1:
        return texts
    kind = parameter.schema.get("type") if isinstance(parameter.schema, dict) else None
    if kind == "array":
        return texts
    return int(texts[0]) if kind in ("integer", "number") and texts[0].isdecimal() else texts[0]
