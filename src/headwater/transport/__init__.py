"""The only code that moves bytes: non-blocking sockets, and two ways to wait for them.

`channel.py` is one connection. Generators do the work without blocking, and yield what they wait for if they can't
continue (`waiting.py`). `blocking.py` waits with poll(2), `aio.py` with the event loop; both run the same generators.
"""
