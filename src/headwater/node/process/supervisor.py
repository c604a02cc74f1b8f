"""Messages to the service manager that started this process: systemd, with Type=notify, which reads them from
a socket.

Source: sd_notify(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def tell(words: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send `READY=1`, `STOPPING=1` or another message; return True if it was sent, False if there is no manager.

    If the manager is gone, this is no error.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.settimeout(1.0)
            manager.sendto(words.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
    except OSError:
        return False
    return True
