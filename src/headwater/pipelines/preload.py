"""The imports of the server from which the mirror's workers are forked: modules and machine code that each worker would
load with its first task, in half a second, are loaded once and shared.
"""

from __future__ import annotations

from headwater.client import feeds  # noqa: F401 -- imported when a client first reads changes
from headwater.kernels import columns, siphash
from headwater.pipelines import tasks  # noqa: F401

columns.warm_up()
siphash.warm_up()
