"""Who may send requests where there is no key: a client that means this machine."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

_HOST = re.compile(r"(?:\[(?P<ip>[^\]]*)\]|(?P<name>[\w.-]+))(?::\d*)?", re.ASCII)
"""A host and maybe a port, and nothing else that a URL may have: no user, no path."""


def names_this_machine(headers: Mapping[str, str], *, also: str = "localhost") -> bool:
    """Whether `Host` is a loopback address, localhost or `also`. Another site's name that was made to lead here (DNS
    rebinding) is none of them: a page of that site could send requests that browsers take for its own."""
    return _is_this_machine(headers.get("host", ""), also)


def comes_from_this_machine(headers: Mapping[str, str], *, also: str = "localhost") -> bool:
    """Whether the page that sends the request, where one does (`Origin`), is of such a host."""
    origin = headers.get("origin")
    return origin is None or _is_this_machine(origin.partition("://")[2], also)


def _is_this_machine(place: str, also: str) -> bool:
    found = _HOST.fullmatch(place)
    if found is None:
        return False
    host = (found["ip"] or found["name"] or "").lower()
    try:
        return host in ("localhost", also.lower()) or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
