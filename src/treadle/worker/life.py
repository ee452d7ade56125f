"""A worker's life as a table: state -> event -> state. Pure; the same for every backend.

```text
STARTING --hello--> IDLE --send--> BUSY --reply--> IDLE
BUSY --deadline--> LATE --last reply--> IDLE (late replies are dropped) | --died--> DEAD (killed after the grace)
any --died--> DEAD --restart--> STARTING | --drop--> GONE
any --close--> CLOSING --closed--> CLOSED
```

A missing pair is a bug in the caller of this table and raises. `BUSY` means at least one request is outstanding: `send`
while BUSY and `reply` with more to come leave it BUSY. Three files share a worker's death: `calls.py` observes it,
`after` below gives the next state, `failure.py` decides what to do about it.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    __hash__ = object.__hash__  # members are singletons; Enum's own hash is Python, and every answer reads the table

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    LATE = "late"
    RETIRING = "retiring"  # it has been asked to end, and another one takes its place
    DEAD = "dead"
    GONE = "gone"  # dropped for good; the others carry on
    CLOSING = "closing"
    CLOSED = "closed"


class Event(Enum):
    __hash__ = object.__hash__  # as of `State`

    HELLO = "hello"
    SEND = "send"
    REPLY = "reply"  # one of several outstanding answers
    LAST_REPLY = "last reply"  # the last outstanding answer
    DEADLINE = "deadline"
    DIED = "died"
    RETIRE = "retire"
    RESTART = "restart"
    DROP = "drop"
    CLOSE = "close"
    CLOSED = "closed"


_S, _E = State, Event

TABLE: dict[tuple[State, Event], State] = {
    (_S.STARTING, _E.HELLO): _S.IDLE,
    (_S.IDLE, _E.SEND): _S.BUSY,
    (_S.BUSY, _E.SEND): _S.BUSY,
    (_S.BUSY, _E.REPLY): _S.BUSY,
    (_S.BUSY, _E.LAST_REPLY): _S.IDLE,
    (_S.BUSY, _E.DEADLINE): _S.LATE,
    (_S.LATE, _E.DEADLINE): _S.LATE,
    (_S.LATE, _E.SEND): _S.LATE,  # the reset that brings its slots back waits behind late answers
    (_S.LATE, _E.REPLY): _S.LATE,
    (_S.LATE, _E.LAST_REPLY): _S.IDLE,
    (_S.IDLE, _E.RETIRE): _S.RETIRING,
    (_S.DEAD, _E.RESTART): _S.STARTING,
    (_S.DEAD, _E.DROP): _S.GONE,
    (_S.DEAD, _E.DIED): _S.DEAD,
    (_S.CLOSING, _E.CLOSED): _S.CLOSED,
    (_S.CLOSING, _E.CLOSE): _S.CLOSING,
    (_S.CLOSED, _E.CLOSE): _S.CLOSED,
    (_S.CLOSED, _E.CLOSED): _S.CLOSED,
    **{(s, _E.DIED): _S.DEAD for s in (_S.STARTING, _S.IDLE, _S.BUSY, _S.LATE, _S.RETIRING)},
    **{(s, _E.CLOSE): _S.CLOSING for s in set(State) - {_S.CLOSING, _S.CLOSED}},
    # while closing, neither a worker's events nor another thread's last request change the state
    **{(_S.CLOSING, e): _S.CLOSING for e in (_E.HELLO, _E.SEND, _E.REPLY, _E.LAST_REPLY, _E.DEADLINE, _E.DIED)},
}


class RestartPolicy(Enum):
    """How a worker's death is handled."""

    RAISE = "raise"
    RESTART = "restart"
    DROP = "drop"


def after(state: State, event: Event) -> State:
    """Return the next state. Raises RuntimeError for a pair that can never happen."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise RuntimeError(f"a worker that is {state.value} cannot see '{event.value}'") from None


ALIVE = frozenset({State.IDLE, State.BUSY, State.LATE})
