"""The TLS settings of a client: trusted CAs, the amount of verification, and its own certificate.

Files are read when a connection is opened, and again only if they have changed: a client that runs for months may use
certificates that are renewed every day.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from headwater.errors import OptionError

__all__ = ["QUERY", "TLS_PORT", "VERIFY", "TlsSettings"]

TLS_PORT = 11207
VERIFY = ("full", "chain", "none")
QUERY = {
    "trust_store": "trust_store",
    "client_certificate": "certificate",
    "client_key": "key",
    "tls_verify": "verify",
}
"""Names in a connection string, and the fields that they fill."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """A client's settings for TLS with a node.

    Args:
        trust_store: PEM file of the CAs that sign nodes' certificates; None for the CAs that the system trusts.
        certificate, key: PEM files of the client's certificate (with its chain) and key, which may be the same file;
            None for no certificate.
        verify: "full" to check the chain and the name of the node, "chain" to accept any name, "none" for no check.

    Raises:
        OptionError: an invalid value.
    """

    trust_store: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: str = "full"

    def __post_init__(self) -> None:
        if self.verify not in VERIFY:
            raise OptionError("tls_verify", self.verify, f"one of {', '.join(VERIFY)}")
        if self.key is not None and self.certificate is None:
            raise OptionError("client_key", self.key, "complete: give client_certificate, whose key it is")

    @classmethod
    def from_query(cls, parameters: Mapping[str, str]) -> TlsSettings:
        """Return the settings in the parameters of a connection string; other parameters are ignored."""
        return cls(**{field: parameters[name] for name, field in QUERY.items() if name in parameters})

    @property
    def query(self) -> str:
        """The settings as parameters of a connection string; empty if all have their defaults."""
        values = {name: getattr(self, field) for name, field in QUERY.items()}
        default = dict.fromkeys(QUERY) | {"tls_verify": "full"}
        return "&".join(f"{name}={quote(text)}" for name, text in values.items() if text != default[name])

    @property
    def is_verified(self) -> bool:
        """True if the peer's name is verified."""
        return self.verify == "full"

    def context(self) -> ssl.SSLContext:
        """Return the context for new connections.

        Raises:
            OptionError: a file can't be read, or has the wrong content.
        """
        files = (self.trust_store, self.certificate, self.key)
        return _context(self, tuple(_signature(file) for file in files))


def _signature(file: str | None) -> tuple[int, int, int] | None:
    try:
        status = Path(file).stat() if file is not None else None
    # A file that can't be read fails with its reason when the context is made.
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else None


@lru_cache(maxsize=32)
def _context(settings: TlsSettings, _: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # TLS 1.0 and 1.1 are forbidden (RFC 8996).
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.verify == "full"
    context.verify_mode = ssl.CERT_NONE if settings.verify == "none" else ssl.CERT_REQUIRED
    if settings.trust_store is None:
        context.load_default_certs()
    else:
        load_trusted(context, settings.trust_store, "trust_store")
    if settings.certificate is not None:
        load_pair(context, settings.certificate, settings.key, ("client_certificate", "client_key"))
    return context


def load_trusted(context: ssl.SSLContext, file: str, option: str) -> None:
    """Add the CAs of a PEM file to a context's trusted ones; OptionError if the file has none or can't be read."""
    try:
        context.load_verify_locations(cafile=file)
    except OSError as error:  # ssl.SSLError is one
        raise OptionError(option, file, f"a PEM file of CA certificates ({_reason_of(error)})") from None


def load_pair(context: ssl.SSLContext, certificate: str, key: str | None, options: tuple[str, str]) -> None:
    """Load a certificate and its key into a context; OptionError if a file can't be read or they don't match."""
    for option, file in zip(options, (certificate, key), strict=True):
        try:
            if file is not None:
                Path(file).read_bytes()
        except OSError as error:
            raise OptionError(option, file, f"a file that can be read ({error.strerror})") from None
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")  # without it, OpenSSL asks the terminal
    except (OSError, ValueError) as error:
        files = certificate if key is None else f"{certificate}, {key}"
        raise OptionError(
            options[0], files, f"a PEM certificate with its key, not encrypted ({_reason_of(error)})"
        ) from None


def _reason_of(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).lower().replace("_", " ")
