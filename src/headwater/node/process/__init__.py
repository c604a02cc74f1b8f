"""The process of a node: the turns of its event loop, its threads, memory and kernels, and the service manager above
it.
"""
