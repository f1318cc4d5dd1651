"""Launches of the native kernels that serve Metal, with their references: a function that yields the cases of a kernel, by kind."""
