"""headwater: change streams of the Couchbase/memcached family (TAP, UPR, DCP)."""

__version__ = "0.1.0"
