"""Instruments of our own tests: a ledger of acknowledged writes, writers and followers to fill it, a simulated cluster.

Users' tests need none of them, so the installed package leaves them out; `headwater.testing` is part of it.
"""
