"""TLS at a node: its certificate, the CAs that it trusts, and the user named by a client's certificate.

The files are read at the start, after SIGHUP, and whenever they have changed. A bad file is refused with one log line,
and the former files stay in use; open connections keep the ones they began with. Couchbase's rule determines the user:
the first of the configured places in the certificate that has a name, cut as docs/howto/tls.md describes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from socket import socket
from time import time

from headwater.errors import OptionError
from headwater.node.config import NodeConfig, refuse_readable_by_others
from headwater.tls.certificates import Certificate, read_der, read_pem
from headwater.tls.engine import TlsEngine
from headwater.tls.settings import load_pair, load_trusted
from headwater.tls.socket import SEALED_BYTES, TlsSocket

__all__ = ["ENGINE_BYTES", "NameRule", "NodeTls", "name_rules"]

ENGINE_BYTES = 64 << 10
"""The approximate memory that OpenSSL keeps for a connection (measured: 40 to 55 KiB in the handshake, then less)."""
VERIFY = {"off": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
SOON_SECONDS = 14 * 86_400

_PLACES: dict[str, Callable[[Certificate], tuple[str, ...]]] = {
    "subject.cn": lambda names: (names.common_name,) if names.common_name else (),
    "san.dns": lambda names: names.dns_names,
    "san.email": lambda names: names.emails,
    "san.uri": lambda names: names.uris,
}


@dataclass(frozen=True, slots=True)
class NameRule:
    """The place of a user's name in a certificate: in the field `place`, after `prefix`, up to the first character that
    is in `until`.
    """

    place: str
    prefix: str = ""
    until: str = ""

    def name(self, certificate: Certificate) -> str | None:
        """Return the name at this place of a certificate; None if there is no name."""
        for candidate in _PLACES[self.place](certificate):
            if candidate.startswith(self.prefix):
                name = candidate.removeprefix(self.prefix)
                ends = [place for letter in self.until if (place := name.find(letter)) >= 0]
                return name[: min(ends)] if ends else name
        return None


def name_rules(text: str) -> tuple[NameRule, ...]:
    """Read rules such as "san.email until=@, subject.cn".

    Raises:
        OptionError: no place, an unknown place, or a word that is no rule.
    """
    allowed = f"one of {', '.join(_PLACES)}, each with prefix=... and until=... if need be, by commas"
    rules = []
    for part in text.split(","):
        place, *words = part.split() or [""]
        settings = dict(word.partition("=")[::2] for word in words)
        if place not in _PLACES or not settings.keys() <= {"prefix", "until"}:
            raise OptionError("tls-user", text, allowed)
        rules.append(NameRule(place, **settings))
    return tuple(rules)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The contexts and the certificate, from the last successful reading of the files."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: Certificate


class NodeTls:
    """The node's end of TLS, for incoming and outgoing connections.

    Args:
        config: the settings with the paths of the files; a certificate must be configured.
        clock: Unix seconds.

    Raises:
        OptionError: a file can't be read, or has the wrong content.
    """

    def __init__(self, config: NodeConfig, clock: Callable[[], float] = time) -> None:
        self._config, self._clock = config, clock
        self._rules = name_rules(config.tls_user)
        self._arena = memoryview(bytearray(SEALED_BYTES))
        self._last_signature = self._signature()
        self._loaded = self._load()

    @property
    def certificate(self) -> Certificate:
        """The node's own certificate."""
        return self._loaded.certificate

    def warning(self) -> str:
        """Return the log line about a certificate that has expired or will expire soon; empty if all is well."""
        certificate, now = self.certificate, self._clock()
        if problem := certificate.problem(datetime.fromtimestamp(now, UTC)):
            return f"the TLS certificate {certificate}: {problem}; clients will refuse it"
        days = certificate.seconds_left(now) / 86_400
        return f"the TLS certificate {certificate} expires in {days:.0f} days" if days * 86_400 < SOON_SECONDS else ""

    def refresh(self, *, on_request: bool = False) -> bool:
        """Read the files if they have changed or `on_request` is True; return True if the files read are now in use.

        Raises:
            OptionError: the files can't be used, and the former ones stay in use. Raised once for each change.
        """
        seen = self._signature()
        if seen == self._last_signature and not on_request:
            return False
        self._last_signature = seen
        fresh, now = self._load(), datetime.fromtimestamp(self._clock(), UTC)
        # A failed renewal must not replace a certificate that is still valid.
        if (problem := fresh.certificate.problem(now)) and not self.certificate.problem(now):
            raise OptionError("tls-certificate", self._config.tls_certificate, f"one that counts now: {problem}")
        self._loaded = fresh
        return True

    def accept(self, sock: socket, peer: str, plain_port: int | None) -> TlsSocket:
        """Return the server's end of TLS on an accepted socket."""
        loaded = self._loaded
        engine = TlsEngine(loaded.server, is_server=True, end_point=loaded.certificate.end_point)
        return TlsSocket(sock, engine, peer, self._arena, plain_port)

    def call(self, sock: socket, host: str, peer: str) -> TlsSocket:
        """Return the client's end of TLS on a socket to another node, whose certificate must contain the name
        `host`.
        """
        return TlsSocket(sock, TlsEngine(self._loaded.client, is_server=False, host=host), peer, self._arena)

    def user(self, sock: TlsSocket) -> str | None:
        """Return the name in the client's certificate; None if there is no certificate, or no name in it."""
        certificate = sock.engine.certificate() if self._config.tls_clients != "off" else None
        if certificate is None:
            return None
        names = read_der(certificate)
        return next((name for rule in self._rules if (name := rule.name(names))), None)

    def _load(self) -> _Loaded:
        config = self._config
        refuse_readable_by_others(Path(config.tls_key or config.tls_certificate), "tls-key")
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (server, client):
            context.minimum_version = VERSIONS[config.tls_minimum]
            context.options |= ssl.OP_NO_RENEGOTIATION
            load_pair(context, config.tls_certificate, config.tls_key or None, ("tls-certificate", "tls-key"))
            if config.tls_ca:
                load_trusted(context, config.tls_ca, "tls-ca")
        if not config.tls_ca:
            client.load_default_certs()
        server.verify_mode = VERIFY[config.tls_clients]
        return _Loaded(server, client, read_pem(Path(config.tls_certificate).read_bytes()))

    def _signature(self) -> tuple[tuple[int, int, int] | None, ...]:
        config = self._config
        files = (config.tls_certificate, config.tls_key, config.tls_ca)
        return tuple(_stat(Path(file)) if file else None for file in files)


def _stat(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)
