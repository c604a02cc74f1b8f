"""The only code that moves bytes: non-blocking sockets, and two ways to wait for them.

`socket.py` is one connection. What it is waited for is said by generators (`waiting.py`): they do all the work without
blocking and yield when they can't go on. `blocking.py` waits with poll(2), `aio.py` with the event loop; that is all
the two differ in, so everything above exists once.
"""
