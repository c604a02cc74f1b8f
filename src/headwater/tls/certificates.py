"""The facts in a certificate: subject, issuer, names, and period of validity.

The `cryptography` library reads them, for display and for the names of users; OpenSSL decides about trust.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["Certificate", "read_der", "read_pem"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The facts of a certificate that people ask for.

    Attributes:
        subject, issuer: as text, RFC 4514.
        common_name: common name of the subject; empty if it has none.
        dns_names, addresses, emails, uris: the alternative names.
        begins, ends: the period of validity, UTC.
        end_point: hash of the certificate, which binds a login to the peer with this certificate (RFC 5929, 4.1).
    """

    subject: str
    issuer: str
    common_name: str
    dns_names: tuple[str, ...]
    addresses: tuple[str, ...]
    emails: tuple[str, ...]
    uris: tuple[str, ...]
    begins: datetime
    ends: datetime
    end_point: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        names = ", ".join((*self.dns_names, *self.addresses, *self.emails, *self.uris)) or "no names"
        days = f"valid from {self.begins:%Y-%m-%d %H:%M} to {self.ends:%Y-%m-%d %H:%M} UTC"
        return f'"{self.subject}" by "{self.issuer}" (for {names}; {days})'

    def problem(self, now: datetime) -> str:
        """Return the reason why the certificate is not valid at `now` (UTC); empty if it is valid."""
        if now < self.begins:
            return f"it counts from {self.begins:%Y-%m-%d %H:%M} UTC on"
        return f"it has expired on {self.ends:%Y-%m-%d %H:%M} UTC" if now >= self.ends else ""

    def seconds_left(self, now: float) -> float:
        """Return the seconds of validity left at a Unix time; below 0 if it has expired."""
        return self.ends.timestamp() - now


def read_der(data: bytes) -> Certificate:
    """Read a certificate in DER; ValueError if `data` is not a certificate."""
    from cryptography import x509  # noqa: PLC0415 - 50 ms, which only those pay who speak TLS

    return _facts(x509.load_der_x509_certificate(data))


def read_pem(data: bytes) -> Certificate:
    """Read the first certificate of a PEM file; ValueError if `data` has none."""
    from cryptography import x509  # noqa: PLC0415 - as above

    return _facts(x509.load_pem_x509_certificate(data))


def _facts(certificate: x509.Certificate) -> Certificate:
    from cryptography import x509  # noqa: PLC0415 - as above

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return Certificate(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        common_name=str(common[0].value) if common else "",
        dns_names=tuple(names.get_values_for_type(x509.DNSName)),
        addresses=tuple(map(str, names.get_values_for_type(x509.IPAddress))),
        emails=tuple(names.get_values_for_type(x509.RFC822Name)),
        uris=tuple(names.get_values_for_type(x509.UniformResourceIdentifier)),
        begins=certificate.not_valid_before_utc.astimezone(UTC),
        ends=certificate.not_valid_after_utc.astimezone(UTC),
        end_point=_end_point(certificate),
    )


def _end_point(certificate: x509.Certificate) -> bytes:
    """Return the hash of RFC 5929, 4.1: by the hash algorithm of the signature, or SHA-256 if that is MD5, SHA-1 or
    none.
    """
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - as above

    name = getattr(certificate.signature_hash_algorithm, "name", "sha256")
    return hashlib.new("sha256" if name in ("md5", "sha1") else name, certificate.public_bytes(Encoding.DER)).digest()
