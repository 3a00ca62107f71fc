# SPDX-License-Identifier: Apache-2.0
"""What PID 1 of a sandbox is to its workloads: its name, its walls, the signals it passes on, how it ends."""
import subprocess
import time

import opensandbox
import pytest
from opensandbox.config import ConnectionConfigSync

# a greeting to the agent's own port through vsock's loopback, as any user of the guest could send it
KNOCK = r"""
socket(S, 40, 1, 0) or die "no socket: $!\n";
connect(S, pack("S S L L L", 40, 0, 1024, %d, 0)) or die "no connection: $!\n";
syswrite(S, pack("L S S L", 12, 1, 0, 1) . pack("L L L", 0x3147414d, 1, 1));
my $n = sysread(S, my $b, 100);
print defined $n && $n > 0 ? "served\n" : "refused\n";
"""


# The base image's programs are linked against glibc. Those of `tiny` are static; it has musl's loader, too, for a program that a test brings along.
LIBCS = ("glibc", "musl", "static")
PROBE_C = r"""
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>
int main(void)
{
	char line[200];
	FILE *f = fopen("/proc/self/status", "r");

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "CapBnd:", 7) || !strncmp(line, "NoNewPrivs:", 11) || !strncmp(line, "Seccomp:", 8))
			fputs(line, stdout);
	if (mount("none", "/tmp", "tmpfs", 0, NULL) == 0)
		puts("mounted");
	if (access("/proc/1/environ", R_OK) == 0 && (f = fopen("/proc/1/environ", "r")) && fgetc(f) != EOF)
		puts("the environment of PID 1");
	if (fopen("/proc/1/mem", "r"))
		puts("the memory of PID 1");
	return 0;
}
"""


CONNECT_C = r"""
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(44772), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const char ask[] = "GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
	char got[200];
	ssize_t n;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || write(fd, ask, sizeof(ask) - 1) < 0 || (n = read(fd, got, sizeof(got))) < 0)
		return 1;
	return !fwrite(got, 1, (size_t)n, stdout);
}
"""


def musl_program(sandbox, name, text, tmp_path):
    """A program that is linked against musl, in the sandbox."""
    (tmp_path / f"{name}.c").write_text(text)
    subprocess.run(["musl-gcc", "-Os", "-o", tmp_path / name, tmp_path / f"{name}.c"], check=True)
    head = subprocess.run(["readelf", "-l", tmp_path / name], capture_output=True, text=True, check=True).stdout
    assert "ld-musl" in head, head
    sandbox.files.write_file(f"/root/{name}", (tmp_path / name).read_bytes(), mode=755)
    return f"/root/{name}"


def ask_own_api(sandbox, libc, tmp_path):
    """A command that asks the sandbox's own execution API."""
    ask = "printf 'GET /ping HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n'"
    if libc == "musl":
        return musl_program(sandbox, "connect", CONNECT_C, tmp_path)
    return f"exec 3<>/dev/tcp/127.0.0.1/44772 && {ask} >&3 && cat <&3" if libc == "glibc" else f"{ask} | nc 127.0.0.1 44772"


def probe(sandbox, libc, tmp_path):
    """A command that prints CapBnd, NoNewPrivs, Seccomp, and whatever it could do that it must not."""
    if libc != "musl":
        return ("grep -e CapBnd -e NoNewPrivs -e Seccomp: /proc/self/status; mount -t tmpfs none /tmp 2>/dev/null && echo mounted; "
                "dd if=/proc/1/environ bs=1 count=1 2>/dev/null; dd if=/proc/1/mem bs=1 count=1 2>/dev/null; true")
    return musl_program(sandbox, "probe", PROBE_C, tmp_path)


def create(daemon, image="base", **kw):
    return opensandbox.SandboxSync.create(image, connection_config=ConnectionConfigSync(domain=daemon.domain, api_key=daemon.api_key),
        resource={"cpu": "1", "memory": "256Mi"}, **kw)


