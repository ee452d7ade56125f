"""The table of a slot's life: no process in sight."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tables import diagram
from treadle.lockstep.slots import TABLE, Seen, Slot, SlotLife, Way

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import draw_life

DOCS = Path(__file__).parent.parent.parent / "docs" / "life.md"
OUT_OF_USE = {Slot.LAST, Slot.VOID, Slot.GONE}


def test_the_documented_table_is_the_table() -> None:
    table = diagram(Slot, TABLE)
    assert table in DOCS.read_text(encoding="utf-8"), "put what `diagram` returns into docs/life.md"
    picture = DOCS.with_name("slot-life.svg").read_text(encoding="utf-8")
    assert picture == draw_life.slot_life(), "run scripts/draw_life.py"


@given(st.lists(st.sampled_from(Way), min_size=1, max_size=6), st.data())
def test_any_sequence_of_events_follows_the_table(ways: list[Way], data: st.DataObject) -> None:
    life, states = SlotLife(ways), [Slot.RUNNING] * len(ways)
    for _ in range(data.draw(st.integers(0, 12))):
        event = data.draw(st.sampled_from(Seen))
        slots = data.draw(st.lists(st.integers(0, len(ways) - 1), unique=True))
        if all((states[slot], event) in TABLE for slot in slots):
            life.see(event, slots)
            for slot in slots:
                states[slot] = TABLE[states[slot], event][ways[slot]]
        else:
            with pytest.raises(RuntimeError, match=f"cannot see '{event.value}'"):
                life.see(event, slots)
        assert [life.state(slot) for slot in range(len(ways))] == states, "all of an event, or nothing"
        assert life.plain == all(state in (Slot.RUNNING, Slot.OVER) for state in states)
        for state in Slot:
            assert life.of(state) == [slot for slot, its in enumerate(states) if its is state]


@given(st.sampled_from(Way), st.lists(st.sampled_from(Seen), max_size=20))
def test_every_slot_is_brought_back_by_a_reset_or_was_dropped(way: Way, events: list[Seen]) -> None:
    life = SlotLife([way])
    for event in events:
        if (life.state(0), event) in TABLE:
            life.see(event, [0])
    if life.state(0) in OUT_OF_USE:
        life.see(Seen.SHOWN, [0])
        assert life.state(0) is Slot.GONE
        assert Seen.DROPPED in events
    else:
        life.see(Seen.ASKED, [0])
        life.see(Seen.BEGUN, [0])
        assert life.plain


@pytest.mark.parametrize("way", Way)
def test_every_state_can_be_reached_but_waiting_where_nobody_waits(way: Way) -> None:
    reached, new = {Slot.RUNNING}, {Slot.RUNNING}
    while new:
        new = {then[way] for (at, _), then in TABLE.items() if at in new} - reached
        reached |= new
    without = {Way.SAME: {Slot.OVER, Slot.WAITS}, Way.NEXT: {Slot.WAITS}, Way.HOLD: set()}
    assert reached == set(Slot) - without[way]


@given(st.sampled_from(Slot), st.sampled_from(Way))
def test_a_cut_is_told_once(state: Slot, way: Way) -> None:
    told = TABLE[state, Seen.SHOWN][way]
    assert told not in (Slot.CUT, Slot.LAST, Slot.VOID)
    assert TABLE[told, Seen.SHOWN][way] is told


def test_nobody_comes_back_who_was_dropped() -> None:
    for (state, _), then in TABLE.items():
        if state in OUT_OF_USE:
            assert set(then) <= OUT_OF_USE


def test_an_end_that_was_noted_is_right_for_one_request() -> None:
    life = SlotLife([Way.NEXT, Way.HOLD, Way.SAME])
    life.at = 7
    life.see(Seen.ENDED, [0, 1, 2])
    assert life.of(Slot.OVER) == [0, 1]
    life.catch_up(7)
    assert life.of(Slot.OVER) == [0, 1]
    life.catch_up(8)
    assert life.of(Slot.OVER) == []
