import pytest

from headwater.errors import OptionError
from headwater.pipelines.table_names import parse_name, quoted


def test_a_part_between_backticks_may_have_dots() -> None:
    assert parse_name("hive.`my.shop`.orders") == ("hive", "my.shop", "orders")
    assert quoted(("a`b", "c")) == "`a``b`.`c`"


@pytest.mark.parametrize("text", ["", "a..b", "a.", "`a"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="a part with a dot stands in backticks"):
        parse_name(text)
