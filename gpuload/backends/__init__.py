"""The I/O paths: each says whether it can be used, how well it suits a request, and moves batches."""
