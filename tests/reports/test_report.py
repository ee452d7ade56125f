"""The page: what is in it, and that it is inert; `test_report_in_chromium.py` opens it."""

import base64
import json
import os
import re
import shlex
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import treadle
from cli.command import treadle as command
from reports.run_of import directory_of, evaluation, failing, line
from treadle.errors import UsageError
from treadle.reports.inert import Inert
from treadle.reports.page import inside_script

pytestmark = pytest.mark.usefixtures("command_server")

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&\u2028\x1b[31mred\u202e"
ALICE, BOB, ROOT = ("/".join(("", *each)) for each in (("home", "alice-secret"), ("home", "bob"), ("root",)))
TOKEN = "hunter2-</b>\"'secret"


class Parsed(HTMLParser):
    """Its elements as (name, attributes), and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


def said(text: str) -> str:
    """Without markup, style and scripts."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", re.sub(r"<(style|script).*?</\1>", "", text, flags=re.S))).split())


def page_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_the_sentence_says_the_rate_and_what_it_is_if_the_rest_counts_as_failures(tmp_path: Path) -> None:
    lines = [line(i, success=i < 18) for i in range(50)] + [failing(50 + i, "hang") for i in range(3)]
    out = directory_of(tmp_path / "out", lines, summary={"verified": {"episodes": [1, 2], "unequal": []}})
    target = treadle.report(out)
    assert target == out / "report.html"
    told = said(page_of(target)).replace("\u202f", " ")
    assert "18 of the 50 episodes played succeeded: 36 % (95 %: 24 to 50)." in told
    assert "53 were asked for; 3 could not be played; if they count as failures: 34 % (23 to 47)." in told
    assert "2 of 50 episodes played again: equal." in told


def test_a_run_that_goes_on_is_said_to(tmp_path: Path) -> None:
    out = directory_of(tmp_path / "out", [line(i) for i in range(31)], arguments={"episodes": 50})
    text = page_of(treadle.report(out))
    assert "31 of 50 so far: Mean return 1 over 31 episodes" in said(text)
    assert "not there yet 19" in said(text)


def test_all_rows_are_in_the_html_up_to_a_thousand_and_beyond_in_one_block(tmp_path: Path) -> None:
    few = page_of(treadle.report(evaluation(tmp_path / "few", 60)))
    assert [each["id"] for name, each in Parsed(few).elements if name == "tr" and "id" in each] == [
        f"e{i}" for i in range(60)
    ]
    many = page_of(treadle.report(directory_of(tmp_path / "many", [line(i, i / 7) for i in range(10_000)])))
    assert '<tr id="e' not in many
    columns = {each["name"]: each for each in data_of(many)["columns"]}
    assert columns["episode"]["values"] == list(range(10_000))
    assert columns["return"]["values"] == pytest.approx([i / 7 for i in range(10_000)], abs=1e-3)
    assert len(many) < 3_000_000


def test_numbers_that_json_does_not_have_are_null_with_a_flag(tmp_path: Path) -> None:
    lines = [line(0, float("nan")), line(1, float("inf")), line(2, float("-inf")), line(3, 1.5)]
    text = page_of(treadle.report(directory_of(tmp_path / "out", lines)))
    (column,) = [each for each in data_of(text)["columns"] if each["name"] == "return"]
    assert column["values"] == [None, None, None, 1.5]
    assert column["odd"] == {"0": "NaN", "1": "∞", "2": "−∞"}
    with pytest.raises(ValueError):
        inside_script({"a": float("nan")})


def hostile(tmp_path: Path) -> Path:
    kwargs = {"token": TOKEN, "deep": {"api_key": [TOKEN, 12345678]}, "size": 3, EVIL: EVIL}
    typed = shlex.join(
        ["treadle", "eval", EVIL, "--env-kwargs", json.dumps(kwargs), "--out", str(tmp_path / "home" / "x y")]
    )
    lines = [
        line(0),
        line(1, success=False),
        failing(
            2, "ValueError", f"{EVIL} {TOKEN} {tmp_path}/home/model.zip /data/alice-secret/set.npz", f"{ALICE}/env.py:3"
        ),
    ]
    summary = {
        "command": typed, "env_id": EVIL, "policy": f"{tmp_path}/home/my model.zip", "versions": {EVIL: EVIL},
        "warnings": [EVIL, f"{tmp_path}/out/run.json"], "remarks": [{"text": EVIL, "episodes": [0, EVIL]}],
        "hash": EVIL, "time_shares": {EVIL: 0.5}, "machine": EVIL,
    }  # fmt: skip
    tasks = {EVIL: EVIL, f"{ALICE}/tasks/b": EVIL, "c": EVIL}
    arguments = {"env": EVIL, "policy": EVIL, "env_kwargs": kwargs, "seed": 0, "tasks": tasks}
    return directory_of(tmp_path / "out", lines, summary=summary, arguments=arguments)


