"""A byte of a mapped file that can't be read is told by file and place."""

from headwater.node.storage.unreadable import line_of

MAPS = """\
7f0000000000-7f0000010000 r--s 00000000 fe:00 131  /data/0000000001.log
7f0000010000-7f0000020000 r--s 00002000 fe:00 132  /data/of two words/0000000002.log (deleted)
7f0000020000-7f0000030000 rw-p 00000000 00:00 0
"""


def test_the_line_names_the_file_and_the_byte_in_it() -> None:
    assert line_of(0x7F0000000100, MAPS).startswith("error: /data/0000000001.log: byte 256 can't be read")
    second = line_of(0x7F0000011000, MAPS)
    assert "error: /data/of two words/0000000002.log (deleted): byte 12288 can't be read" in second


def test_an_address_of_no_file_is_told_as_well() -> None:
    assert line_of(0x7F0000020000, MAPS).startswith("error: a mapped file can't be read")
