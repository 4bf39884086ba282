"""What works on this machine and for a store, what does not, and the command that mends it: `gpuload.doctor`."""

from __future__ import annotations

from gpuload.checks.examine import doctor
from gpuload.checks.report import BackendState, Check, MountRow, Report, Status

__all__ = ["BackendState", "Check", "MountRow", "Report", "Status", "doctor"]
