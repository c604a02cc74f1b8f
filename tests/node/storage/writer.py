"""A process that writes to a store until it is killed, and says on stdout what it was promised.

    python -m tests.node.storage.writer FOLDER SEED

A line `try` with tabs names the changes of a batch that is about to be written, `vbucket seqno key value` (value `-`: a
deletion) or `back vbucket seqno`; `done` says that it is durable. test_kill.py reads them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from headwater.node.storage.disk import RealDisk
from headwater.node.storage.store import Store
from tests.node.storage.model import open_store

BATCHES = 400


def lines_of_a_batch(store: Store, random: Random) -> list[str]:
    """Stage some changes."""
    said = []
    for _ in range(random.randint(1, 20)):
        vb, key = random.randrange(4), b"k%d" % random.randrange(30)
        if random.random() < 0.04:
            seqno = store.rollback(vb, max(0, store.index.high_seqno(vb) - random.randrange(6)))
            said.append(f"back {vb} {seqno}")
        elif random.random() < 0.2:
            seqno = store.staging.deletion(vb, key, cas=1, rev_seqno=1, delete_time=1)
            said.append(f"{vb} {seqno} {key.decode()} -")
        else:
            value = b"%d" % random.randrange(10**9) * random.choice((1, 1, 40))
            seqno = store.staging.mutation(vb, key, value, cas=1, rev_seqno=1)
            said.append(f"{vb} {seqno} {key.decode()} {value.decode()}")
    return said


def commit(store: Store, said: list[str]) -> None:
    """Make a batch durable; say so before and after."""
    print("try", *said, sep="\t", flush=True)
    batch = store.freeze()
    if batch is not None:
        store.write(batch)
        store.settle(batch)
    print("done", flush=True)


def main(folder: str, seed: int, batches: int = BATCHES) -> None:
    """Write, compact now and then, roll back now and then."""
    random = Random(seed)
    store = open_store(RealDisk(), vbuckets=4, path=Path(folder), arena_bytes=1 << 16)
    print("open", flush=True)
    for number in range(batches):
        commit(store, lines_of_a_batch(store, random))
        if number % 25 == 24:
            store.log.seal()
            job = store.compact(purge_before=100, history_rows=lambda vb: 8)
            if job is not None:
                job.survey()
                job.announce()
                commit(store, [])
                job.copy()
                for _ in job.swap():
                    commit(store, lines_of_a_batch(store, random))
                job.remove()
                job.forget()
    store.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
