"""The settings of a client: whom to trust, how much is verified, and as whom to come.

The files are read when a connection is made, and again only when they have changed: certificates that live for a day
are renewed under a client that runs for months.
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
    """How to speak TLS to a node.

    Args:
        trust_store: PEM file of the CAs that sign nodes; None: those that the system trusts.
        certificate, key: PEM files of the certificate to come with (and its chain) and its key, which may be in the
            same file; None: none.
        verify: "full": the chain and the name of the node; "chain": any name will do; "none": anybody may be there.

    Raises:
        OptionError: a value that can't be.
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
    def from_query(cls, told: Mapping[str, str]) -> TlsSettings:
        """Read the parameters of a connection string; those that are none of ours are left alone."""
        return cls(**{field: told[name] for name, field in QUERY.items() if name in told})

    @property
    def query(self) -> str:
        """The parameters as a connection string has them; empty where all is by default."""
        told = {name: getattr(self, field) for name, field in QUERY.items()}
        default = dict.fromkeys(QUERY) | {"tls_verify": "full"}
        return "&".join(f"{name}={quote(text)}" for name, text in told.items() if text != default[name])

    @property
    def is_verified(self) -> bool:
        """True if it is known who is at the other end."""
        return self.verify == "full"

    def context(self) -> ssl.SSLContext:
        """Return what connections are made with.

        Raises:
            OptionError: a file can't be read, or is not what it has to be.
        """
        files = (self.trust_store, self.certificate, self.key)
        return _context(self, tuple(_signature(file) for file in files))


def _signature(file: str | None) -> tuple[int, int, int] | None:
    try:
        found = Path(file).stat() if file is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found is not None else None


@lru_cache(maxsize=32)
def _context(settings: TlsSettings, _: object) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = settings.verify == "full"
    made.verify_mode = ssl.CERT_NONE if settings.verify == "none" else ssl.CERT_REQUIRED
    if settings.trust_store is None:
        made.load_default_certs()
    else:
        load_trusted(made, settings.trust_store, "trust_store")
    if settings.certificate is not None:
        load_pair(made, settings.certificate, settings.key, ("client_certificate", "client_key"))
    return made


def load_trusted(context: ssl.SSLContext, file: str, option: str) -> None:
    """Let a context trust the CAs of a PEM file; OptionError if that can't be."""
    try:
        context.load_verify_locations(cafile=file)
    except OSError as error:  # ssl.SSLError is one
        raise OptionError(option, file, f"a PEM file of CA certificates ({_why(error)})") from None


def load_pair(context: ssl.SSLContext, certificate: str, key: str | None, options: tuple[str, str]) -> None:
    """Give a context a certificate with its key; OptionError if that can't be."""
    for option, file in zip(options, (certificate, key), strict=True):
        try:
            if file is not None:
                Path(file).read_bytes()
        except OSError as error:
            raise OptionError(option, file, f"a file that can be read ({error.strerror})") from None
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")  # without it, OpenSSL asks the terminal
    except (OSError, ValueError) as error:
        named = certificate if key is None else f"{certificate}, {key}"
        raise OptionError(options[0], named, f"a PEM certificate with its key, not encrypted ({_why(error)})") from None


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).lower().replace("_", " ")
