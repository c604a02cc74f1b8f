"""Creates a certificate authority for first steps and tests, and its certificates: EC P-256 keys, SHA-256, PEM files.

It supports no revocation and no intermediate authorities: users who need these have their own tools, and provide the
files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.errors import OptionError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["CA_DAYS", "DAYS", "Authority", "Pair"]

CA_DAYS, DAYS = 3650, 397
_CLOCKS_DIFFER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A CA in a folder: `ca.pem`, for everybody, and `ca.key`, which stays secret.

    Args:
        certificate, key: the CA's own.
    """

    def __init__(self, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
        self._certificate, self._key = certificate, key

    @classmethod
    def make(cls, folder: Path, name: str = "headwater", days: int = CA_DAYS) -> Authority:
        """Create a CA in a folder.

        Raises:
            OptionError: the folder has a CA already, or can't be written.
        """
        from cryptography import x509  # noqa: PLC0415 - 50 ms, which nobody else pays
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{name} CA")])
        usage = _usage(key_cert_sign=True, crl_sign=True)
        builder = _builder(subject, subject, key.public_key(), datetime.now(UTC), timedelta(days=days))
        # It may sign certificates, and none of them another one: there are no CAs below it.
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        signed = builder.add_extension(identifier, critical=False).sign(key, _hash())
        _write_pair(Pair(folder / "ca.pem", folder / "ca.key"), [signed], key)
        return cls(signed, key)

    @classmethod
    def open(cls, folder: Path) -> Authority:
        """Open the CA of a folder.

        Raises:
            OptionError: the folder has no CA, or the CA can't be read.
        """
        from cryptography import x509  # noqa: PLC0415 - as above
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

        try:
            certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise OptionError(
                "dir", str(folder), f"a folder with ca.pem and ca.key ({reason}); headwater tls ca makes them"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise OptionError("dir", str(folder), "a folder with a CA made by headwater tls ca (an EC key)")
        return cls(certificate, key)

    def issue(
        self,
        files: Pair,
        common_name: str,
        *,
        hosts: tuple[str, ...] = (),
        emails: tuple[str, ...] = (),
        uris: tuple[str, ...] = (),
        begins: datetime | None = None,
        lifetime: timedelta = timedelta(days=DAYS),
        replace: bool = False,
    ) -> None:
        """Create a certificate for a node (its host names and addresses) or a user (its name), with a new key.

        Args:
            begins: begin of the validity; None for now.
            replace: True to overwrite existing files.

        Raises:
            OptionError: a file exists already, or can't be written.
        """
        from cryptography import x509  # noqa: PLC0415 - as above
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
        names = [*map(_host, hosts), *map(x509.RFC822Name, emails), *map(x509.UniformResourceIdentifier, uris)]
        builder = _builder(subject, self._certificate.subject, key.public_key(), begins or datetime.now(UTC), lifetime)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(digital_signature=True), critical=True)
        # A node calls other nodes as well: its certificate is a server's and a client's.
        both = [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both if hosts else both[1:]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        _write_pair(files, [builder.sign(self._key, _hash())], key, replace=replace)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Any, begins: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    from cryptography import x509  # noqa: PLC0415 - as above

    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    # Backdated: a machine whose clock is behind would refuse a certificate that was made just now.
    return builder.not_valid_before(begins - _CLOCKS_DIFFER).not_valid_after(begins + lifetime)


def _host(text: str) -> x509.GeneralName:
    from cryptography import x509  # noqa: PLC0415 - as above

    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(**flags: bool) -> x509.KeyUsage:
    from cryptography import x509  # noqa: PLC0415 - as above

    none = dict.fromkeys(("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"), False)
    none |= dict.fromkeys(("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(**none | flags)


def _hash() -> Any:
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - as above

    return hashes.SHA256()


def _write_pair(
    files: Pair, chain: list[x509.Certificate], key: EllipticCurvePrivateKey, *, replace: bool = False
) -> None:
    """Write the key, readable by its owner only, and the certificate chain; each file completely or not at all."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as above

    pem = serialization.Encoding.PEM
    kind, open_key = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    for path, mode, data in (
        # The key first: a certificate without its key would be found, and fail every connection.
        (files.key, 0o600, key.private_bytes(pem, kind, open_key)),
        (files.certificate, 0o644, b"".join(each.public_bytes(pem) for each in chain)),
    ):
        _write(path, mode, data, replace=replace)


def _write(path: Path, mode: int, data: bytes, *, replace: bool) -> None:
    if path.exists() and not replace:
        raise OptionError("dir", str(path), "a new file: it is there already")
    new_file = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new_file.unlink(missing_ok=True)
        with os.fdopen(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # or a power cut leaves an empty file under the name
        new_file.replace(path)
    except OSError as error:
        raise OptionError("dir", str(path), f"a file that can be written ({error.strerror})") from None
