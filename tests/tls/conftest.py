"""Certificates for all tests here: making keys takes a moment."""

from __future__ import annotations

import pytest

from headwater.testing.certificates import Certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))
