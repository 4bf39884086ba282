"""Pure arithmetic from a selection to byte ranges and their places in one destination array."""
