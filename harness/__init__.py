"""Our own tests' instruments: a ledger of what was acknowledged, writers and followers to fill it, a simulated cluster.

Users' tests need none of it, so it is no part of the package that is installed; `headwater.testing` is.
"""
