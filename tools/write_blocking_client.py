"""Write the methods of headwater/client/blocking.py from those of aio.py: the same words, without `await`.

`make docs` runs this; tests/test_docs.py fails when the file is stale.
"""

import re
from pathlib import Path

CLIENT = Path(__file__).parent.parent / "src" / "headwater" / "client"
PAGE = CLIENT / "blocking.py"
SHARED = "    # ================================================================== the same in blocking.py\n"
WRITTEN = "    # ================================================================== written from aio.py\n"
RULES = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bConnecting\[(\w+)\]", r"\1"),
    (r"\bConnecting\((.*)\)$", r"\1"),
    (r"\bAsync(Client|Changes|Batches|CollectionClient|Documents|ScopeClient)\b", r"\1"),
)


def page() -> str:
    """Return the whole file, as it must be."""
    head = PAGE.read_text("utf-8").partition(WRITTEN)[0]
    text = (CLIENT / "aio.py").read_text("utf-8").partition(SHARED)[2]
    for pattern, plain in RULES:
        text = re.sub(pattern, plain, text, flags=re.MULTILINE)
    return head + WRITTEN + text


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
