"""A throw-away CA for tests, and certificates that it has signed: of nodes on this machine, and of users.

    certificates = Certificates(folder)
    client.connect(url, tls=TlsSettings(trust_store=certificates.trust_store, certificate=..., key=...))

All of them are valid from now on; `issue` also makes invalid ones, and certificates for other names.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

from headwater.tls.making import Authority, Pair

__all__ = ["HOSTS", "Certificates"]

HOSTS = ("localhost", "127.0.0.1", "::1")


class Certificates:
    """The CA in a folder, and the certificate `node`.

    Attributes:
        folder: folder of all files. node: the files of a node on this machine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = Authority.make(folder, folder.name)
        self.node: Final = self.issue("node", HOSTS)

    @property
    def trust_store(self) -> str:
        """The path of the CA's certificate."""
        return str(self.folder / "ca.pem")

    @property
    def options(self) -> dict[str, object]:
        """The options of `serve` for a node with the certificate `node`."""
        files = {"tls_certificate": self.node.certificate, "tls_key": self.node.key, "tls_ca": self.trust_store}
        return {**files, "tls_port": 0, "tls_clients": "optional"}

    def user(self, name: str) -> Pair:
        """Make a certificate for a user."""
        return self.issue(name)

    def issue(self, name: str, hosts: tuple[str, ...] = (), **others: object) -> Pair:
        """Make a certificate, replacing one of the same name.

        Args:
            others: as for `tls.making.Authority.issue`.
        """
        files = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        self._authority.issue(files, name, hosts=hosts, replace=True, **others)  # type: ignore[arg-type]
        return files

    def expired(self, name: str, hosts: tuple[str, ...] = HOSTS) -> Pair:
        """Make a certificate that has expired a minute ago."""
        return self.issue(name, hosts, lifetime=timedelta(minutes=-1))
