"""The CA of first steps: what it signs is taken by TLS, and nothing is overwritten or left open to others."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from headwater.errors import OptionError
from headwater.tls.certificates import read_pem
from headwater.tls.making import Authority, Pair


def test_it_signs_nodes_and_users_also_when_it_is_opened_again(tmp_path: Path) -> None:
    Authority.make(tmp_path, "orders")
    files = Pair(tmp_path / "a.pem", tmp_path / "a.key")
    Authority.open(tmp_path).issue(files, "a", hosts=("a.example", "10.0.0.1"))
    told = read_pem(files.certificate.read_bytes())
    assert (told.issuer, told.dns_names, told.addresses) == ("CN=orders CA", ("a.example",), ("10.0.0.1",))


def test_keys_are_their_owners_alone(tmp_path: Path) -> None:
    Authority.make(tmp_path)
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca.pem").stat().st_mode) == 0o644


def test_nothing_is_written_over_unless_that_was_asked_for(tmp_path: Path) -> None:
    made = Authority.make(tmp_path)
    with pytest.raises(OptionError, match="it is there already"):
        Authority.make(tmp_path)
    files = Pair(tmp_path / "a.pem", tmp_path / "a.key")
    made.issue(files, "a")
    before = files.certificate.read_bytes()
    with pytest.raises(OptionError, match="it is there already"):
        made.issue(files, "a")
    made.issue(files, "a", replace=True)
    assert files.certificate.read_bytes() != before


def test_a_folder_without_a_ca_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"a folder with ca.pem and ca.key \(No such file"):
        Authority.open(tmp_path)
    (tmp_path / "ca.pem").write_text("text")
    with pytest.raises(OptionError, match=r"a folder with ca\.pem and ca\.key"):
        Authority.open(tmp_path)
