"""What `connect` takes, and what it refuses before anything is sent."""

import pytest

from headwater.client.routing import Address
from headwater.client.settings import settings_for
from headwater.errors import OptionError


def test_what_was_told_is_kept():
    made = settings_for("couchbase://a:1,b/beer", "user", "pencil", vbuckets=64, timeout_seconds=3.0, agent="me")
    assert made.target.seeds == (Address("a", 1), Address("b", 11210))
    assert (made.login.agent, made.login.bucket, made.login.user, made.login.password) == (
        "me",
        "beer",
        "user",
        "pencil",
    )
    assert (made.vbuckets, made.connect_timeout_seconds, made.timeout_seconds) == (64, 5.0, 3.0)


def test_a_password_is_never_shown():
    assert "pencil" not in repr(settings_for("a", "user", "pencil"))


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("vbuckets", 0, "a number of vbuckets, 1 to 65536"),
        ("vbuckets", 65537, "a number of vbuckets, 1 to 65536"),
        ("connect_timeout_seconds", 0.0, "a number of seconds above 0"),
        ("timeout_seconds", -1.0, "a number of seconds above 0"),
        ("timeout_seconds", float("nan"), "a number of seconds above 0"),
        ("mechanisms", ("CRAM-MD5",), "one of SCRAM-SHA512, SCRAM-SHA256, SCRAM-SHA1, PLAIN"),
    ],
)
def test_a_value_that_can_not_be_is_refused_with_what_may(option: str, value: object, allowed: str):
    with pytest.raises(OptionError, match=allowed) as caught:
        settings_for("a", **{option: value})
    assert caught.value.name == option
