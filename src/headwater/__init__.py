"""headwater: change streams of the Couchbase/memcached family (TAP, UPR, DCP).

    headwater.client        documents by key, and changes by the stream: `client.connect("couchbase://127.0.0.1/default")`
    headwater.client.aio    the same for asyncio
    headwater.testing       real nodes in tests: `with testing.node() as node: ...`
    headwater.spark         the Spark source and writer `dcp`
    headwater.pipelines     mirror, copy, index and the other jobs, as functions
    headwater.protocol      the protocol without I/O, for sockets of your own

Each is imported by its own name (`from headwater import client`). The command line is `headwater --help`.
In a notebook `%load_ext headwater` shows its errors with one line first.
"""

__version__ = "0.1.0"


def load_ipython_extension(shell: object) -> None:
    """Let IPython show errors of ours with one line first: `%load_ext headwater` calls this."""
    from headwater.first_line import show_in  # noqa: PLC0415 -- for IPython alone

    show_in(shell)
