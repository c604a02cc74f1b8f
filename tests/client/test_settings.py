"""The arguments that `connect` takes, and those that it refuses before anything is sent."""

import inspect
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.client import aio, blocking
from headwater.client.routing import Address
from headwater.client.settings import settings_for
from headwater.errors import OptionError

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("connect", [blocking.connect, aio.connect], ids=["blocking", "aio"])
def test_a_setting_that_does_not_exist_is_refused_with_the_one_that_was_meant(connect: Callable[..., object]):
    with pytest.raises(OptionError, match=r'"timeout": 3 is not taken under this name; did you mean "timeout_seconds"'):
        connect("couchbase://127.0.0.1/b", timeout=3)


@pytest.mark.parametrize("connect", [blocking.connect, aio.connect], ids=["blocking", "aio"])
def test_connect_takes_every_setting_by_its_name_with_the_same_default(connect: Callable[..., object]):
    known = {name: parameter.default for name, parameter in inspect.signature(settings_for).parameters.items()}
    given = {name: parameter.default for name, parameter in inspect.signature(connect).parameters.items()}
    assert known.items() - given.items() == {("clock", time.monotonic)}


@pytest.mark.timeout(900)  # a first run of the type checker reads the whole library
def test_a_misspelt_setting_does_not_pass_the_type_checker(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        "from headwater import client\n"
        'with client.connect("couchbase://127.0.0.1/b", timeout=3) as bucket:\n'
        "    bucket.changes(pateince_seconds=3)\n"
        "    bucket.batches(batch_bytes='many')\n"
        '    bucket.changes(until="now", patience_seconds=None)\n'
    )
    asked = [sys.executable, "-m", "mypy", "--strict", str(program)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=840, check=False)
    # By its name alone: a file that is as it was is told of by the path of the run before, out of the checker's cache.
    wrong = [int(line) for line in re.findall(r"program\.py:(\d+): error", done.stdout)]
    assert wrong == [2, 3, 4], done.stdout
