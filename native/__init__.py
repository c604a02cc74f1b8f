"""Compiles the kernels of `headwater.kernels` into one library that Python loads without numba.

    python -m native build/_machine.abi3.so                               for this machine's system
    python -m native build/_machine.abi3.so --target aarch64-linux-gnu.2.17

A kernel is the same Python source here and in a checkout: numba compiles it to LLVM's code, once for each processor
level of the target (`targets.py`). `trampolines.py` gives every kernel one signature for C, `library.py` makes object
code and links it with `machine.c`, which makes Python functions of them.
"""
