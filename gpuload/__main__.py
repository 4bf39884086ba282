"""``python -m gpuload`` is the command ``gpuload``."""

from __future__ import annotations

from gpuload.cli import main

if __name__ == "__main__":
    main(prog_name="gpuload")
