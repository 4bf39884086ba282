"""Scripts that are run in processes of their own; nobody imports them."""
