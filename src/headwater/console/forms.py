"""Reads forms of the console by the options that work declares; templates/forms.html shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from headwater.client.routing import Address, Target, parse
from headwater.cluster.work import NODE, DeclaredWork
from headwater.errors import OptionError

if TYPE_CHECKING:
    from headwater.options import Option

__all__ = ["Fields", "addresses_of", "work_of"]

Fields: TypeAlias = Mapping[str, str]
AGAIN = "again"
"""The field of a form in which a secret is typed for the second time."""


def work_of(kind: type[DeclaredWork], fields: Fields, target: Target) -> DeclaredWork:
    """Return the work that a form's fields describe; an empty field means the option's default.

    Raises:
        OptionError: an invalid value, or a required one is missing.
    """
    values = {option.field: _value(option, _text(option, fields), target) for option in kind.options()}
    return kind(**values)


def _text(option: Option, fields: Fields) -> str:
    """Return the text of a field, without blanks around it; the text of a secret unchanged.

    Raises:
        OptionError: a secret was not typed twice alike.
    """
    text = fields.get(option.field, "")
    if option.secret and text != fields.get(AGAIN, ""):
        raise OptionError(option.field, "...", "the same both times")
    return text if option.secret else text.strip()


def _value(option: Option, text: str, target: Target) -> Any:
    if option.kind is bool:
        return text == (option.flag.partition("/")[0] or "yes")
    if not text:
        if option.default is ...:
            raise option.refusal(text, option.field)
        return option.default
    if option.metavar == NODE:
        nodes = addresses_of(option.field, text, target)
        if not option.many and len(nodes) != 1:
            raise option.refusal(text, option.field)
        return nodes if option.many else nodes[0]
    if option.many:
        return tuple(option.parse(part, option.field) for part in text.replace(",", " ").split())
    return option.parse(text, option.field)


def addresses_of(name: str, text: str, target: Target) -> tuple[Address, ...]:
    """Read addresses separated by blanks or commas; with TLS the ports are those for TLS, as in the console's own URL.

    Raises:
        OptionError: one of them has a bucket or a login.
    """
    addresses: list[Address] = []
    for part in text.replace(",", " ").split():
        if set(part) & set("/@?"):
            raise OptionError(name, part, "host:port, without a bucket or a login")
        addresses += parse(("couchbases://" if target.tls is not None else "couchbase://") + part).seeds
    return tuple(dict.fromkeys(addresses))
