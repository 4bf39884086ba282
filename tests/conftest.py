"""What all tests share: how many examples hypothesis tries.

``default`` for every run, ``deep`` for ``make test-deep``. No deadlines: the tests assert no times.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_SLOW_DATA = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]

settings.register_profile("default", deadline=None, max_examples=100, suppress_health_check=_SLOW_DATA)
settings.register_profile("deep", deadline=None, max_examples=2000, suppress_health_check=_SLOW_DATA)
settings.load_profile("default")
