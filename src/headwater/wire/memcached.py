"""The memcached family: all its messages under one name. Source: specification, kv.md.

They are declared in `bootstrap` (hello, authentication, cluster map, small ones), `documents` (get, set, ...), `meta`
(with-meta commands, observing) and `admin` (vbuckets, collections). An answer that is not a success is a `Failure`,
whatever was asked.
"""

from headwater.wire.admin import *  # noqa: F403 - all of its names are this family's
from headwater.wire.bootstrap import *  # noqa: F403 - all of its names are this family's
from headwater.wire.documents import *  # noqa: F403 - all of its names are this family's
from headwater.wire.failure import *  # noqa: F403 - all of its names are this family's
from headwater.wire.meta import *  # noqa: F403 - all of its names are this family's