def test_pid_1_is_named_and_closed(sandbox):
    def say(text):
        return sandbox.commands.run(text).text

    assert say("cat /proc/1/comm") == "execd"
    assert say("id -u; for f in environ mem maps auxv; do dd if=/proc/1/$f bs=1 count=1 2>/dev/null | wc -c; done; "
               "readlink /proc/1/exe /proc/1/root /proc/1/ns/mnt; echo end").split("\n") == ["0", "0", "0", "0", "0", "end"]
    for cid in (1, 3):
        assert say("perl -e '%s' 2>&1" % (KNOCK % cid)).split("\n")[-1] != "served"
    assert say("sh -c 'sleep 5 & cat /proc/$!/environ >/dev/null && echo own'") == "own"


@pytest.mark.parametrize("libc", LIBCS)
def test_pid_1_is_closed_for_programs_of_every_libc(daemon, libc, tmp_path):
    box = create(daemon, "base" if libc == "glibc" else "tiny")
    try:
        assert box.commands.run("cat /proc/1/comm").text == "execd"
        said = box.commands.run(probe(box, libc, tmp_path)).text
        assert "PID 1" not in said and len(said.splitlines()) <= 4 and "CapBnd:" in said, said
        ask, end = ask_own_api(box, libc, tmp_path), time.monotonic() + 60
        while "HTTP/1.1 200" not in (said := box.commands.run(ask).text):
            # the way opens a moment after the sandbox runs
            assert time.monotonic() < end, said
            time.sleep(0.2)
    finally:
        box.kill()
        box.close()


@pytest.mark.parametrize("image", ["base", "tiny"])
def test_signals_reach_the_entrypoint_and_term_ends_the_sandbox(daemon, machine, image):
    from opensandbox.models.sandboxes import Host, Volume
    # a script of the user's, sourced before the entrypoint
    machine.run("sh", "-c", "mkdir -p /var/lib/mayfly/shared/init && echo 'export BY_SCRIPT=yes OTHER=changed' > /var/lib/mayfly/shared/init/pre", check=True)
    box = create(daemon, image, volumes=[Volume(name="init", host=Host(path="/var/lib/mayfly/shared/init"), mount_path="/opt/init", read_only=True)], entrypoint=["sh", "-c", "for s in HUP USR1 USR2 WINCH; do trap \"echo $s >> /root/got\" $s; done; "
                                     "trap 'exit 7' TERM; echo $OTHER > /root/entry; echo up >> /root/got; while :; do sleep 0.1; done 2>/dev/null"],
                 env={"EXECD_INIT": "secret-of-mine", "OTHER": "seen", "EXECD_BOOTSTRAP_PRE_SCRIPT": "/opt/init/pre"})
    try:
        def got():
            return box.commands.run("cat /root/got 2>/dev/null").text.split()

        end = time.monotonic() + 60
        while got() != ["up"]:
            assert time.monotonic() < end
            time.sleep(0.2)
        for s in ("HUP", "USR1", "USR2", "WINCH"):
            box.commands.run(f"kill -{s} 1")
            end = time.monotonic() + 60
            while got()[-1] != s:
                assert time.monotonic() < end
                time.sleep(0.1)
        assert got() == ["up", "HUP", "USR1", "USR2", "WINCH"]
        assert box.commands.run("echo $OTHER $BY_SCRIPT; cat /root/entry; env | grep -c -e secret-of-mine -e PRE_SCRIPT=").text == "changed yes\nchanged\n0"
        box.commands.run("kill -TERM 1")
        end = time.monotonic() + 60
        while box.get_info().status.state not in ("Terminated", "Failed"):
            assert time.monotonic() < end, box.get_info().status
            time.sleep(0.2)
        assert "7" in (box.get_info().status.message or ""), box.get_info().status
    finally:
        box.kill()
        box.close()
