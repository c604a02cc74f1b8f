"""The process of a node: turns on its event loop, threads, memory, kernels, and the service manager above it."""
