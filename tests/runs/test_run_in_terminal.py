"""One run in a terminal: it has a terminal of its own, and the user's is left as it was."""

from __future__ import annotations

import os
import signal
from unittest.mock import ANY

import pytest
from tests.forked import eventually
from tests.runs.running import PYTHON, UNWATCHED

pytestmark = pytest.mark.whole


def test_a_run_in_a_terminal_has_one_and_its_output_is_kept(in_terminal):
    program = "trap 'stty size' WINCH; tty; stty size; read line; echo got $line; while :; do read x; done"
    one = in_terminal(*UNWATCHED, "sh", "-c", program)
    before = one.attributes()
    one.wait_until_said("30 100")
    eventually(lambda: one.attributes() != before)
    one.type(b"typed\r")
    one.wait_until_said("got typed")
    one.resize(25, 90)
    one.signal("SIGWINCH")
    one.type(b"\r")  # read ends, and the shell does what the signal asks for
    one.wait_until_said("25 90")
    one.type(b"\x03")
    assert one.wait() == 130
    assert one.attributes() == before
    assert one.record().status == "killed"
    lines = one.kept().splitlines()
    assert lines[0].startswith("/dev/pts/")
    assert lines[0] != os.ttyname(one.theirs)
    assert lines[1:4] == ["30 100", "typed", "got typed"]


def test_a_debugger_in_a_terminal_can_be_talked_to(in_terminal):
    one = in_terminal(*UNWATCHED, PYTHON, "-S", "-c", "answer = 41\nbreakpoint()\nprint('then', answer)")
    one.wait_until_said("(Pdb)")
    one.type(b"answer = answer + 1\r")
    eventually(lambda: one.read().count("(Pdb)") == 2)
    one.type(b"c\r")
    one.wait_until_said("then 42")
    assert one.wait() == 0


def test_a_terminal_is_left_as_it_was_by_a_killed_penstock_run(in_terminal):
    one = in_terminal("sh", "-c", "echo ready; exec sleep 60")
    before = one.attributes()
    one.wait_until_said("ready")
    eventually(lambda: one.attributes() != before)
    os.kill(one.pid, signal.SIGKILL)
    eventually(lambda: one.attributes() == before)
    eventually(lambda: one.record().status == "killed")
    assert one.record().reason == "penstock run, which had started it, has disappeared"


def test_several_runs_in_a_terminal_end_with_its_ctrl_c(in_terminal):
    two = in_terminal(*UNWATCHED, "-n", "2", "sh", "-c", "echo ready; exec sleep 60")
    eventually(lambda: two.read().count("ready") == 2)
    assert "\x1b[36msh#0 | \x1b[0mready" in two.shown.decode()
    two.type(b"\x03")
    assert two.wait() == 130
    assert {record.reason for record in two.records()} == {"Ctrl-C"}


PROGRAM = """
import os, sys, time
import penstock
print("step \\x1b[31mone\\x1b[0m", flush=True)
while not os.path.exists("go"):
    penstock.log(loss=0.25)
    time.sleep(0.1)
print("the end")
"""


def test_what_several_runs_do_is_shown_below_what_they_print(in_terminal, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    three = in_terminal("-n", "3", "--listeners", "proc", "train.py")
    three.wait_until_said("loss=0.25")
    table = three.read().rpartition("logged")[2]
    assert [line.split()[:2] for line in table.splitlines()[1:4]] == [[f"train#{i}", ANY] for i in range(3)]
    three.resize(10, 40)
    before = three.read().count("status")
    eventually(lambda: three.read().count("status") > before + 2)
    three.resize(30, 100)
    (tmp_path / "go").touch()
    assert three.wait() == 0
    said = three.read()
    for i in range(3):
        assert "step \x1b[31mone\x1b[0m\r\n" in said.partition(f"train#{i} | ")[2]
    assert said.rindex("\x1b[J") < said.index("reason"), "nothing is left of it below the last table"


def test_more_runs_than_lines_are_counted_whatever_the_environment_says_of_the_terminal(in_terminal, monkeypatch):
    monkeypatch.setenv("LINES", "24")
    many = in_terminal("-n", "20", *UNWATCHED, "sh", "-c", "sleep 60")
    many.wait_until_said("… and 8 more")
    many.type(b"\x03")
    assert many.wait() == 130


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_a_terminal_that_cannot_go_back_shows_only_lines(in_terminal, kind):
    two = in_terminal("-n", "2", *UNWATCHED, "sh", "-c", "sleep 1.2; echo said", terminal=kind)
    assert two.wait() == 0
    assert "\x1b[J" not in two.read() and "said" in two.read()
