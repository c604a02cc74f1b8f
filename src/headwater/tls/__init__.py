"""TLS for both sides: an engine of bytes, a socket that uses it, a client's settings, certificates, and error messages.

`engine.py` converts ciphertext to plaintext and back, without I/O; OpenSSL does the cryptography. `socket.py` combines
a non-blocking socket with an engine, so that other code can use it like a plain socket. The contexts with the trusted
CAs come from `settings.py` (a client) and `node/connections/tls.py` (a node).
"""
