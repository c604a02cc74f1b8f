from headwater.client.lines import SHOWN_BYTES_MAX, line, text


def test_a_change_is_one_line_whatever_its_value_holds() -> None:
    assert line("512:7", "mutation", "k", value=b"a\nb\xff") == "512:7 mutation k a\\nb\\xff"
    assert line(3, "delete", "k") == "3 delete k"


def test_control_characters_reach_no_terminal() -> None:
    told = line("1:2", "mutation", text(b"k\x1b[31m\n"), value="\x1b]0;title\x07 \x9b1m\x7f\tend\u202e".encode())
    assert told == r"1:2 mutation k\x1b[31m\n \x1b]0;title\x07 \x9b1m\x7f\tend\u202e"


def test_a_long_value_is_cut_and_says_by_how_much() -> None:
    assert line("k", value=b"x" * SHOWN_BYTES_MAX) == "k " + "x" * SHOWN_BYTES_MAX
    assert line("k", value=b"x" * (SHOWN_BYTES_MAX + 3)).endswith("x... (3 bytes more)")


def test_bytes_that_are_no_text_are_escaped_and_others_kept() -> None:
    assert text("gr\u00fc\u00dfe".encode() + b"\x80") == "gr\u00fc\u00dfe\\x80"
