"""What `connect` takes, as a table that both clients share."""

from __future__ import annotations

import time
from collections.abc import Callable

from headwater.client.nodes import Settings
from headwater.client.routing import VBUCKETS_MAX, parse
from headwater.errors import OptionError
from headwater.protocol.handshake import MECHANISMS, Login

AGENT = "headwater"


def settings_for(
    connection: str,
    user: str | None = None,
    password: str | None = None,
    *,
    vbuckets: int | None = None,
    connect_timeout_seconds: float = 5.0,
    timeout_seconds: float = 10.0,
    agent: str = AGENT,
    mechanisms: tuple[str, ...] = MECHANISMS,
    clock: Callable[[], float] = time.monotonic,
) -> Settings:
    """Return checked settings.

    Args:
        connection: "couchbase://host[:port][,host...]/bucket".
        user, password: None for servers that let everybody in.
        vbuckets: how many the bucket has, for servers that hand out no map; None asks the server.
        connect_timeout_seconds: for a connection and its handshake.
        timeout_seconds: for one operation, with its retries.
        agent: how we call ourselves, shown by the server.
        mechanisms: of SASL, strongest first; leave PLAIN out where the password must not cross the network.
        clock: seconds, monotonic.

    Raises:
        OptionError: a value that can't be.
    """
    target = parse(connection)
    if vbuckets is not None and not 0 < vbuckets <= VBUCKETS_MAX:
        raise OptionError("vbuckets", vbuckets, f"a number of vbuckets, 1 to {VBUCKETS_MAX}")
    for name, seconds in (("connect_timeout_seconds", connect_timeout_seconds), ("timeout_seconds", timeout_seconds)):
        if not seconds > 0:
            raise OptionError(name, seconds, "a number of seconds above 0")
    if unknown := [mechanism for mechanism in mechanisms if mechanism not in MECHANISMS]:
        raise OptionError("mechanisms", unknown[0], f"one of {', '.join(MECHANISMS)}")
    login = Login(agent, target.bucket, user, password, mechanisms=tuple(mechanisms))
    return Settings(target, login, vbuckets, connect_timeout_seconds, timeout_seconds, clock)
