"""Passwords among arguments."""

from pathlib import Path

import pytest

from headwater.cli.arguments import hide_passwords, masked


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("get k --password s3cret --json", "get k --password ****** --json"),
        ("get k --password=s3cret", "get k --password=******"),
        ("copy a b --target-password x --cache-password=y", "copy a b --target-password * --cache-password=*"),
        ("tail --node couchbase://ann:s3@cret@h:1/b", "tail --node couchbase://ann:*******@h:1/b"),
        ("cluster status ann:pw@h:1", "cluster status ann:**@h:1"),
        ("invalidate couchbase://h/b redis://:pw@h:6379/0", "invalidate couchbase://h/b redis://:**@h:6379/0"),
        (
            "publish --kafka sasl.password=x --kafka=ssl.key.password=yz",
            "publish --kafka sasl.password=* --kafka=ssl.key.password=**",
        ),
        ("set user:1 a@b --password-file p", "set user:1 a@b --password-file p"),
        ("get k --password --password", "get k --password **********"),
    ],
)
def test_stars_stand_for_passwords_and_nothing_gets_shorter(given: str, shown: str) -> None:
    assert b" ".join(masked(given.encode().split(b" "))).decode() == shown


def test_a_process_without_passwords_is_left_alone() -> None:
    shown = Path("/proc/self/cmdline")
    before = shown.read_bytes()
    hide_passwords()
    assert shown.read_bytes() == before
