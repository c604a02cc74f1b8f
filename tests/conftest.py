"""What all tests share: how many examples hypothesis draws, and which tests must not run beside each other.

`pytest -n 2 --dist loadgroup` gives each test file to one worker, so that a module's node or fixture is made once. All
tests marked `spark` form one group: they share a JVM, hence a process. Nothing here is needed to run a file alone.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

# No deadline: two workers share two cores, a kernel's first call compiles it. `ci` draws the same examples each
# time and writes no database, so that a red run can be repeated and two workers do not meet in one directory.
_NO_CLOCK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=50, **_NO_CLOCK)
settings.register_profile("ci", max_examples=100, derandomize=True, database=None, print_blob=True, **_NO_CLOCK)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name each test's group: `spark`, or its file."""
    for item in items:
        group = "spark" if item.get_closest_marker("spark") else item.path.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))
