"""TLS for both sides: an engine of bytes, a socket that uses it, a client's settings, certificates, and error messages.

`engine.py` does no I/O: ciphertext in, plaintext out, and back; OpenSSL does the cryptography. `socket.py` gives a
non-blocking socket such an engine, so that code that moves bytes need not know. Nothing here decides about trust:
`settings.py` (a client) and `node/connections/tls.py` (a node) create the contexts.
"""
