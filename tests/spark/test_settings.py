import pytest

from headwater.errors import OptionError
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import Offset
from headwater.spark.settings import parse, parse_write

URL = "couchbase://127.0.0.1:11210/default"


def test_only_the_address_is_required() -> None:
    settings = parse({"url": URL}, streaming=True)
    assert settings.url == URL
    assert (settings.vbuckets, settings.max_changes, settings.partitions) == (None, None, None)
    assert settings.starting_offsets == Offset()
    with pytest.raises(OptionError, match=r'option "url": .*load\(url\)'):
        parse({}, streaming=True)


def test_load_with_an_address_says_the_same_as_the_option() -> None:
    assert parse({"path": URL}, streaming=False).url == URL


def test_case_does_not_matter_and_sparks_own_options_pass() -> None:
    given = {"URL": URL, "MAXCHANGESPERTRIGGER": "5", "checkpointLocation": "/x"}
    assert parse(given, streaming=True).max_changes == 5


def test_an_unknown_option_is_an_error_that_names_the_likely_one() -> None:
    with pytest.raises(OptionError) as refused:
        parse({"url": URL, "maxChangePerTriger": "5"}, streaming=True)
    assert 'option "maxchangepertriger"' in str(refused.value)
    assert "did you mean maxChangesPerTrigger?" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("vbuckets", "0-1024", "1024 is out of range, there are 0 to 1023"),
        ("vbuckets", "7-3", "a vbucket list such as 0-511,700"),
        ("vbuckets", "a", "a vbucket list such as 0-511,700"),
        ("startingOffsets", "sometimes", "earliest, latest"),
        ("startingOffsets", '{"0": "x"}', "2^64-1"),
        ("startingOffsets", "[1]", "a JSON object"),
        ("minPartitions", "0", "a whole number from 1 on"),
        ("maxChangesPerTrigger", "many", "a whole number from 1 on"),
        ("keyFormat", "utf8", "binary or string"),
        ("valueFormat", "json", "binary or string"),
        ("rollbackPolicy", "ignore", "emit or fail"),
        ("retrySeconds", "-1", "a number of seconds"),
        ("pollIntervalSeconds", "nan", "a number of seconds"),
        ("xattrs", "yes", "true or false"),
        ("url", "two words", "couchbase://"),
    ],
)
def test_a_bad_value_names_option_value_and_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse({"url": URL} | {name: value}, streaming=True)
    assert f'option "{name}"' in str(refused.value)
    assert allowed in str(refused.value)


def test_an_option_of_the_other_kind_of_read_is_refused() -> None:
    with pytest.raises(OptionError, match="only a batch read"):
        parse({"url": URL, "endingOffsets": "latest"}, streaming=True)
    with pytest.raises(OptionError, match="only a streaming read"):
        parse({"url": URL, "maxChangesPerTrigger": "1"}, streaming=False)
    with pytest.raises(OptionError, match="would be empty"):
        parse({"url": URL, "startingOffsets": "latest"}, streaming=False)


def test_vbuckets_are_sorted_and_each_comes_once() -> None:
    assert parse({"url": URL, "vbuckets": "7, 1-3,2"}, streaming=True).vbuckets == (1, 2, 3, 7)


def test_an_offset_from_a_checkpoint_is_a_starting_offset() -> None:
    given = {"url": URL, "startingOffsets": '{"v": 1, "vb": {"7": ["000000000000beef", 9, 3, 11]}}'}
    assert parse(given, streaming=True).starting_offsets.position(7) == Position(7, 0xBEEF, 9, 3, 11)


def test_ending_offsets_are_seqnos_by_vbucket() -> None:
    assert parse({"url": URL, "endingOffsets": '{"3": 8}'}, streaming=False).ending_seqnos == {3: 8}
    assert parse({"url": URL, "endingOffsets": "latest"}, streaming=False).ending_seqnos is None


def test_a_wrong_password_text_is_not_repeated() -> None:
    assert "secret" not in repr(parse({"url": URL, "password": "secret"}, streaming=True))


def test_a_write_has_options_of_its_own() -> None:
    settings = parse_write({"path": URL, "WITHMETA": "true", "deadLetters": "/x", "checkpointLocation": "/c"})
    assert (settings.url, settings.with_meta, settings.dead_letters, settings.retry_seconds) == (URL, True, "/x", 60.0)
    with pytest.raises(OptionError, match=r"did you mean deadLetters\?"):
        parse_write({"url": URL, "deadLeters": "/x"})
    with pytest.raises(OptionError, match="its options are url, user, password, deadLetters, withMeta, retrySeconds"):
        parse_write({"url": URL, "vbuckets": "1"})
    with pytest.raises(OptionError, match=r'option "url": .*save\(url\)'):
        parse_write({})
    assert "secret" not in repr(parse_write({"url": URL, "password": "secret"}))


def test_a_name_and_a_password_in_the_url_are_taken_out_of_it() -> None:
    for settings in (parse({"url": "couchbase://ann:s3cret@h/b"}), parse_write({"path": "couchbase://ann:s3cret@h/b"})):
        assert (settings.url, settings.user, settings.password) == ("couchbase://h:11210/b", "ann", "s3cret")
        assert "s3cret" not in repr(settings)
    with pytest.raises(OptionError, match="only once"):
        parse({"url": "couchbase://ann:s3cret@h/b", "user": "bob"})


def test_collections_are_names_or_all_and_no_scope_goes_with_them() -> None:
    assert parse({"url": URL, "collections": "shop.a, shop.b,shop.a"}).collections == ("shop.a", "shop.b")
    assert parse({"url": URL, "collections": "all"}).chooses and parse({"url": URL, "scope": "shop"}).chooses
    assert not parse({"url": URL}).chooses
    for wrong in ("", "shop", "a.b.c", "all,shop.a", "."):
        with pytest.raises(OptionError, match="names like"):
            parse({"url": URL, "collections": wrong})
    with pytest.raises(OptionError, match="one or the other"):
        parse({"url": URL, "collections": "shop.a", "scope": "shop"})


def test_a_table_in_sparks_catalog_is_refused_with_what_works() -> None:
    of_table = {"owner": "root", "path": "couchbase://127.0.0.1/b", "provider": "dcp"}
    with pytest.raises(OptionError, match=r"CREATE TEMPORARY VIEW name USING dcp OPTIONS \(url 'couchbase://"):
        parse(of_table)


def test_durations_and_sizes_may_have_a_unit() -> None:
    settings = parse({"url": URL, "retrySeconds": "5m", "windowBytes": "32MiB", "pollIntervalSeconds": "500ms"})
    assert (settings.retry_seconds, settings.window_bytes, settings.poll_interval_seconds) == (300, 32 << 20, 0.5)
