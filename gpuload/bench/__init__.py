"""Measures gpuload beside what a user would take instead, in one run, next to the machine's own limits."""
