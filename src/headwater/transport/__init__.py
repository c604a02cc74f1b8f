"""The only code that moves bytes: non-blocking sockets, and two ways to wait for them.

`socket.py` is one connection. Generators say what they wait for (`waiting.py`): they work without blocking and yield if
they can't continue. `blocking.py` waits with poll(2), `aio.py` with the event loop; these two differ in nothing else,
so everything above exists once.
"""
