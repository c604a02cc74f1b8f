"""The options of a read or a write, checked and typed, for reader, planner and writer.

Spark passes options as strings, in a mapping that ignores case, together with a few options of its own (`SPARKS_OWN`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headwater.errors import OptionError
from headwater.options import Option, nearest
from headwater.spark.options import OPTIONS, WRITE_OPTIONS, SourceSettings, WriteSettings

__all__ = ["SourceSettings", "WriteSettings", "parse", "parse_write"]

SPARKS_OWN = frozenset({"path", "paths", "checkpointlocation"})
"""Options that Spark itself adds; `path` is the argument of `load(...)`, taken for `url`."""
OF_TABLES = frozenset({"owner"})
"""Properties that Spark passes as options when a table is created in its catalog."""
VIEW_INSTEAD = (
    "possible: of a table in its catalog Spark gives a Python source no options when it is read; "
    "CREATE TEMPORARY VIEW name USING dcp OPTIONS (url 'couchbase://...') makes one that can be"
)


def parse(user_options: Mapping[str, str], *, streaming: bool | None = None) -> SourceSettings:
    """Return the user's options, checked and typed.

    Args:
        user_options: option names (any case) and texts, in Spark's form.
        streaming: True for `readStream`, False for `read`; some options fit only one of them. None: not known yet.

    Raises:
        OptionError: an unknown option, an invalid value, or an option that does not fit this kind of read.
    """
    values = {}
    for option, text in _recognised(user_options, OPTIONS):
        if streaming is not None and option.uses == ("batch" if streaming else "streaming"):
            kind = "streaming" if streaming else "batch"
            raise OptionError(option.camel, text, f"for a {kind} read; only a {option.uses} read takes this option")
        values[option.field] = option.parse(text, option.camel)
    _require_url(values, "load(url)")
    _split_login(values)
    settings = SourceSettings(**values)
    if settings.scope is not None and settings.collections is not None:
        raise OptionError("scope", settings.scope, "given without collections: it is one or the other")
    if settings.undo_folder is not None and settings.min_persisted is not None:
        allowed = "possible together with minPersisted: a vbucket that rolled back is read up to its end"
        raise OptionError("undoFolder", settings.undo_folder, allowed)
    if streaming is False and settings.starting_offsets.latest:
        raise OptionError("startingOffsets", "latest", "possible for a batch read, which would be empty")
    return settings


def parse_write(user_options: Mapping[str, str]) -> WriteSettings:
    """Return the user's options of a write, checked and typed; arguments and errors are those of `parse`."""
    values = {
        option.field: option.parse(text, option.camel) for option, text in _recognised(user_options, WRITE_OPTIONS)
    }
    _require_url(values, "save(url)")
    _split_login(values)
    return WriteSettings(**values)


def _split_login(values: dict[str, Any]) -> None:
    """Move name and password out of the url, since the url is shown, logged and passed to tasks."""
    from headwater.client.routing import parse as parse_url  # noqa: PLC0415 -- Spark loads the source in every session

    if "@" in values["url"]:
        target = parse_url(values["url"])
        values["user"], values["password"] = target.login(values.get("user"), values.get("password"))
        values["url"] = target.url


def _require_url(values: Mapping[str, object], otherwise: str) -> None:
    if "url" not in values:
        raise OptionError("url", "", f"{OPTIONS[0].allowed}; give it as an option or as {otherwise}")


def _recognised(user_options: Mapping[str, str], options: tuple[Option, ...]) -> Iterator[tuple[Option, str]]:
    lowered = {name.lower(): text for name, text in user_options.items()}
    by_name = {option.camel.lower(): option for option in options}
    if "path" in lowered:
        lowered.setdefault("url", lowered["path"])
    if lowered.keys() >= OF_TABLES:
        raise OptionError("url", "CREATE TABLE ... USING dcp", VIEW_INSTEAD)
    for name, text in lowered.items():
        if name in by_name:
            yield by_name[name], text
        elif name not in SPARKS_OWN:
            names = [option.camel for option in options]
            near, choices = nearest(name, names), ", ".join(names)
            hint = f" (did you mean {near}?)" if near else ""
            raise OptionError(name, text, f"known to the dcp source{hint}; its options are {choices}")
