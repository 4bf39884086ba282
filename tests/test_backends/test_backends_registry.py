"""Which backend serves, and what is said of those passed over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuload.backends import registry
from gpuload.backends.base import Availability
from gpuload.errors import BackendUnavailableError, ConfigError, RegistrationError
from gpuload.request import Reason


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    registry.forget()
    yield
    registry.forget()


def entries(monkeypatch: pytest.MonkeyPatch, **states: Availability) -> None:
    made = [
        registry.Entry(name, 9 - i, lambda state=state: state, lambda: None)  # type: ignore[misc,arg-type]
        for i, (name, state) in enumerate(states.items())
    ]
    monkeypatch.setattr(registry, "ENTRIES", tuple(made))


def test_the_highest_score_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    entries(monkeypatch, a=Availability(), b=Availability())
    assert registry.choose() == registry.Choice("a", {})


def test_those_passed_over_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entries(monkeypatch, a=Availability(Reason.SECCOMP, "x"), b=Availability(Reason.MEMLOCK, "y"), c=Availability())
    assert registry.choose() == registry.Choice("c", {"a": Reason.SECCOMP, "b": Reason.MEMLOCK})
    assert registry.choose("c") == registry.Choice("c", {"a": Reason.FORCED_OFF, "b": Reason.FORCED_OFF})
    with pytest.raises(BackendUnavailableError, match=r"b is not available \(memlock\): y"):
        registry.choose("b")


def test_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    entries(monkeypatch, a=Availability(Reason.SECCOMP, "x"))
    with pytest.raises(BackendUnavailableError):
        registry.choose()


@pytest.mark.parametrize("name", ["hip", "", "URING"])
def test_a_name_that_is_none(name: str) -> None:
    for function in (registry.choose, registry.available, registry.make):
        with pytest.raises(ConfigError, match="there are 'io_uring', 'posix'"):
            function(name)


def test_availability_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask() -> Availability:
        asked.append(1)
        return Availability()

    monkeypatch.setattr(registry, "ENTRIES", (registry.Entry("a", 1, ask, lambda: None),))  # type: ignore[arg-type,return-value]
    for _ in range(3):
        assert registry.choose().name == "a"
    assert len(asked) == 1
    registry.forget()
    registry.choose()
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BackendUnavailableError("a", Reason.MEMLOCK, "none left"), Reason.MEMLOCK),
        (RegistrationError("no table", Reason.FD_LIMIT), Reason.FD_LIMIT),
        (RegistrationError("no table"), Reason.DRIVER_ERROR),
    ],
)
def test_one_that_cannot_be_made_is_not_chosen_again(
    error: Exception, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    good = registry.Entry("b", 1, Availability, lambda: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(registry, "ENTRIES", (registry.Entry("a", 2, Availability, fail), good))  # type: ignore[arg-type]
    assert registry.choose().name == "a"
    with pytest.raises(BackendUnavailableError) as raised:
        registry.make("a")
    assert raised.value.reason is reason
    assert registry.choose() == registry.Choice("b", {"a": reason})
