"""What is gone is refused by its name, with what there is instead, wherever it is written."""

import pytest

import treadle
from treadle import gone
from treadle.checks import NoSuchOption, check_names
from treadle.cli.main import main

SOME = (
    "blowing=",
    "Cluster(blowing=)",
    "--blow",
    "treadle blow",
    "treadle dataset blow",
    "Blower",
)  # one of each kind, whatever is gone


@pytest.fixture(autouse=True)
def some(monkeypatch: pytest.MonkeyPatch) -> None:
    for written in SOME:
        monkeypatch.setitem(gone.GONE, written, "use the wind")


@pytest.mark.parametrize("written", [*gone.GONE, *SOME])
def test_each_is_refused(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"{written} is gone: {gone.GONE[written]}"
    if "='" in written:  # a keyword's value
        name, _, value = written.partition("=")
        with pytest.raises(treadle.UsageError) as worthless:
            treadle.make_vec("CartPole-v1", 1, **{name: value.strip("'")})
        assert str(worthless.value) == said
    elif written.endswith(("=", "=)")):
        face, _, name = written.strip("=)").rpartition("(")
        with pytest.raises(NoSuchOption) as refused:
            check_names(getattr(treadle, face or "VectorEnv"), [name])
        assert str(refused.value) == said
    elif written.startswith(("--", "treadle ")):
        words = written.split()[1:] or ["collect", "CartPole-v1", written]
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert said in " ".join(capsys.readouterr().err.split())
    else:
        with pytest.raises(AttributeError) as missing:
            getattr(treadle, written)
        assert str(missing.value) == said
        assert not hasattr(treadle, written)
        with pytest.raises(ImportError, match="is gone"):
            exec(f"from treadle import {written}")
