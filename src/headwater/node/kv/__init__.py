"""Key-value requests: the table of commands (command.py), the session that runs them (session.py), a file per subject.

Requests of the bulk opcodes are answered by a kernel, a chunk at a time (fast.py over kernels/execute.py); requests
that it does not understand, and all rare ones, take the plain path: one declared request, one handler, one declared
answer.
"""
