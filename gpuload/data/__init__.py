"""Batches of samples from datasets: their order, what of it is whose, and the reading ahead."""
