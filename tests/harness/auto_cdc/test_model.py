"""The model keeps tables as Auto CDC promises it."""

from harness.auto_cdc.model import ModelPipeline


def test_the_highest_sequence_counts_and_equal_values_in_a_row_are_one_version() -> None:
    events = {(0, 5): "a", (1, 3): "a", (0, 9): "b", (1, 4): None}
    model = ModelPipeline("", "", {"k": {sequence: events[sequence] for sequence in events}})
    assert model.scd1() == {}
    assert model.scd2() == {"k": [("a", (0, 5), (0, 9)), ("b", (0, 9), (1, 3)), ("a", (1, 3), (1, 4))]}
