"""The hot loops: numba kernels over raw addresses, one small package.

jit.py decides how a kernel is built (compiled and cached, or plain Python with every access checked), guard.py is that
check, intrinsics.py the loads and stores everything is made of. scan.py accepts or refuses a received buffer;
columns.py turns frames into Arrow columns, columns_numpy.py does the same without numba; warm.py builds everything at
once. Importing this package alone imports nothing heavy.

Rules for a kernel: it checks a length before it touches memory, it reports (codes and offsets) and never raises, and
its caller can tell from the result how far it got.
"""
