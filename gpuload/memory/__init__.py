"""Memory a read uses: device arrays and pinned, registered host slabs."""
