from headwater.pipelines.table import KEPT
from headwater.pipelines.unfold import Unfolding, column_of


def test_a_field_becomes_a_column_of_its_name() -> None:
    known = Unfolding()
    assert known.learn({"carrier": "string"}, {"key": "string"}, KEPT) == {"carrier": "string"}
    assert known.learn({"carrier": "string"}, {"key": "string", "carrier": "string"}, KEPT) == {}


def test_a_field_that_is_called_as_one_of_ours_is_prefixed_whatever_its_case() -> None:
    assert [column_of(name, KEPT) for name in ("seqno", "CAS", "year")] == ["doc_seqno", "doc_CAS", "year"]


def test_a_field_that_no_column_can_be_called_is_made_writable() -> None:
    assert [column_of(name, KEPT) for name in ("a b", "x.y", "")] == ["a_b", "x_y", "_"]


def test_a_column_keeps_its_type_and_the_conflict_is_told() -> None:
    known = Unfolding()
    known.learn({"n": "bigint"}, {}, KEPT)
    assert known.learn({"n": "double"}, {"n": "bigint"}, KEPT) == {}
    assert known.types == {"n": "bigint"}
    assert known.conflicts == {"n: bigint in the table, double in documents"}


def test_two_fields_that_differ_in_case_share_the_first_ones_column() -> None:
    known = Unfolding()
    assert known.learn({"a": "string", "A": "string"}, {}, KEPT) == {"a": "string"}
    assert known.columns == {"a": "a"}
