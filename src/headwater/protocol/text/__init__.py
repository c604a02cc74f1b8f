"""memcached's text protocol, as a server speaks it: lines in, declared requests to carry out, lines out."""
