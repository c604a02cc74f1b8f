"""memcached's text protocol at a server: lines in, requests to execute, lines out."""
