"""Tickets: each is claimed by exactly one worker."""

import threading
from typing import Any

import numpy as np
import pytest
from kit import until, within

from treadle.pool.tickets import END, WINDOW, LocalTickets, PipeTickets
from treadle.testing.faults import Sound


@pytest.fixture(params=[PipeTickets, LocalTickets])
def tickets(request: pytest.FixtureRequest) -> Any:
    made = request.param()
    made.owners = np.zeros(WINDOW, np.int32)
    yield made
    made.close()


def test_every_ticket_has_one_owner(tickets: Any) -> None:
    for number in range(50):
        tickets.issue(number)
    assert tickets.waiting() == 50
    assert tickets.owner(7) is None
    assert [tickets.claim(i % 3, False) for i in range(50)] == list(range(50))
    assert [tickets.owner(i) for i in range(50)] == [i % 3 for i in range(50)]
    assert tickets.claim(0, False) is None
    tickets.issue(WINDOW + 7)
    assert tickets.owner(WINDOW + 7) is None, "a ticket starts without an owner, whoever had its place before"
    assert tickets.waiting() == 1


def test_claims_from_many_threads_are_all_different(tickets: Any) -> None:
    claimed: list[int] = []

    def work(worker: int) -> None:
        while (number := tickets.claim(worker, True)) != END:
            claimed.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for number in range(500):
        tickets.issue(number)
    until(lambda: len(claimed) == 500)
    tickets.end()
    with within(5.0):
        for thread in threads:
            thread.join()
    assert sorted(claimed) == list(range(500))


def test_an_end_ticket_ends_one_claim_of_a_pipe() -> None:
    tickets = PipeTickets()
    tickets.owners = np.zeros(WINDOW, np.int32)
    tickets.issue(END)
    tickets.issue(3)
    assert [tickets.claim(0, True), tickets.claim(0, True)] == [END, 3]
    tickets.end()
    tickets.end()
    assert tickets.claim(0, True) == END
    tickets.close()


def test_a_whole_window_fits() -> None:
    tickets = PipeTickets()
    tickets.owners = np.zeros(WINDOW, np.int32)
    with within(5.0):
        for number in range(WINDOW):
            tickets.issue(number)
    assert tickets.waiting() == WINDOW
    tickets.close()


def test_sound_environments_are_sound() -> None:
    """What the tests of the pool compare with."""
    env = Sound()
    assert env.reset(seed=3)[0].tolist() == [3, 0, 0, 0]
    for t in range(1, 21):
        observation, reward, terminated, truncated, info = env.step(2)
        assert observation.tolist() == [3, 0, t, 2]
        assert (reward, terminated, truncated, info) == (t, t == 20, False, {})
