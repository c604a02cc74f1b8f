"""The parameters of `connect`, which both clients share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypedDict

from headwater.client.nodes import ConnectSettings
from headwater.client.routing import parse
from headwater.errors import OptionError
from headwater.protocol.handshake import KV_FEATURES, MECHANISMS, MECHANISMS_KNOWN, Login
from headwater.tls.settings import TlsSettings
from headwater.wire.cluster_map import MAP_VBUCKETS_MAX
from headwater.wire.features import Feature

AGENT = "headwater"


class ConnectOptions(TypedDict, total=False):
    """The keywords of `connect`, which says what each is for."""

    vbuckets: int | None
    connect_timeout_seconds: float
    timeout_seconds: float
    agent: str
    mechanisms: tuple[str, ...] | None
    tls: TlsSettings | None
    xattrs: bool
    hello: bool


def settings_for(
    connection: str,
    user: str | None = None,
    password: str | None = None,
    *,
    vbuckets: int | None = None,
    connect_timeout_seconds: float = 5.0,
    timeout_seconds: float = 10.0,
    agent: str = AGENT,
    mechanisms: tuple[str, ...] | None = None,
    tls: TlsSettings | None = None,
    xattrs: bool = False,
    hello: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> ConnectSettings:
    """Return checked settings.

    Args:
        connection, user, password, and so on: as `connect` describes them.
        clock: seconds, monotonic.

    Raises:
        OptionError: an invalid value.
    """
    target = parse(connection)
    if tls is not None:
        if target.tls != TlsSettings():
            raise OptionError("tls", tls, "for couchbases:// without parameters, which say the same")
        target = replace(target, tls=tls)
    user, password = target.login(user, password)
    if vbuckets is not None and not 0 < vbuckets <= MAP_VBUCKETS_MAX:
        raise OptionError("vbuckets", vbuckets, f"a number of vbuckets, 1 to {MAP_VBUCKETS_MAX}")
    for name, seconds in (("connect_timeout_seconds", connect_timeout_seconds), ("timeout_seconds", timeout_seconds)):
        if not seconds > 0:
            raise OptionError(name, seconds, "a number of seconds above 0")
    if mechanisms is None:
        # PLAIN shows the password to whoever is at the other end, so that must be known to be the node.
        is_safe = target.tls is not None and target.tls.is_verified
        mechanisms = MECHANISMS_KNOWN if is_safe else MECHANISMS
    if unknown_mechanisms := [mechanism for mechanism in mechanisms if mechanism not in MECHANISMS_KNOWN]:
        raise OptionError("mechanisms", unknown_mechanisms[0], f"one of {', '.join(MECHANISMS_KNOWN)}")
    features = KV_FEATURES * hello + (Feature.XATTR,) * xattrs
    login = Login(agent, target.bucket, user, password, mechanisms=tuple(mechanisms), features=features)
    return ConnectSettings(target, login, vbuckets, connect_timeout_seconds, timeout_seconds, clock)
