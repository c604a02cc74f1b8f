import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.kv import Document, DocumentMeta
from headwater.console import editing
from headwater.console.editing import EDIT_BYTES_MAX, Form
from headwater.errors import OptionError

META = DocumentMeta(1, 0, 0, 1, 0, False)


def through_a_browser(text: str) -> str:
    """A text area sends all line ends as CR LF (HTML, "constructing the form data set")."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n")


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_a_value_comes_back_from_a_form_byte_for_byte(value: bytes) -> None:
    shown = editing.shown_document(Document(b"k", value, 1), META)
    assert shown.editable
    assert editing.read_field(through_a_browser(shown.text), shown.form) == value


@given(st.binary(min_size=1, max_size=250) | st.text(min_size=1, max_size=60).map(str.encode))
def test_a_key_comes_back_from_a_field_of_one_line(key: bytes) -> None:
    text, form = editing.key_field(key)
    assert not {"\n", "\r"} & set(text)
    assert editing.read_key(text, form) == key


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (b"", Form.TEXT),
        (b'{"a": 1}\n', Form.TEXT),
        ("gr\u00fc\u00dfe \U0001f468\u200d\U0001f469".encode(), Form.TEXT),
        (b"a\r\nb", Form.HEX),
        (b"\x00", Form.HEX),
        (b"\x1b[31m", Form.HEX),
        (b"\xff\xfe", Form.HEX),
        ("abc\u202edef".encode(), Form.HEX),
    ],
)
def test_only_what_a_text_field_keeps_is_shown_as_text(value: bytes, form: Form) -> None:
    assert editing.form_for(value) is form


def test_text_may_be_shown_in_digits_and_digits_never_as_text() -> None:
    assert editing.shown_document(Document(b"k", b"ab", 1), META, Form.HEX).text == "61 62"
    assert editing.shown_document(Document(b"k", b"\xff", 1), META, Form.TEXT).text == "ff"
    assert editing.shown_document(Document(b"k", b"\x00\xff\x7f", 1), META, Form.BASE64).text == "AP9/"


@given(st.binary(max_size=200))
def test_base64_comes_back_byte_for_byte(value: bytes) -> None:
    text = editing.written(value, Form.BASE64)
    assert editing.read_field(through_a_browser(text), Form.BASE64) == value
    with pytest.raises(OptionError, match="base64"):
        editing.read_field(text + "*", Form.BASE64)


def test_json_is_shown_for_reading_and_edited_as_it_is() -> None:
    value = b'{"a":1,"name":"gr\\u00fc\\u00dfe"}'
    shown = editing.shown_document(Document(b"k", value, 1), META)
    assert (shown.text.encode(), shown.json) == (value, '{\n  "a": 1,\n  "name": "gr\u00fc\u00dfe"\n}')
    assert editing.shown_document(Document(b"k", shown.json.encode(), 1), META).json is None, "it stands there already"
    assert editing.shown_document(Document(b"k", b"[" + b"0," * EDIT_BYTES_MAX + b"0]", 1), META).json is None


def test_long_attributes_are_cut_with_their_size() -> None:
    told = editing.shown_document(Document(b"k", b"v", 1), META, xattrs={"a": b'"' + b"x" * 5000 + b'"'}).xattrs["a"]
    assert told.endswith("x\u2026 (906 characters more)")


def test_a_large_value_is_shown_in_part_and_not_edited() -> None:
    shown = editing.shown_document(Document(b"k", "\u00fc".encode() * EDIT_BYTES_MAX, 1), META)
    assert not shown.editable
    assert shown.text == "\u00fc" * (editing.SHOWN_BYTES_MAX // 2)


def test_digits_that_are_none_and_too_many_of_them_are_refused() -> None:
    with pytest.raises(OptionError, match="pairs of hexadecimal digits"):
        editing.read_field("6", Form.HEX)
    with pytest.raises(OptionError, match="at most 1048576 bytes"):
        editing.read_field("a" * (EDIT_BYTES_MAX + 1), Form.TEXT)
    with pytest.raises(OptionError, match="1 to 250 bytes"):
        editing.read_key("", Form.TEXT)


def test_digits_may_stand_in_any_lines_and_groups() -> None:
    assert editing.read_field(" 00ff\r\n 7F ", Form.HEX) == b"\x00\xff\x7f"
    assert editing.written(bytes(range(17)), Form.HEX).splitlines()[1] == "10"
