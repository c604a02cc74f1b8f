"""Two nodes for all cases of a file."""

import pytest

from headwater import testing

from .support import VBUCKETS, Pair


@pytest.fixture(scope="module")
def pair():
    with testing.node(vbuckets=VBUCKETS) as one, testing.node(vbuckets=VBUCKETS, vbucket_state="none") as other:
        made = Pair(one, other)
        yield made
        made.close()
