# SPDX-License-Identifier: Apache-2.0
"""The appliance itself: commands in it, what lasts, that two machines do not see each other, and that no kill leaves work for a human."""
import os
import random
import re
import signal
import socket
import struct
import subprocess
import time

from conftest import MAYFLY
from pointkit import wall

KILLS = 30 if os.environ.get("MAYFLY_STRESS") else 10


def test_exit_codes(machine):
    assert machine.run("true").returncode == 0
    assert machine.run("sh", "-c", "exit 7").returncode == 7
    assert machine.run("sh", "-c", "kill -9 $$").returncode == 137
    r = machine.run("no-such-program")
    assert r.returncode == 127 and "no-such-program" in r.stderr
    assert machine.run("/etc").returncode == 126


def test_streams_stay_apart_and_whole(machine):
    r = machine.run("sh", "-c", "echo out; echo err >&2")
    assert (r.stdout, r.stderr) == ("out\n", "err\n")
    # more than any buffer on the way, both ways at once
    data = random.Random(1).randbytes(3_000_000)
    r = subprocess.run([MAYFLY, "machine", "exec", "--name", machine.name, "--", "cat"], input=data, capture_output=True, timeout=120)
    assert r.returncode == 0 and r.stdout == data


def test_environment_and_folder(machine):
    r = machine.cli("exec", "-n", "--cwd", "/tmp", "--env", "A=x y", "--env", "B=", "--", "sh", "-c", 'pwd; echo "$A|$B|$HOME"')
    assert r.stdout == "/tmp\nx y||/root\n"
    assert machine.cli("exec", "-n", "--cwd", "/no/such", "--", "true").returncode == 126


def test_several_at_once(machine):
    procs = [machine.popen("sh", "-c", f"sleep 1; echo {i}", stdout=subprocess.PIPE, text=True) for i in range(8)]
    assert [p.communicate(timeout=60)[0] for p in procs] == [f"{i}\n" for i in range(8)]


def test_a_client_that_goes_takes_its_command_along(machine):
    p = machine.popen("sh", "-c", "exec sleep 987")
    end = time.monotonic() + 20
    while machine.run("pgrep", "-fx", "sleep 987").returncode != 0:
        assert time.monotonic() < end, "the command did not start"
    p.kill()
    p.wait()
    while machine.run("pgrep", "-fx", "sleep 987").returncode == 0:
        assert time.monotonic() < end, "the command outlived its client"


