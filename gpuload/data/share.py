"""Which places of an epoch belong to which rank and batch."""

from __future__ import annotations

from dataclasses import dataclass

from gpuload.errors import SampleError


@dataclass(frozen=True)
class Share:
    """What one of several ranks has of an epoch: one run of it, so that hardly a chunk is read by two of them.

    All ranks together have every sample once. Shares differ by one sample where they cannot be equal; with `drop_last`
    every rank has the same number of whole batches, and what is left over is not brought in this epoch.

    Parameters
    ----------
    samples
        Of the epoch.
    batch_size
        Samples of a batch.
    rank, world_size
        Which of how many.
    drop_last
        Leave out a last batch that is not whole.
    """

    samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise SampleError(f"batch_size={self.batch_size}: a batch has at least one sample")
        if not 0 <= self.rank < self.world_size:
            raise SampleError(f"rank={self.rank} of world_size={self.world_size}: ranks count from 0")

    @property
    def first(self) -> int:
        """The place of its first sample in the epoch."""
        return self.samples * self.rank // self.world_size

    @property
    def last(self) -> int:
        """The place behind its last sample."""
        end = self.samples * (self.rank + 1) // self.world_size
        return self.first + self.batches * self.batch_size if self.drop_last else end

    @property
    def batches(self) -> int:
        """How many batches it has."""
        if self.drop_last:
            return self.samples // self.world_size // self.batch_size
        return -(-(self.samples * (self.rank + 1) // self.world_size - self.first) // self.batch_size)

    def batch(self, number: int) -> tuple[int, int]:
        """The places from which and up to which batch `number` goes."""
        start = self.first + number * self.batch_size
        return start, min(start + self.batch_size, self.last)
