"""Registered file handles: descriptors, geometry, containment and the cache that keeps them open."""
