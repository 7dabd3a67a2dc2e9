"""What a user says of TLS with one server: whom to trust, and who we are."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, field

import httpx2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tls:
    """`ca`: a file of certificates that are trusted in place of the usual ones. `cert` and `key`: files of the client's
    certificate, with its key in the first where the second is left out. `verify`: `False` trusts anybody."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Takes 50 ms where the usual certificates are read. Raises `OSError`, `ssl.SSLError` among them."""
        context = httpx2.create_ssl_context() if self.ca is None else ssl.create_default_context(cafile=self.ca)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert is not None:
            # Without a password OpenSSL would ask for one on the terminal, and wait.
            context.load_cert_chain(self.cert, self.key, password=self.key_password or "")
        return context
