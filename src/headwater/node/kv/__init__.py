"""Key-value requests: the table of commands (command.py), the session that runs them (session.py), a file per subject.

Kernels answer requests of the common opcodes, a chunk at a time (fast.py and kernels/execute.py); all other requests
take the plain path: one declared request, one handler, one declared answer.
"""
