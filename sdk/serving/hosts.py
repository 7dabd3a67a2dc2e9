"""Who may send requests where there is no key: a client that means this machine."""

from __future__ import annotations

import ipaddress
import re

from starlette.requests import HTTPConnection

_HOST = re.compile(r"(?:\[(?P<ip>[^\]]*)\]|(?P<name>[\w.-]+))(?::\d*)?", re.ASCII)
"""A host and maybe a port, and nothing else that a URL may have: no user, no path."""


def names_this_machine(request: HTTPConnection) -> bool:
    """Whether `Host` is a loopback address or localhost. Another site's name that was made to lead here (DNS rebinding)
    is neither: a page of that site could send requests that browsers take for its own."""
    found = _HOST.fullmatch(request.headers.get("host", ""))
    if found is None:
        return False
    host = (found["ip"] or found["name"] or "").lower()
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