def test_terminal(machine):
    master, slave = os.openpty()
    p = subprocess.Popen([MAYFLY, "machine", "exec", "--name", machine.name, "-t", "--", "sh", "-c", "tty; stty size; read x; echo got:$x"],
                         stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    os.write(master, b"hello\r")
    out = b""
    while p.poll() is None or b"got:" not in out:
        try:
            out += os.read(master, 4096)
        except OSError:
            break
    assert p.wait(timeout=30) == 0
    assert b"/dev/pts/" in out and b"got:hello" in out
    os.close(master)


def test_token_is_wanted(machine):
    """Whoever finds the exec server's port but not the token gets an error and nothing else."""
    text = (machine.exchange.parent / "info").read_text().split()
    port = int(text[text.index("exec") + 1])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
        s.sendall(b"\x01\0\0\0\x20\0\0\0" + b"\0" * 32)
        assert b"wrong token" in s.recv(4096)


def test_all_of_a_request_at_once(machine):
    """Token, command, its input and the end of that in one segment, as a loaded host sends them: nothing comes later that would wake the server."""
    text = (machine.exchange.parent / "info").read_text().split()
    token = (machine.exchange.parent / "token").read_bytes()

    def frame(kind, payload):
        return struct.pack("<II", kind, len(payload)) + payload

    def string(b):
        return struct.pack("<I", len(b)) + b
    command = struct.pack("<IHH", 0, 0, 0) + string(b"/") + struct.pack("<I", 1) + string(b"cat") + struct.pack("<I", 0)
    with socket.create_connection(("127.0.0.1", int(text[text.index("exec") + 1])), timeout=20) as s:
        s.sendall(frame(1, token) + frame(2, command) + frame(5, b"hello") + frame(5, b""))
        answer = b""
        while b := s.recv(4096):
            answer += b
    assert b"hello" in answer


def test_published_files_are_read_only_and_named_by_content(machine, tmp_path):
    f = tmp_path / "f"
    f.write_text("one")
    first = machine.publish(f)
    assert machine.publish(f) == first
    assert machine.run("cat", first + "/f").stdout == "one"
    f.write_text("two")
    second = machine.publish(f)
    assert second != first
    assert machine.run("cat", second + "/f").stdout == "two"
    assert machine.run("cat", first + "/f").stdout == "one"
    assert machine.run("sh", "-c", f"echo x > {first}/f").returncode != 0


def test_exchange_goes_both_ways(machine):
    (machine.exchange / "in").write_text("from the host")
    assert machine.run("cat", "/exchange/in").stdout == "from the host"
    machine.run("sh", "-c", "echo from inside > /exchange/out", check=True)
    assert (machine.exchange / "out").read_text() == "from inside\n"


def test_the_ground_is_right(machine):
    """What the daemon and its VMs need of the kernel."""
    r = machine.run("sh", "-c", "cat /sys/fs/cgroup/cgroup.subtree_control; stat -f -c %T /var/lib/mayfly; test -c /dev/kvm && echo kvm; "
                    "cat /sys/kernel/security/lsm 2>/dev/null; nproc; df -h / | tail -1")
    assert "cpu" in r.stdout and "memory" in r.stdout and "pids" in r.stdout
    assert "xfs" in r.stdout and "kvm" in r.stdout
    host = machine.publish(MAYFLY)
    doctor = machine.run(host + "/mayfly", "doctor").stdout
    assert "kvm           usable" in doctor, doctor
    assert machine.run("sh", "-c", "cd /var/lib/mayfly && echo x > a && cp --reflink=always a b && rm a b").returncode == 0


def test_clock_rate_is_the_hosts(machine):
    """A rate that is off, as one measured by a preempted process, breaks KVM in there: the clocks of its VMs jump and their timers never end."""
    mayfly = machine.publish(MAYFLY)
    machine.run(mayfly + "/mayfly", "doctor")  # creates a VM
    log = machine.run("dmesg").stdout
    assert "below hardware speed" not in log
    told, refined = (re.search(rf"tsc: {what} ([0-9.]+) MHz", log) for what in ("Detected", "Refined TSC clocksource calibration:"))
    if refined:  # seconds after the start
        assert abs(float(told[1]) / float(refined[1]) - 1) < 250e-6, log
    assert machine.run("cat", "/sys/module/kvm/parameters/tsc_tolerance_ppm").stdout == "20000\n"


def test_wall_clock_is_the_hosts(machine):
    """Its board's clock shows whole seconds, and whatever stops this host stops it: every start sets it, also one that finds it running."""
    ahead, unsure = wall(machine)
    assert abs(ahead) <= unsure + 0.02, (ahead, unsure)
    for step in ("-7200", "3"):
        machine.run("sh", "-c", f"date -s @$(($(date +%s) + {step}))", check=True)
        assert abs(wall(machine)[0]) > 1.5
        machine.start()
        ahead, unsure = wall(machine)
        assert abs(ahead) <= unsure + 0.02, (ahead, unsure)


def test_two_machines_do_not_meet(machine, fresh_machine):
    fresh_machine.start()
    assert fresh_machine.port != machine.port
    machine.run("touch", "/var/lib/mayfly/mine", check=True)
    assert fresh_machine.run("test", "-e", "/var/lib/mayfly/mine").returncode == 1
    machine.run("rm", "/var/lib/mayfly/mine", check=True)


def test_data_lasts_the_root_does_not(fresh_machine):
    m = fresh_machine.start()
    m.run("sh", "-c", "echo kept > /var/lib/mayfly/f; echo gone > /root/f; sync", check=True)
    for _ in range(3):
        assert "stopped" in m.stop().stdout, "it was killed instead of stopped in order"
        assert m.status()["state"] == "stopped"
        m.start()
    m.stop()
    m.start()
    assert m.run("cat", "/var/lib/mayfly/f").stdout == "kept\n"
    assert m.run("test", "-e", "/root/f").returncode == 1
    # twice is as once
    assert "already runs" in m.cli("start").stdout


def test_bad_input(machine, fresh_machine):
    assert machine.cli("exec").returncode == 125
    assert machine.cli("start", "--memory", "lots").returncode == 2
    assert machine.cli("start", "--no-such-option").returncode == 2
    assert subprocess.run([MAYFLY, "machine", "start", "--name", "../x"], capture_output=True).returncode == 2
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        r = fresh_machine.cli("start", "--port", str(s.getsockname()[1]))
        assert r.returncode == 1 and "--port" in r.stderr
    r = fresh_machine.cli("start", "--port", "0", "--memory", "4000G")
    assert r.returncode == 1 and "--memory" in r.stderr
    assert fresh_machine.run("true").returncode == 125


def test_kills_at_random_moments_need_no_cleaning(fresh_machine):
    """Whoever starts it, or its QEMU, dies at any moment of the start: the next start just works."""
    rng = random.Random(os.environ.get("SEED", "7"))
    m = fresh_machine
    m.start()
    m.run("sh", "-c", "echo kept > /var/lib/mayfly/f; sync", check=True)
    m.stop()
    for i in range(KILLS):
        p = subprocess.Popen([MAYFLY, "machine", "start", "--name", m.name, "--port", "0", "--memory", m.memory],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(rng.uniform(0, 4))  # the random moment itself
        if rng.random() < 0.5:
            p.kill()
        if rng.random() < 0.6:
            pid = m.status()["pid"]
            if pid:
                os.kill(pid, signal.SIGKILL)
        p.kill() if rng.random() < 0.3 else None
        p.wait()
        m.start()
        assert m.run("cat", "/var/lib/mayfly/f").stdout == "kept\n", f"round {i}"
        if rng.random() < 0.5:
            m.cli("stop", *(["--force"] if rng.random() < 0.5 else []))
