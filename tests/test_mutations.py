"""Each promise of `mutations.toml` has tests that notice when it is broken."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import mutations

ROOT = mutations.ROOT


@pytest.mark.parametrize("name", mutations.MUTATIONS)
def test_each_mutation_fits_the_source(name: str) -> None:
    mutation = mutations.MUTATIONS[name]
    source = (ROOT / "src" / "treadle" / mutation["file"]).read_text(encoding="utf-8")
    assert mutations.mutated(source, mutation["old"], mutation["new"]) != source
    for test in mutation["tests"]:
        path, _, name = test.partition("::")
        assert name in (ROOT / path).read_text(encoding="utf-8")


def test_a_text_that_is_gone_or_stands_twice_is_refused() -> None:
    for source in ("b", "aa"):
        with pytest.raises(ValueError, match="times in the file"):
            mutations.mutated(source, "a", "c")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", mutations.MUTATIONS)
def test_each_broken_promise_is_noticed(name: str) -> None:
    assert mutations.caught(name), mutations.MUTATIONS[name]["promise"]
