"""The page that a request comes from, as browsers tell it."""

import pytest

from headwater.protocol.browser import is_own, name_of


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:11210", "localhost"),
        ("[::1]:11210", "[::1]"),
        ("[::1]", "[::1]"),
        ("db.example:http", "db.example:http"),
        ("", ""),
    ],
)
def test_the_name_in_a_host_field_is_without_its_port(host: str, name: str) -> None:
    assert name_of(host) == name


@pytest.mark.parametrize(
    ("origin", "site", "own"),
    [
        (None, None, True),  # no browser
        ("http://db:11210", "same-origin", True),
        (None, "none", True),  # typed, or a bookmark
        ("http://db:11210", None, True),
        ("https://db:11210", None, False),
        ("http://db", None, False),
        ("http://evil.example", "cross-site", False),
        ("null", None, False),
        (None, "same-site", False),
        (None, "cross-site", False),
        ("http://db:11210", "cross-site", False),
    ],
)
def test_only_a_page_of_the_host_itself_or_none_at_all_is_its_own(
    origin: str | None, site: str | None, *, own: bool
) -> None:
    assert is_own("db:11210", origin, site) is own


def test_a_page_that_came_by_tls_is_of_https() -> None:
    assert is_own("db:11207", "https://db:11207", "same-origin", "https")
    assert not is_own("db:11207", "http://db:11207", "same-origin", "https")
