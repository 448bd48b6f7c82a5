"""Signal handlers that wait."""

import signal

import pytest

from bridge.engine.user_code.signals import handlers_wait, has_handlers


@pytest.fixture
def called():
    names = []

    def ends(*_):
        names.append("ends")
        raise SystemExit

    before = [
        (signal.SIGUSR1, signal.signal(signal.SIGUSR1, ends)),
        (signal.SIGUSR2, signal.signal(signal.SIGUSR2, lambda *_: names.append("saves"))),
    ]
    yield names
    for number, handler in before:
        signal.signal(number, handler)


def test_all_handlers_that_waited_run_in_order_although_one_raises(called):
    handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)]

    def raise_both():
        with handlers_wait():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR2)
            assert called == []

    with pytest.raises(SystemExit):
        raise_both()
    assert called == ["ends", "saves"]
    assert [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)] == handlers


def test_a_handler_of_a_user_is_known_to_be_one_while_it_waits(called):
    assert has_handlers()
    with handlers_wait():
        assert has_handlers()
