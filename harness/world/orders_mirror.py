"""A mirror of the second bucket, which is dropped and made anew while the mirror runs; its table is read at the end.

A bucket that was made anew has other vb uuids, and seqnos from 1 on: the table has to lose all rows of the life before,
and its change log has to take them back. The table's versions are not judged one by one: nobody watches the histories
of this bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.lake_faults import judge
from harness.lake_faults.judge import Bucket
from harness.simulation.histories import Broken
from harness.world import operators
from harness.world.mirror import AT_ONCE, RETRY_SECONDS, complete, try_mirror
from harness.world.operators import SECOND_BUCKET
from headwater import client
from headwater.lake.places import CHANGES
from headwater.pipelines.mirror import mirror

if TYPE_CHECKING:
    from harness.world.blocking import BlockingProgram
    from harness.world.world import World

PLACE = "s3://lake/orders"
ROOT = PLACE.removeprefix("s3://")


class OrdersMirror:
    """The mirror of the second bucket, and the judge of its table."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"mirror of orders {world.plan.seed}")  # noqa: S311 - must be repeatable
        self._limit = self._random.choice(AT_ONCE)
        self._has_row_ids = self._random.random() < 0.5
        self._stops = False
        self._running: BlockingProgram | None = None

    def begin(self) -> None:
        """Start the mirror, unless it runs."""
        if self._running is not None and not self._running.is_over:
            return
        self._world.counts["mirrors of the second bucket started"] += 1
        self._running = self._world.run_blocking("mirror-orders", self._keep_up)

    def restart(self) -> Callable[[], None]:
        """Kill the mirror; return the function that starts it again."""
        if self._running is not None:
            self._running.kill()
        return self.begin

    def _keep_up(self) -> None:
        while not self._stops:
            try_mirror(self._world, "mirrors of the second bucket", partial(self._mirror, once=False))

    def _mirror(self, *, once: bool) -> None:
        limit = {"maxChangesPerTrigger": self._limit} if self._limit else {}
        done = mirror(
            None,
            self._url,
            PLACE,
            once=once,
            changelog=True,
            workers=0,
            interval_seconds=0.2,
            reading={"retrySeconds": RETRY_SECONDS, "pollIntervalSeconds": "0.2"} | limit | operators.login_options(),
            stop=lambda: self._stops and not once,
            row_ids=self._has_row_ids,
        )
        self._world.counts["rollbacks of the mirror of the second bucket"] += done.rollbacks

    @property
    def _url(self) -> str:
        return self._world.url.removesuffix(operators.BUCKET) + SECOND_BUCKET

    # --- the end ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Bring the table level, and compare it and its change log with the nodes.

        Raises:
            Broken: it differs, or does not become level.
        """
        if self._running is None:
            return
        self._stops = True
        complete(self._world, self._running)
        complete(self._world, self._world.run_blocking("last-mirror-orders", partial(self._mirror, once=True)))
        nodes: list[Bucket] = []
        complete(self._world, self._world.run_blocking("reader-of-orders", lambda: nodes.append(self._documents())))
        with TemporaryDirectory(prefix="headwater-orders-") as folder:
            self._compare(Path(folder), nodes[0])
        self._world.counts["tables of the second bucket judged"] += 1

    def _documents(self) -> Bucket:
        with client.connect(self._url, *operators.LOGIN) as bucket:
            return judge.of_nodes(bucket)

    def _compare(self, folder: Path, bucket: Bucket) -> None:
        for key, stored in self._world.store.held.items():
            if key.startswith(ROOT):
                path = folder / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(stored.content)
        try:
            judge.compare(judge.of_table(folder / ROOT), bucket)
            judge.check_changes(folder / f"{ROOT}{CHANGES}", bucket)
        except judge.Wrong as wrong:
            raise Broken(f"lake: the table of {SECOND_BUCKET}: {wrong}") from wrong
