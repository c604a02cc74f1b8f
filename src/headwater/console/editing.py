"""Documents in forms: every byte survives the way through a browser and back, or the document can't be edited.

A text field of HTML changes its content: all line ends become CR LF. So a value is edited as text only if it is UTF-8
without a carriage return and without control characters; all others are shown and edited as hexadecimal digits.
"""

from __future__ import annotations

import unicodedata
from base64 import b64decode, encodebytes
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headwater.client.kv import Document, DocumentMeta, as_key, as_part
from headwater.client.lines import printable
from headwater.console.json_view import indented
from headwater.errors import OptionError

EDIT_BYTES_MAX = 1 << 20
"""The largest document that can be edited here; larger ones are shown in part."""
SHOWN_BYTES_MAX = 64 << 10
XATTR_CHARACTERS_MAX = 4096
HEX_GROUPS = 16
_KEPT_CONTROLS = frozenset("\n\t")
_TURNING = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Form(StrEnum):
    """The notation of bytes in a field."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"

    @classmethod
    def of(cls, text: str) -> Form:
        """Return the form with this name; TEXT if there is none."""
        return next((each for each in cls if each == text), cls.TEXT)

    @property
    def described(self) -> str:
        """The form in words."""
        return {Form.TEXT: "as text", Form.HEX: "as hexadecimal digits", Form.BASE64: "as base64"}[self]


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """A document for a page.

    Attributes:
        form, text: the value as it stands in the field; cut to its beginning where it can't be edited.
        editable: True if it is whole, and can be sent back. shown_bytes: number of the value's bytes in the field.
        json: indented text for reading; None if it would be the same as the field's text.
        xattrs: the extended attributes, by name their JSON text; long ones cut.
    """

    key: bytes
    value: bytes
    meta: DocumentMeta
    form: Form
    text: str
    editable: bool
    shown_bytes: int
    json: str | None
    xattrs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DocumentForm:
    """The fields of a document's form: as the document was read, or as a user left them when it could not be stored.

    Attributes:
        text, form: the value, and its notation.
        cas: of the version that the user read, 0 for none. A draft keeps it: with the CAS of a newer version the next
            attempt would replace a version that the user has not seen.
        flags, expiry, seconds: as typed.
    """

    text: str = ""
    form: Form = Form.TEXT
    cas: int = 0
    flags: str = "0"
    expiry: str = ""
    seconds: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> DocumentForm:
        """Return the form with the fields as they were sent, valid or not."""
        flags, expiry, seconds = (fields.get(name, "") for name in ("flags", "expiry", "seconds"))
        cas = number_in(fields.get("cas", "")) or 0
        return cls(fields.get("value", ""), Form.of(fields.get("value_form", "")), cas, flags, expiry, seconds)

    @classmethod
    def of_document(cls, document: ShownDocument) -> DocumentForm:
        """Return the form for a document as it was read."""
        return cls(document.text, document.form, document.meta.cas, str(document.meta.flags))


def number_in(text: str) -> int | None:
    """Return the number in a field of a form, 0 for an empty one; None if it is no whole number."""
    text = text.strip() or "0"
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


def shown_document(
    document: Document, meta: DocumentMeta, form: Form | None = None, xattrs: Mapping[str, bytes] | None = None
) -> ShownDocument:
    """Return a document for a page, in the requested form if its value allows it."""
    text_form = form if form in (Form.HEX, Form.BASE64) else form_for(document.value)
    editable = len(document.value) <= EDIT_BYTES_MAX
    part = document.value if editable else document.value[:SHOWN_BYTES_MAX]
    text = written(part, text_form)
    readable = indented(document.value) if len(document.value) <= SHOWN_BYTES_MAX and form is None else None
    if readable == text:
        readable = None
    texts = {name: _shortened(printable(value.decode(errors="replace"))) for name, value in (xattrs or {}).items()}
    return ShownDocument(document.key, document.value, meta, text_form, text, editable, len(part), readable, texts)


def _shortened(text: str) -> str:
    hidden_characters = len(text) - XATTR_CHARACTERS_MAX
    return (
        text
        if hidden_characters <= 0
        else f"{text[:XATTR_CHARACTERS_MAX]}\u2026 ({hidden_characters:,} characters more)"
    )


def form_for(data: bytes) -> Form:
    """Return the form in which bytes come back from a browser unchanged."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Form.HEX
    return Form.HEX if any(map(_is_unsafe, text)) else Form.TEXT


def _is_unsafe(character: str) -> bool:
    """Return True if a field would change a character, or if it turns the direction of writing and so hides text."""
    if unicodedata.category(character) == "Cc":
        return character not in _KEPT_CONTROLS
    return character in _TURNING


def written(data: bytes, form: Form) -> str:
    """Return bytes in the notation of a field; a text that was cut inside a character loses that character."""
    if form is Form.TEXT:
        return data.decode(errors="ignore")
    if form is Form.BASE64:
        return encodebytes(data).decode().rstrip("\n")
    lines = (data[at : at + HEX_GROUPS] for at in range(0, len(data), HEX_GROUPS))
    return "\n".join(line.hex(" ") for line in lines)


def read_field(text: str, form: Form) -> bytes:
    """Return the bytes in a field; the browser's line ends become line feeds again.

    Raises:
        OptionError: no hexadecimal digits, no base64, or too many bytes.
    """
    if form is Form.TEXT:
        data = text.replace("\r\n", "\n").replace("\r", "\n").encode()
    elif form is Form.BASE64:
        try:
            data = b64decode("".join(text.split()), validate=True)
        except ValueError:
            raise OptionError("value", text[:40], "base64: AP9/ for 00 ff 7f") from None
    else:
        try:
            data = bytes.fromhex("".join(text.split()))
        except ValueError:
            raise OptionError("value", text[:40], "pairs of hexadecimal digits: 00 ff 7f") from None
    if len(data) > EDIT_BYTES_MAX:
        raise OptionError(
            "value", f"{len(data)} bytes", f"at most {EDIT_BYTES_MAX} bytes here; headwater set takes more"
        )
    return data


def read_key(text: str, form: Form) -> bytes:
    """Return a document's key from a field of one line.

    Raises:
        OptionError: it is empty, too long, or not in this form.
    """
    return as_key(text.encode() if form is Form.TEXT else read_field(text, form))


def read_part(text: str, form: Form) -> bytes:
    """Return a part of a key, which may be empty; otherwise as `read_key`."""
    return as_part("prefix", text.encode() if form is Form.TEXT else read_field(text, form))


def key_field(key: bytes) -> tuple[str, Form]:
    """Return a key in the notation of a one-line field, and its form; such a field drops line ends."""
    form = Form.HEX if b"\n" in key or b"\t" in key else form_for(key)
    return (written(key, form) if form is Form.TEXT else key.hex()), form
