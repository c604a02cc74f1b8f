"""Converts bytes to messages and back: the frame, and every message of memcached, TAP, UPR and DCP, declared once.

    header, framing      the 24-byte header, cutting a stream into frames, framing extras
    layout, codec        what a declaration is made of
    memcached, dcp, upr, tap   the declarations; `dialect.decode` finds the right one for a frame
    reference            the reference pages under docs/protocol, printed from the declarations

Nothing here does I/O or knows the time.
"""
