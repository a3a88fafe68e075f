"""One run in a terminal: it has a terminal of its own, and the user's is left as it was."""

from __future__ import annotations

import os
import signal

from tests.forked import eventually
from tests.runs.running import PYTHON


def test_a_run_in_a_terminal_has_one_and_its_output_is_kept(in_terminal):
    program = "trap 'stty size' WINCH; tty; stty size; read line; echo got $line; while :; do read x; done"
    one = in_terminal("sh", "-c", program)
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
    one = in_terminal(PYTHON, "-S", "-c", "answer = 41\nbreakpoint()\nprint('then', answer)")
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
    two = in_terminal("-n", "2", "sh", "-c", "echo ready; exec sleep 60")
    eventually(lambda: two.read().count("ready") == 2)
    assert "\x1b[36msh#0 | \x1b[0mready" in two.shown.decode()
    two.type(b"\x03")
    assert two.wait() == 130
    assert {record.reason for record in two.records()} == {"Ctrl-C"}
