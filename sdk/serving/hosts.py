"""Whether a request is meant for this machine, for servers that ask for no key."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection


def names_this_machine(request: HTTPConnection) -> bool:
    """Whether `Host` is a loopback address or localhost. Another site's name that was made to lead here (DNS rebinding)
    is neither: a page of that site could send requests that browsers take for its own."""
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
