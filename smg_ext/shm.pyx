# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Shared memory of the processes: in-flight counters and engine state."""
