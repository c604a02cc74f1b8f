"""`headwater demo`."""

from headwater.cli.options import examples

EXAMPLES = examples("headwater demo")


def demo() -> None:
    """A year of flights."""