@pytest.fixture(name="at_home")
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", ALICE)
    monkeypatch.setenv("SOME_SECRET_VARIABLE", "value-of-a-variable")
    monkeypatch.setattr("socket.gethostname", lambda: "host-of-alice")
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    return tmp_path


def test_what_is_handed_on_of_a_real_run_has_no_token_and_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run.json` keeps the arguments, for its owner alone."""
    home, out = tmp_path / "alice-secret", tmp_path / "alice-secret" / "out"
    home.mkdir()
    (home / "reach.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Reach(CartPoleEnv):\n"
        "    def __init__(self, token='', render_mode=None):\n"
        "        super().__init__(render_mode=render_mode)\n"
        "        self.token = token\n"
        "    def step(self, action):\n"
        "        if self.state[0] > 0.02:\n"
        "            raise KeyError(f'{self.token} {__file__}')\n"
        "        return super().step(action)\n",
        encoding="utf-8",
    )
    done = command(
        "eval", "reach.py:Reach", "--env-kwargs", json.dumps({"token": TOKEN}), "--out", out, "--report", "--quiet",
        "--episodes", 12, "--workers", 1, "--on-error", "skip", "--max-skipped", "90%", "--max-episode-steps", 20,
        cwd=home, env={**os.environ, "HOME": str(home), "MY_SECRET": "value-of-a-variable"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(f"report: {out / 'report.html'}\n")
    holds = [out / "run.json", out / "summary.json", *(out / "failures").iterdir()]  # what may hold the token
    assert {each.stat().st_mode & 0o777 for each in holds} == {0o600}
    assert json.loads((out / "run.json").read_text())["arguments"]["env_kwargs"] == {"token": TOKEN}
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    assert [each.path for each in treadle.film(out, failed=1, best=1, trust=True)] != []
    handed_on = [treadle.report(out), *(out / "films").iterdir()]
    assert "KeyError" in page_of(handed_on[0])
    for path in handed_on:
        for each in ("hunter2", "alice", "value-of-a-variable", str(tmp_path)):
            assert each.encode() not in path.read_bytes() + path.name.encode(), (path, each)


@pytest.mark.parametrize("two", [False, True])
def test_a_page_of_hostile_names_is_inert_and_names_no_person(at_home: Path, two: bool) -> None:
    out = hostile(at_home)
    text = page_of(treadle.report(out, hostile(at_home / "other") if two else None))
    parsed = Parsed(text)
    names = [name for name, _ in parsed.elements]
    assert names.count("script") == 2
    assert "img" not in names
    attributes = {each for _, found in parsed.elements for each in found}
    assert not [each for each in attributes if each.startswith("on") or each in ("src", "style", "action")]
    assert all(str(found["href"]).startswith("#") for name, found in parsed.elements if name == "a")
    for each in (
        "alert(1)</script>",
        "\x1b",
        "\u2028",
        "\u202e",
        "alice",
        "hunter2",
        "12345678",
        "value-of-a-variable",
        str(at_home),
    ):
        assert each not in text, each
        assert each.startswith("alert") or each not in unescape(text), each
        assert each.startswith("alert") or each not in json.dumps(data_of(text), ensure_ascii=False), each
    assert "(hidden)" in text


def test_a_policy_allows_this_style_and_script_alone(tmp_path: Path) -> None:
    import hashlib

    text = page_of(treadle.report(evaluation(tmp_path / "out", 3)))
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="(.*?)">', text)
    found = {
        "style-src": re.findall(r"<style>(.*?)</style>", text, re.S),
        "script-src": re.findall(r"<script>(.*?)</script>", text, re.S),
    }
    for rule, (content,) in found.items():
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in re.sub("http://www.w3.org/2000/svg", "", text).replace("http-equiv", "")


def test_a_strangers_directory_is_neither_imported_nor_unpickled(tmp_path: Path) -> None:
    out = directory_of(
        tmp_path / "out",
        [line(0), failing(1, "KeyError", "", "reach.py:3")],
        arguments={"env": "evil.py:Env", "policy": "evil:act"},
    )
    (out / "evil.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    (out / "failures").mkdir()
    (out / "failures" / "episode-1.repro").write_bytes(b"no zip")
    script = (
        "import sys, pickle, treadle\n"
        "def refuse(*args, **kwargs): raise SystemExit('unpickled')\n"
        "treadle.report; pickle.load = pickle.loads = refuse\n"
        "treadle.report('.')\nassert 'evil' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=out, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{BOB}/a/c.py", "~/a/c.py"),
        ("open('/data/sets/c.npz')", "open('…/c.npz')"),
        (f"see {ROOT}/x and {ROOT}.txt", f"see ~/x and {ROOT}.txt"),
        ("out/failures/e.repro", "out/failures/e.repro"),
        ("https://x.org/a/b", "https://x.org/a/b"),
        ("{run}/failures/e.repro {run} {run}2", "./failures/e.repro ./ …/run2"),
        ("a\nb\x1b[0m", "a b\\x1b[0m"),
        ("1/2 and n/a", "1/2 and n/a"),
    ],
)
def test_texts_name_no_paths_of_a_machine(tmp_path: Path, text: str, shown: str) -> None:
    run = tmp_path / "run"
    assert Inert(run, {}).text(text.replace("{run}", str(run))) == shown


def test_the_key_of_a_success_is_not_a_secret(tmp_path: Path) -> None:
    inert = Inert(tmp_path, {"success_keys": ["is_success", "success"], "api_key": "hunter2"})
    assert inert.text("success is 87 %, hunter2") == "success is 87 %, (hidden)"


def test_a_command_means_the_same_but_for_what_is_hidden(tmp_path: Path) -> None:
    typed = shlex.join(["treadle", "collect", "a b", '--env-kwargs={"auth": "x", "n": 1}', "--name", "it's; rm"])
    shown = Inert(tmp_path, {}).command(typed)
    assert shlex.split(shown) == [
        "treadle",
        "collect",
        "a b",
        '--env-kwargs={"auth": "(hidden)", "n": 1}',
        "--name",
        "it's; rm",
    ]
    assert Inert(tmp_path, {}).command("an open 'quote") == ""


def test_films_are_put_in_and_those_beyond_the_room_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = evaluation(tmp_path / "out", 20)
    (out / "films").mkdir()
    for name in ("episode-0003_return-1.0.mp4", "episode-0018_failure.png", "episode-0004_'x.mp4", "other.mp4"):
        (out / "films" / name).write_bytes(b"film" * 10)
    (out / "films" / "episode-0005_link.mp4").symlink_to("/etc/hostname")
    (side,) = data_of(page_of(treadle.report(out)))["sides"]
    inside = base64.b64encode(b"film" * 10).decode()
    assert side["films"] == {"18": f"data:image/png;base64,{inside}", "3": f"data:video/mp4;base64,{inside}"}
    monkeypatch.setattr("treadle.reports.report.INLINE", 50)
    text = page_of(treadle.report(out))
    assert data_of(text)["sides"][0]["films"]["3"] == "films/episode-0003_return-1.0.mp4"
    assert "Films of 3 are not in this file: they lie in films/." in said(text)


def test_two_runs_are_compared_by_seed(tmp_path: Path) -> None:
    for name, gain in (("weak", 0.0), ("strong", 1.0)):
        directory_of(tmp_path / name, [line(i, i + gain, success=i > 5 - gain) for i in range(10)])
    target = treadle.report(tmp_path / "strong", tmp_path / "weak")
    assert target.name == "report-weak.html"
    text = page_of(target)
    assert "From 10 equal starts strong has the higher return in 10, weak in 0; 0 are ties." in said(text)
    assert "One alone succeeds in 1: strong in 1, weak in 0." in said(text)
    data = data_of(text)
    assert data["columns"][0]["values"][0] == 5  # the pair in which one alone succeeds
    assert [each["replay"] for each in data["sides"]] == ["treadle replay strong", "treadle replay weak"]


def test_a_pair_is_of_equal_seeds_and_counted(tmp_path: Path) -> None:
    first = [
        line(0, 3.0, seed=1, success=True),
        line(1, 2.0, seed=2, success=False),
        line(2, 2.0, seed=3, success=True),
        line(9, 1.0, seed=9),
    ]
    second = [
        line(0, 2.0, seed=3, success=True),
        line(1, 5.0, seed=2, success=True),
        line(2, 1.0, seed=1, success=False),
        failing(3, "hang"),
    ]
    a, b = (directory_of(tmp_path / name, rows) for name, rows in (("a", first), ("b", second)))
    text = page_of(treadle.report(a, b))
    assert "From 3 equal starts a has the higher return in 1, b in 1; 1 are ties." in said(text)
    assert "The mean return of a differs from that of b by −0.333 " in said(text)
    assert "One alone succeeds in 2: a in 1, b in 1." in said(text)
    assert [each["names"] for each in data_of(text)["sides"]] == [[1, 0, 2], [1, 2, 0]]
    other = directory_of(tmp_path / "c", [line(0, seed=77)])
    with pytest.raises(UsageError, match="no episode of the same seed"):
        treadle.report(a, other)


def test_the_command_writes_it(tmp_path: Path) -> None:
    out = evaluation(tmp_path / "out", 5)
    done = command("report", out, "--out", tmp_path / "page.html")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path / 'page.html'}\n", "")
    assert json.loads(command("report", out, "--json").stdout) == {"report": str(out / "report.html")}
    assert page_of(out / "report.html") == page_of(tmp_path / "page.html")
    (tmp_path / "empty").mkdir()
    done = command("report", tmp_path / "empty")
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds nothing of a run" in done.stderr
    assert command("report", out, out, out).returncode == 2
