"""Messages for all failures of TLS: OpenSSL's reason names the failure, this module adds the next step."""

from __future__ import annotations

import ssl

__all__ = ["hung_up", "in_words", "next_step", "not_tls"]

_ALERTS = {
    "CERTIFICATE_EXPIRED": "it takes our certificate for expired",
    "UNKNOWN_CA": "it does not know the CA of our certificate",
    "BAD_CERTIFICATE": "it refuses our certificate",
    "CERTIFICATE_UNKNOWN": "it refuses our certificate",
    "UNSUPPORTED_CERTIFICATE": "it takes no certificate of our kind",
    "CERTIFICATE_REVOKED": "our certificate was revoked",
    "CERTIFICATE_REQUIRED": "it wants a client certificate, and was shown none",
    "PROTOCOL_VERSION": "it does not speak our versions of TLS",
    "HANDSHAKE_FAILURE": "it found nothing that both ends speak",
    "NO_RENEGOTIATION": "it wants to renegotiate, which is not done",
    "UNRECOGNIZED_NAME": "it does not know the name it was asked for",
    "ACCESS_DENIED": "it lets nobody in with our certificate",
}
_REASONS = {
    "UNSUPPORTED_PROTOCOL": "it offers a version of TLS that is too old here",
    "NO_SHARED_CIPHER": "it offers no cipher that is known here",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no client certificate, and one is required",
    "WRONG_VERSION_NUMBER": "what it sends is no TLS",
    "HTTP_REQUEST": "it speaks HTTP without TLS",
}
_UNKNOWN_ISSUER = (18, 19, 20, 21)  # X509_V_ERR_*: self-signed, or its issuer is not at hand
_OTHER_NAME = (62, 64)
_HTTP = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"PATC", b"OPTI")


def in_words(error: ssl.SSLError) -> str:
    """Return the meaning of an error of OpenSSL."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    reason = str(error.reason or "")
    for name, meaning in _ALERTS.items():
        if "ALERT" in reason and reason.endswith(name):
            return meaning
    return _REASONS.get(reason) or f"TLS failed: {(reason or str(error)).lower().replace('_', ' ')}"


def next_step(code: int, host: str) -> str:
    """Return the next step after a refused certificate, by OpenSSL's error number; empty if only time or another
    certificate helps.
    """
    if code in _UNKNOWN_ISSUER:
        return ". trust_store=FILE names a PEM file of the CA that signed it"
    if code in _OTHER_NAME:
        return f". Connect by a name that it has, or have one made for {host}"
    return ""


def not_tls(data: bytes, other_port: int | None, *, is_server: bool) -> str:
    """Return the message for bytes that do not begin a handshake."""
    http = data.startswith(_HTTP)
    protocol = "HTTP without TLS" if http else f"no TLS (its first byte is 0x{data[0]:02x})"
    if not is_server:
        return f"it speaks {protocol}: give the port on which it speaks TLS, or couchbase:// for this one"
    right = "https" if http else "couchbases"
    hint = "" if other_port is None else f", or port {other_port}, where no TLS is spoken"
    return f"it speaks {protocol} on the port for TLS: {right}:// here{hint}"


def hung_up(*, is_server: bool) -> str:
    """Return the message for a peer that closed the connection during the handshake."""
    hint = "" if is_server else "; is this its port for TLS?"
    return f"it hung up in the middle of the TLS handshake{hint}"
