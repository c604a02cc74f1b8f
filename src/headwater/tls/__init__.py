"""TLS for both sides: an engine of bytes, a socket that wears it, what a client may be told, what a certificate says.

`engine.py` does no I/O: ciphertext in, plaintext out, and back; OpenSSL does the cryptography. `socket.py` gives a
non-blocking socket such an engine, so that whoever moves bytes need not know. Nothing here decides whom to trust:
`settings.py` (a client) and `node/connections/tls.py` (a node) make the contexts.
"""
