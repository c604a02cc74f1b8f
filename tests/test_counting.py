"""Numbers of things, as people read them."""

from headwater.counting import several


def test_one_thing_has_no_s_and_thousands_have_their_comma() -> None:
    assert (several(1, "node"), several(1024, "vbucket"), several(0, "key")) == ("1 node", "1,024 vbuckets", "0 keys")
