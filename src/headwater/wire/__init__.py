"""Converts bytes to messages and back: the frame, and every message of memcached, TAP, UPR and DCP, declared once.

    header, framing      the 24-byte header, frames from a stream of bytes, framing extras
    layout, codec        the parts of a declaration
    bootstrap, documents, meta, subdoc, scans, admin, dcp, upr, tap
                         the declarations; `dialect.decode` finds the class of a frame's message

The pages under docs/protocol are printed from the declarations. Nothing here does I/O or reads a clock.
"""
