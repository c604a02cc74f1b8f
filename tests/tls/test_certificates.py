"""Certificates, as people are told of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headwater.testing.certificates import Certificates
from headwater.tls.certificates import read_der, read_pem


def test_it_says_whose_it_is_who_signed_it_for_which_names_and_until_when(certificates: Certificates) -> None:
    told = read_pem(certificates.node.certificate.read_bytes())
    assert told.common_name == "node" and told.dns_names == ("localhost",) and told.addresses == ("127.0.0.1", "::1")
    assert str(told).startswith(f'"CN=node" by "{told.issuer}" (for localhost, 127.0.0.1, ::1; valid from 20')


def test_other_kinds_of_names_are_told_too(certificates: Certificates) -> None:
    made = certificates.issue("ann", emails=("ann@example.com",), uris=("urn:ann",))
    told = read_pem(made.certificate.read_bytes())
    assert (told.emails, told.uris) == (("ann@example.com",), ("urn:ann",))
    assert "for ann@example.com, urn:ann;" in str(told)
    assert "for no names;" in str(read_pem(certificates.user("bob").certificate.read_bytes()))


def test_it_counts_from_when_to_when_it_says(certificates: Certificates) -> None:
    told = read_pem(certificates.node.certificate.read_bytes())
    assert told.problem(datetime.now(UTC)) == ""
    assert told.problem(told.begins - timedelta(seconds=1)).startswith("it counts from ")
    assert told.problem(told.ends).startswith("it has expired on ")
    assert told.seconds_left(told.ends.timestamp() - 5) == 5
    old = read_pem(certificates.expired("old").certificate.read_bytes())
    assert old.problem(datetime.now(UTC)).startswith("it has expired on ")


def test_what_is_no_certificate_is_refused() -> None:
    for read in (read_der, read_pem):
        with pytest.raises(ValueError, match=r".+"):
            read(b"nothing of the kind")
