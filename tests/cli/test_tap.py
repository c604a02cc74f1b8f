from headwater.cli.tap import _line, describe
from headwater.wire import tap


def test_messages_are_told_in_a_line_each() -> None:
    flags = int(tap.MessageFlag.NETWORK_BYTE_ORDER)
    messages = [
        tap.Mutation(vbucket=3, key=b"k", value=b"a\nb", flags=flags, item_flags=5),
        tap.Delete(vbucket=3, key=b"k"),
        tap.Opaque(vbucket=3, engine_specific=(8).to_bytes(4)),
        tap.VbucketSet(vbucket=3, engine_specific=(1).to_bytes(4)),
        tap.CheckpointStart(vbucket=3, checkpoint_id=7),
    ]
    assert [_line(message, describe(message), False) for message in messages] == [
        "3 mutation k a\\nb",
        "3 delete k",
        "3 opaque code 8",
        "3 vbucketset state 1",
        "3 checkpointstart checkpoint 7",
    ]


def test_keys_only_has_no_text_and_long_values_are_cut() -> None:
    message = tap.Mutation(vbucket=3, key=b"k", value=b"x" * 200)
    assert "text" not in describe(message, keys_only=True)
    assert _line(message, describe(message), False).endswith("x... (40 bytes more)")
    assert _line(message, describe(message, keys_only=True), True) == "3 mutation k"
