# SPDX-License-Identifier: Apache-2.0
"""The network of a sandbox on this very host: a real mayfly-net and a real mayfly-broker, the guest being a network namespace behind a tap device
(tests/tools/netguest.c). The "host" and the "internet" are two more namespaces, so that nothing here depends on where the tests run."""
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
GUEST = TOP / "build" / "tools" / "netguest"
HOST4, HOST_OTHER, WEB4, PRIVATE4, WEB6 = "8.7.6.1", "8.7.7.1", "8.7.6.2", "10.9.9.9", "2600:1::2"
SERVERS = r'''
import http.server, socketserver, threading, socket, struct, sys
ADDR = {"web.example": "8.7.6.2", "good.example": "8.7.6.3", "rebind.example": "10.9.9.9", "inner.example": "127.0.0.1"}
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        n = int(self.path[1:] or 0)
        self.send_response(200); self.send_header("Content-Length", str(n)); self.end_headers()
        block = b"x" * 65536
        while n > 0:
            n -= self.wfile.write(block[:min(n, len(block))])
    def do_POST(self):
        left = int(self.headers["Content-Length"])
        while left > 0:
            left -= len(self.rfile.read(min(left, 65536)))
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *a): pass
class S(socketserver.ThreadingMixIn, http.server.HTTPServer):
    address_family = socket.AF_INET6; daemon_threads = True; request_queue_size = 1000
    def handle_error(self, *a): pass
    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0); super().server_bind()
def name(q):
    at, labels = 12, []
    while q[at]:
        labels.append(q[at + 1:at + 1 + q[at]].decode()); at += q[at] + 1
    return ".".join(labels).lower(), at + 1
def answer(q, tcp):
    n, end = name(q); kind = struct.unpack(">H", q[end:end + 2])[0]; rr = b""; count = 0
    def a(ip): return b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(ip)
    if n == "big.example" and kind == 1:
        if not tcp: return q[:2] + b"\x83\x80\0\1\0\0\0\0\0\0" + q[12:end + 4]
        count = 200; rr = b"".join(a("8.7.6.%d" % (i % 250 + 1)) for i in range(count))
    elif n == "huge.example" and kind == 1:
        if not tcp: return q[:2] + b"\x83\x80\0\1\0\0\0\0\0\0" + q[12:end + 4]
        count = 4090; rr = a("8.7.6.2") * count
    elif (n == "liar.example" or n.endswith(".many.example")) and kind == 1: count, rr = 1, a("8.7.6.2")
    elif n in ADDR and kind == 1: count, rr = 1, a(ADDR[n])
    code = 0 if n in ADDR or count or n == "big.example" else 3
    return q[:2] + bytes([0x81, 0x80 | code]) + struct.pack(">HHHH", 1, count, 0, 0) + q[12:end + 4] + rr
def said(q):
    """What is said to a question: by one that lies first, or says nothing."""
    n, end = name(q); right = answer(q, False)
    if n == "silent.example": return []
    if n != "liar.example": return [right]
    bad = right.replace(socket.inet_aton("8.7.6.2"), socket.inet_aton("8.7.6.3"))
    return [bytes([bad[0] ^ 1]) + bad[1:], bad.replace(b"liar", b"lies"), bad[:end + 2], b"", b"x" * 4000, q, right]
def dns_udp(s):
    while True:
        q, who = s.recvfrom(4096)
        for m in said(q): s.sendto(m, who)
def dns_tcp(s):
    while True:
        c, _ = s.accept()
        n = struct.unpack(">H", c.recv(2))[0]; a = answer(c.recv(n), True); c.sendall(struct.pack(">H", len(a)) + a); c.close()
def echo(s):
    while True:
        d, who = s.recvfrom(65535); s.sendto(d, who)
for port in (53, 5353): u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("0.0.0.0", port)); threading.Thread(target=dns_udp, args=(u,), daemon=True).start()
for port in (53, 5353): t = socket.socket(); t.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); t.bind(("0.0.0.0", port)); t.listen(50); threading.Thread(target=dns_tcp, args=(t,), daemon=True).start()
e = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); e.bind(("::", 7)); threading.Thread(target=echo, args=(e,), daemon=True).start()
s = S(("::", 80), H); print("up", flush=True); s.serve_forever()
'''


def ip(*args):
    return subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def lab():
    """(host, internet): two namespaces joined by a pair of devices, with servers in both."""
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        pytest.skip("needs root and /dev/net/tun")
    subprocess.run(["make", "-s", "build/tools/netguest"], cwd=TOP, check=True)
    host, web = f"mayfly-h{os.getpid()}", f"mayfly-w{os.getpid()}"
    try:
        ip("netns", "add", host)
        ip("netns", "add", web)
    except subprocess.CalledProcessError as e:
        pytest.skip("no network namespaces here: " + e.stderr)
    procs = []
    conf = pathlib.Path("/etc/netns") / host / "resolv.conf"  # `ip netns exec` shows it as /etc/resolv.conf
    try:
        conf.parent.mkdir(parents=True)
        conf.write_text(f"search corp.example\nnameserver {WEB4}\n")
        ip("-n", host, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", web)
        for ns, dev, addrs in ((host, "v0", [HOST4 + "/24", HOST_OTHER + "/32"]), (web, "v1", [WEB4 + "/24", "8.7.6.3/24", PRIVATE4 + "/32"])):
            for a in addrs:
                ip("-n", ns, "addr", "add", a, "dev", dev)
            ip("-n", ns, "addr", "add", ("2600:1::1" if ns == host else WEB6) + "/64", "dev", dev, "nodad")
            ip("-n", ns, "link", "set", "lo", "up")
            ip("-n", ns, "link", "set", dev, "up")
            p = subprocess.Popen(["ip", "netns", "exec", ns, sys.executable, "-c", SERVERS], stdout=subprocess.PIPE, text=True)
            procs.append(p)
            assert p.stdout.readline() == "up\n"
        ip("-n", host, "route", "add", "default", "via", WEB4)
        subprocess.run(["ip", "netns", "exec", host, "sh", "-c", "echo 0 2147483647 > /proc/sys/net/ipv4/ping_group_range"], check=True)
        yield host, web
    finally:
        for p in procs:
            p.kill()
            p.wait()
        ip("netns", "del", host)
        ip("netns", "del", web)
        shutil.rmtree(conf.parent, ignore_errors=True)


class Result:
    def __init__(self, r):
        self.code, self.out, self.err = r.returncode, r.stdout, r.stderr
        self.count = dict(line.split("=") for line in r.stderr.splitlines() if "=" in line and line.split("=")[1].isdigit())
        self.count = {k: int(v) for k, v in self.count.items()}
        self.denied = [line[7:] for line in r.stderr.splitlines() if line.startswith("denied ")]


def guest(lab, *options, code="", sh="", timeout=60, before=()):
    command = [sys.executable, "-c", PRELUDE + code] if code else ["bash", "-c", sh]
    r = subprocess.run([*before, "ip", "netns", "exec", lab[0], GUEST, "--bin", TOP / "build/bin", "--jail", "312400", *options, "--", *command],
                       capture_output=True, text=True, timeout=timeout)
    assert "mayfly-net is gone" not in r.stderr, r.stderr
    return Result(r)


PRELUDE = r'''
import socket, struct, sys, time, errno
def tcp(addr, port=80, timeout=5):
    try:
        return socket.create_connection((addr, port), timeout)
    except OSError as e:
        return e
def reach(addr, port=80):
    c = tcp(addr, port)
    if isinstance(c, OSError):
        return errno.errorcode.get(c.errno, str(c))
    c.close()
    return "open"
def get(addr, n):
    c = socket.create_connection((addr, 80), 10)
    c.sendall(b"GET /%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % n)
    total = 0
    while True:
        d = c.recv(1 << 20)
        if not d: break
        total += len(d)
    return total
def lookup(name):
    try:
        return sorted({a[4][0] for a in socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)})
    except OSError as e:
        return str(e)
def udp(addr, data, port=7, timeout=3):
    s = socket.socket(socket.AF_INET6 if ":" in addr else socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(timeout)
    try:
        s.connect((addr, port)); s.send(data); return s.recv(65535)
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))
'''


def test_everything_public_is_open_without_a_policy(lab):
    r = guest(lab, code='''
print(get("8.7.6.2", 5000000), get("2600:1::2", 5000000) > 5000000)
print(len(udp("8.7.6.2", b"x" * 60000)), udp("2600:1::2", b"six"))
print(reach("8.7.6.2", 81), udp("8.7.6.2", b"x", 9))
print(lookup("web.example"), lookup("none.example"))
print(len(lookup("big.example")))
''')
    lines = r.out.splitlines()
    assert int(lines[0].split()[0]) > 5000000 and lines[0].endswith("True"), r.err
    assert lines[1] == "60000 b'six'"
    assert lines[2] == "ECONNREFUSED ECONNREFUSED"
    assert lines[3].startswith("['8.7.6.2'] [Errno")
    assert lines[4] == "199"  # over TCP; one of the 200 is the host's own address
    assert r.count["refused"] == 0 and r.count["bytes_in"] > 10000000 and r.count["udp_opened"] == 3


CLOSED = [HOST4, HOST_OTHER, PRIVATE4, "169.254.169.254", "100.64.0.1", "192.168.1.1", "172.16.0.1", "192.0.2.1", "192.0.2.77", "168.63.129.16", "0.0.0.0",
          "2600:1::1", "fd00:ec2::254", "64:ff9b::a09:909", "64:ff9b::807:601", "2002:a09:909::1", "fe80::1", "::ffff:10.9.9.9", "::ffff:8.7.6.1"]


def test_closed_places_are_closed(lab):
    code = "".join(f"print({a!r}, reach({a!r}), udp({a!r}, b'x', timeout=1))\n" for a in CLOSED)
    r = guest(lab, code=code)
    for line in r.out.splitlines():
        addr, tcp, *udp = line.split()
        if addr != "0.0.0.0":  # the guest's own kernel takes that for itself
            assert tcp not in ("open",) and "b'" not in udp[0], line
    assert len(r.out.splitlines()) == len(CLOSED), r.err
    # the broker refused each: nothing that only does not answer counts as closed
    refused = {d.split(" (")[0] for d in r.denied}
    own = ("0.0.0.0", "192.0.2.1", "192.0.2.77", "fe80::1")  # the guest's own kernel, its gateway and its link
    for a in CLOSED:
        a = a.removeprefix("::ffff:")
        if a not in own:
            place = f"[{a}]" if ":" in a else a
            assert {f"tcp {place}:80", f"udp {place}:7"} & refused, (a, refused)


def test_names_open_addresses(lab):
    r = guest(lab, "--deny", "bad.many.example", "--allow", "good.example", "--allow", "*.many.example", code='''
print(reach("8.7.6.3"))                       # nobody asked for its name yet
print(lookup("good.example"), reach("8.7.6.3"), reach("8.7.6.2"))
print(lookup("web.example"), lookup("many.example"), lookup("bad.many.example"))
print(lookup("a.many.example"), reach("8.7.6.2"), reach("8.7.6.2", 853))
# a resolver of the guest's own choice is ours all the same
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3)
s.sendto(b"\\x12\\x34\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\3web\\7example\\0\\0\\1\\0\\1", ("9.9.9.9", 53))
d, who = s.recvfrom(1000); print(who[0], d[3] & 15)
''')
    lines = r.out.splitlines()
    assert lines[0] == "EHOSTUNREACH", r.err
    assert lines[1] == "['8.7.6.3'] open EHOSTUNREACH"
    assert lines[2].count("Errno") == 3
    assert lines[3].startswith("['8.7.6.2']") and "open" in lines[3] and not lines[3].endswith("open")
    assert lines[4] == "9.9.9.9 3"
    assert any(d.startswith("web.example (default)") for d in r.denied) and any(d.startswith("bad.many.example (rule)") for d in r.denied)


def test_rebinding_is_refused(lab):
    code = 'print(lookup("rebind.example"), lookup("inner.example"), reach("10.9.9.9"))'
    r = guest(lab, code=code)
    assert r.out.count("Errno") == 2 and "EHOSTUNREACH" in r.out and r.count["rebinding"] == 2
    r = guest(lab, "--open", "--allow", "10.9.9.0/24", code=code)
    assert r.out.startswith("['10.9.9.9']") and r.out.endswith("open\n"), r.err
    r = guest(lab, "--operator-allow", "10.9.9.9", code=code)
    assert r.out.startswith("['10.9.9.9']") and r.out.endswith("open\n"), r.err


def test_a_change_ends_what_it_forbids_within_a_second(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    code = '''
a, b = tcp("8.7.6.2"), tcp("8.7.6.3")
print("ready", flush=True)
def alive(c):
    try:
        c.settimeout(30); c.sendall(b"GET /1 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"); return bool(c.recv(1000))
    except OSError:
        return False
print(alive(a), alive(b), flush=True)
import os, pathlib
pathlib.Path(os.environ["SEEN"]).touch()
end = time.monotonic() + 60
while alive(b) and time.monotonic() < end:
    time.sleep(0.05)
# the next look at it does not wait: it has ended
start = time.monotonic()
print(alive(a), alive(b), time.monotonic() - start < 15)
'''
    r = guest(lab, "--allow", "8.7.6.2", "--allow", "8.7.6.3", "--then", "for i in $(seq 600); do [ ! -e $SEEN ] || break; sleep 0.1; done", "--allow", "8.7.6.2", code=code)
    assert r.out.splitlines()[1:] == ["True True", "True False True"], r.err
    assert r.count["shut"] == 1


def test_ping_and_the_gateway(lab):
    code = '''
def ping(addr):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); s.settimeout(3); s.connect((addr, 0))
    m = struct.pack(">BBHHH", 8, 0, 0, 4711, 1) + b"payload."
    t = sum(struct.unpack(">8H", m)); t = (t & 0xffff) + (t >> 16); t = (t & 0xffff) + (t >> 16)
    s.send(m[:2] + struct.pack(">H", ~t & 0xffff) + m[4:])
    while True:
        d = s.recv(1000)[20:]
        if d[0] != 8:
            return d[0], d[1], struct.unpack(">H", d[4:6])[0], d[8:]
def ping6(addr): # the kernel makes the sum
    s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6); s.settimeout(3); s.connect((addr, 0))
    s.send(struct.pack(">BBHHH", 128, 0, 0, 4711, 1) + b"payload.")
    while True:
        d = s.recv(1000)
        if d[0] == 129:
            return struct.unpack(">H", d[4:6])[0], d[8:]
print(ping("8.7.6.2"))
print(ping("192.0.2.1"))
print(ping6("2600:1::2"))
try: ping6("2600:1::1")
except OSError as e: print(errno.errorcode.get(e.errno, e))
try: ping("10.9.9.9")
except OSError as e: print(errno.errorcode[e.errno])
'''
    r = guest(lab, code=code)
    assert r.out.splitlines() == ["(0, 0, 4711, b'payload.')", "(0, 0, 4711, b'payload.')", "(4711, b'payload.')", "EACCES", "EHOSTUNREACH"], r.err


def test_limits_hold_and_nothing_breaks(lab):
    code = '''
cs = [tcp("8.7.6.2", timeout=3) for _ in range(60)]
print(sum(not isinstance(c, OSError) for c in cs))
for c in cs: isinstance(c, OSError) or c.close()
end = time.monotonic() + 30
while reach("8.7.6.2") != "open" and time.monotonic() < end: time.sleep(.1)
print(reach("8.7.6.2"))
'''
    r = guest(lab, "--limit", "0=40", code=code)
    assert r.out.splitlines() == ["40", "open"], r.err
    assert r.count["limited"] >= 20


def test_floods_of_nonsense(lab):
    code = '''
import os, random
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("eth0", 0))
random.seed(7)
head = bytes.fromhex("026d666e0001026d666e0002")
ip4 = bytes.fromhex("450000280000000040060000c00002020807060200")
for i in range(20000):
    kind = random.choice([b"\\x08\\0", b"\\x86\\xdd", b"\\x08\\x06", os.urandom(2)])
    body = bytearray(ip4[:20] + os.urandom(random.randrange(0, 200)))
    for _ in range(random.randrange(0, 6)):
        body[random.randrange(len(body))] = random.randrange(256)
    try: s.send(head + kind + bytes(body))
    except OSError: pass
print(get("8.7.6.2", 100000) > 100000, lookup("web.example"))
'''
    r = guest(lab, code=code)
    assert r.out == "True ['8.7.6.2']\n", r.err


def test_a_resolver_of_the_daemons_choice(lab):
    r = guest(lab, "--resolver", WEB4 + ",5353", code='print(lookup("web.example"), lookup("big.example")[:1])')
    assert r.out == "['8.7.6.2'] ['8.7.6.10']\n", r.err


def test_many_connections_at_once(lab):
    code = '''
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(50) as p:
    print(sum(p.map(lambda i: get("8.7.6.2", 20000) > 20000, range(300))))
    print(sum(p.map(lambda i: lookup("n%d.many.example" % i) == ["8.7.6.2"], range(200))))
time.sleep(1)
'''
    r = guest(lab, code=code)
    assert r.out.split() == ["300", "200"], r.err
    assert r.count["open"] <= 4 and r.count["tcp_opened"] == 300


def test_uploads(lab):
    code = '''
c = tcp("8.7.6.2"); c.settimeout(30); n = 20000000
c.sendall(b"POST / HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n" % n)
start = time.monotonic(); c.sendall(b"x" * n); d = c.recv(100)
print(d.startswith(b"HTTP/1.1 200"))
'''
    r = guest(lab, code=code)
    assert r.out == "True\n" and r.count["bytes_out"] > 20000000, r.err


def test_neighbours_do_not_notice_a_flood(lab):
    flood = '''
end = time.monotonic() + 6
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while time.monotonic() < end:
    for p in range(1, 200): s.sendto(b"x", ("8.7.6.2", p))
'''
    quiet = '''
t = []
for i in range(30):
    start = time.monotonic(); get("8.7.6.2", 100); t.append(time.monotonic() - start); time.sleep(.1)
print(sorted(t)[15] < 10)
'''
    with concurrent.futures.ThreadPoolExecutor(2) as p:
        a, b = p.submit(guest, lab, code=flood), p.submit(guest, lab, code=quiet)
        assert b.result().out == "True\n", b.result().err
        assert a.result().code == 0


QUESTION = r'''
def question(i, name, kind=1):
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split("."))
    return struct.pack(">HHHHHH", i, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
def resolver():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("192.0.2.1", 53)); s.settimeout(60)
    return s
def code(s):
    """The id and the rcode of the next answer."""
    d = s.recv(65535)
    return struct.unpack(">H", d[:2])[0], d[3] & 15
'''


def test_a_flood_of_questions(lab):
    """It uses up the sandbox's own budget, here of one question a second, and is counted. Afterwards names resolve again."""
    r = guest(lab, "--limit", "2=1", code=QUESTION + '''
s = resolver()
for i in range(2000): s.send(question(i, "f%d.many.example" % i))
end = time.monotonic() + 60
while (got := lookup("web.example")) != ["8.7.6.2"] and time.monotonic() < end: time.sleep(1)
print(got, get("8.7.6.2", 1000) > 1000)
''', timeout=150)
    assert r.out == "['8.7.6.2'] True\n", r.err
    assert r.count["limited"] > 0 and r.count["queries"] > r.count["limited"], r.count


def test_a_tunnel_over_names_is_counted(lab):
    """Data in the labels of names: every question counts, and what is not allowed is in the list of denied places."""
    r = guest(lab, "--allow", "*.many.example", code=QUESTION + '''
import os
s, codes = resolver(), []
for i in range(100):
    for kind in (1, 16):
        s.send(question(i, os.urandom(30).hex() + (".many.example" if i & 1 else ".tunnel.example"), kind)); codes.append(code(s)[1])
print(sorted(set(codes[0::4] + codes[1::4])), codes[2::4] == [0] * 50)
''')
    assert r.out == "[3] True\n", r.err
    assert r.count["queries"] >= 200 and r.count["queries_denied"] >= 100
    assert len([d for d in r.denied if ".tunnel.example (default)" in d]) == 64  # as long as the list is


def test_a_resolver_that_lies_is_silent_or_says_too_much(lab):
    r = guest(lab, code=QUESTION + '''
s = resolver()
s.send(question(1, "silent.example"))
s.send(question(2, "web.example"))
print(code(s), code(s))
print(lookup("liar.example"))
d = socket.create_connection(("192.0.2.1", 53), 60); q = question(3, "huge.example"); d.sendall(struct.pack(">H", len(q)) + q)
n = struct.unpack(">H", d.recv(2, socket.MSG_WAITALL))[0]; m = d.recv(n, socket.MSG_WAITALL)
print(len(m) == n, m[:2] == q[:2], n)
print(lookup("web.example"), get("8.7.6.2", 1000) > 1000)
''', timeout=150)
    lines = r.out.splitlines()
    assert lines[0] == "(2, 0) (1, 2)", r.err  # nobody waits behind the silent one
    assert lines[1] == "['8.7.6.2']"
    assert lines[2].startswith("True True")
    assert lines[3] == "['8.7.6.2'] True"


def test_a_host_without_ipv6(lab, tmp_path):
    """Its kernel makes no such sockets: IPv4 works, and a guest's IPv6 is refused at once."""
    subprocess.run(["make", "-s", "build/tools/deny"], cwd=TOP, check=True)
    wrap = tmp_path / "without"
    wrap.write_text(f'#!/bin/sh\nexec {TOP}/build/tools/deny socket:10=EAFNOSUPPORT -- "$@"\n')
    wrap.chmod(0o755)
    r = guest(lab, "--wrap", wrap, code='''
print(get("8.7.6.2", 1000) > 1000, lookup("web.example"))
print(reach("2600:1::2"), udp("2600:1::2", b"six"))
print(get("8.7.6.2", 1000) > 1000)
''')
    lines = r.out.splitlines()
    assert lines[0] == "True ['8.7.6.2']", r.err
    assert "open" not in lines[1] and "b'" not in lines[1] and "ETIMEDOUT" not in lines[1], lines[1]
    assert lines[2] == "True"


def test_an_address_that_the_host_gets_later_closes(lab, tmp_path, monkeypatch):
    """Also for the connection that is open."""
    host, web = lab
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    wait = "for i in $(seq 600); do [ ! -e $SEEN%s ] || break; sleep 0.1; done"
    ip("-n", web, "addr", "add", "8.7.6.9/24", "dev", "v1")
    try:
        r = guest(lab, "--open", "--then", f"{wait % '.open'}; ip addr add 8.7.6.9/32 dev lo; {wait % '.closed'}", code='''
import os, pathlib
c = tcp("8.7.6.9"); c.settimeout(60)
print(reach("8.7.6.9"), flush=True)
pathlib.Path(os.environ["SEEN"] + ".open").touch()
try: print(c.recv(10) == b"")
except ConnectionResetError: print(True)
print(reach("8.7.6.9"), reach("8.7.6.2"))
pathlib.Path(os.environ["SEEN"] + ".closed").touch()
''', timeout=150)
    finally:
        subprocess.run(["ip", "-n", host, "addr", "del", "8.7.6.9/32", "dev", "lo"], capture_output=True)
        ip("-n", web, "addr", "del", "8.7.6.9/24", "dev", "v1")
    assert r.out.splitlines() == ["open", "True", "EHOSTUNREACH open"], (r.out, r.err)


def test_floods_of_arp_dhcp_and_fragments(lab):
    code = '''
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("eth0", 0))
head, all_ = bytes.fromhex("026d666e0001026d666e0002"), bytes.fromhex("ffffffffffff026d666e0002")
us = socket.inet_aton("192.0.2.2")
def send(frame):
    try: s.send(frame)
    except OSError: pass
def ip4(total, flags, proto, to): # without a sum: it is wrong besides
    return struct.pack(">BBHHHBBH", 0x45, 0, total, 1, flags, 64, proto, 0) + us + socket.inet_aton(to)
for i in range(3000):
    send(all_ + b"\\x08\\x06" + struct.pack(">HHBBH", 1, 0x800, 6, 4, 1) + head[6:] + us + bytes(6) + socket.inet_aton("192.0.2.%d" % (i % 256)))
    send(all_ + b"\\x08\\0" + ip4(328, 0, 17, "255.255.255.255") + struct.pack(">HHHH", 68, 67, 308, 0) + b"\\1\\1\\6\\0" + bytes(296))
    send(head + b"\\x08\\0" + ip4(1020, 0x2000 | i % 8000, 17, "8.7.6.2") + bytes(1000))
    send(head + b"\\x08\\0" + ip4(65535, 0, 6, "8.7.6.2") + bytes(100))
print(get("8.7.6.2", 100000) > 100000, lookup("web.example"))
'''
    r = guest(lab, code=code)
    assert r.out == "True ['8.7.6.2']\n", r.err
    assert r.count["udp_opened"] == 0 and r.count["open"] <= 1, r.count


def test_many_sandboxes_at_one_broker(lab, tmp_path):
    """Each has a process of its own, asks for a name of its own and fetches a file of its own, all at the same time. 200 with `make stress`."""
    n = 200 if os.environ.get("MAYFLY_STRESS") else 20
    for d in ("up", "done"):
        (tmp_path / d).mkdir()
    r = guest(lab, "--guests", str(n), sh=f'''
cd {tmp_path}; : > up/$GUEST
until [ $(ls up | wc -l) = {n} ]; do sleep 0.2; done
getent ahostsv4 n$GUEST.many.example >/dev/null || getent ahostsv4 n$GUEST.many.example >/dev/null || exit 3
exec 3<>/dev/tcp/8.7.6.2/80 || exit 4
printf "GET /$((20000 + GUEST)) HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n" >&3
sed "1,/^\\r*$/d" <&3 | wc -c > done/$GUEST
''', timeout=600)
    assert r.code == 0, r.err
    assert {int(p.name): int(p.read_text()) for p in (tmp_path / "done").iterdir()} == {i: 20000 + i for i in range(n)}
    assert r.count["tcp_opened"] == n and r.count["queries"] >= n and r.count["limited"] == 0, r.count


HALF_OPEN = r'''
import random
# 100,000 SYNs, each of a connection of its own: to a server, whose answer nobody waits for, and to a neighbour on its link that is not there
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("eth0", 0))
eth = bytes.fromhex("026d666e0001026d666e00020800")
def fold(n):
    while n >> 16: n = (n & 0xffff) + (n >> 16)
    return ~n & 0xffff
def words(b): return sum(struct.unpack(">%dH" % (len(b) // 2), b))
heads = []
for to, port in (("8.7.6.2", 80), ("8.7.6.77", 80)):
    ends = socket.inet_aton("192.0.2.2") + socket.inet_aton(to)
    ip = struct.pack(">BBHHHBB", 0x45, 0, 40, 0, 0, 64, 6)
    tcp = struct.pack(">HIIBBH", port, 0, 0, 0x50, 2, 65535)
    heads.append((eth + ip + struct.pack(">H", fold(words(ip) + words(ends))) + ends, tcp, words(ends) + 6 + 20 + words(tcp)))
for i in range(100000):
    head, tcp, total = heads[i & 1]
    sport = 1024 + i // 2 % 60000
    if i % 200 == 0: time.sleep(.005)  # the device loses what is sent faster
    try: s.send(head + struct.pack(">H", sport) + tcp + struct.pack(">HH", fold(total + sport), 0))
    except OSError: pass
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        print(get("8.7.6.2", 1000) > 1000); break
    except OSError: time.sleep(1)
'''


def test_a_hundred_thousand_half_open_connections(lab):
    """They use up their own sandbox's budget, for as long as it asks for them; a neighbour does not notice."""
    quiet = '''
t = []
for i in range(60):
    start = time.monotonic(); get("8.7.6.2", 100); t.append(time.monotonic() - start); time.sleep(.1)
print(sorted(t)[30] < 10)
'''
    with concurrent.futures.ThreadPoolExecutor(2) as p:
        a, b = p.submit(guest, lab, "--limit", "0=200", code=HALF_OPEN, timeout=180), p.submit(guest, lab, code=quiet)
        assert b.result().out == "True\n", b.result().err
        assert a.result().out == "True\n", a.result().err
    count = a.result().count
    assert count["limited"] > 100 and count["tcp_opened"] >= 200 and count["refused"] == 0, count


SPEED = r'''
def rate(n, fn):
    start = time.monotonic(); fn(); return n / (time.monotonic() - start)
def upload(n):
    c = tcp("8.7.6.2"); c.settimeout(60)
    c.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % n + b"x" * n); c.recv(100)
def connects(n):
    for _ in range(n): tcp("8.7.6.2").close()
def trips(n):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("8.7.6.2", 7))
    for _ in range(n): s.send(b"x" * 64); s.recv(100)
def names(n):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
    for i in range(n):
        s.sendto(b"\x12\x34\1\0\0\1\0\0\0\0\0\0" + bytes([1 + len(str(i))]) + b"n%d" % i + b"\4many\7example\0\0\1\0\1", (RESOLVER, PORT)); s.recv(500)
print(rate(200, lambda: get("8.7.6.2", 200000000)), rate(100, lambda: upload(100000000)), rate(500, lambda: connects(500)), rate(2000, lambda: trips(2000)), rate(500, lambda: names(500)))
'''


# Other work on the machine must not decide which arm wins: each hop between processes would wait for its turn behind it.
FIRST_IN_LINE = ("chrt", "-f", "1")


@pytest.fixture
def alone(lab):
    """The servers go first in line, too."""
    pids = [p for ns in lab for p in subprocess.run(["ip", "netns", "pids", ns], capture_output=True, text=True).stdout.split()]
    for p in pids:
        subprocess.run(["chrt", "-a", "-f", "-p", "1", p], capture_output=True)
    yield
    for p in pids:
        subprocess.run(["chrt", "-a", "-o", "-p", "0", p], capture_output=True)


def by_slirp4netns(lab, code):
    """The same client in a namespace behind a tap device and slirp4netns: libslirp, as QEMU's user network has it."""
    if not shutil.which("slirp4netns"):
        return None
    with subprocess.Popen(["ip", "netns", "exec", lab[0], "unshare", "-n", "sleep", "300"]) as target:
        ready, ours = os.pipe()
        slirp = None
        try:
            end = time.monotonic() + 10
            while subprocess.run(["nsenter", "-t", str(target.pid), "-n", "ip", "link", "show", "v0"], capture_output=True).returncode == 0 and time.monotonic() < end:
                time.sleep(0.05)  # still in the namespace that it leaves
            slirp = subprocess.Popen([*FIRST_IN_LINE, "ip", "netns", "exec", lab[0], "slirp4netns", "--configure", "--mtu=65520", "--disable-dns", f"--ready-fd={ours}", str(target.pid), "tap0"],
                                     pass_fds=[ours], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            os.close(ours)
            assert os.read(ready, 1) == b"1"
            return numbers(["nsenter", "-t", str(target.pid), "-n", sys.executable, "-c", code])
        finally:
            os.close(ready)
            for p in (slirp, target):
                if p:
                    p.kill()
                    p.wait()


def by_pasta(lab, code):
    """The same behind passt's form for namespaces."""
    if not shutil.which("pasta"):
        return None
    return numbers(["ip", "netns", "exec", lab[0], "pasta", "--quiet", "--config-net", "--mtu", "65520", "--runas", "0", "--", sys.executable, "-c", code])


def numbers(command):
    r = subprocess.run([*FIRST_IN_LINE, *command], capture_output=True, text=True, timeout=300)
    if r.returncode:
        print("an arm failed and is left out:", " ".join(str(a) for a in command[:5]), r.stderr[-200:])
        return None
    return [float(x) for x in r.stdout.split()]


def test_speed_beside_others(lab, alone):
    """Megabytes a second down and up, TCP connections, UDP round trips and DNS questions a second (docs/benchmarks.md): in one run, in turns, with the same
    client behind mayfly-net, slirp4netns and pasta, and on the host itself. What is asserted is that each is more than nothing."""
    limits = ("--limit", "1=100000", "--limit", "2=100000")
    direct = PRELUDE + f'RESOLVER, PORT = "{WEB4}", 5353\n' + SPEED
    arms = {"mayfly-net": lambda: [float(x) for x in guest(lab, *limits, code='RESOLVER, PORT = "192.0.2.1", 53\n' + SPEED, timeout=300, before=FIRST_IN_LINE).out.split()],
            "slirp4netns": lambda: by_slirp4netns(lab, direct), "pasta": lambda: by_pasta(lab, direct),
            "host": lambda: numbers(["ip", "netns", "exec", lab[0], sys.executable, "-c", direct])}
    best = {}
    for _ in range(3 if os.environ.get("MAYFLY_STRESS") else 1):
        for arm, run in arms.items():
            got = run()
            if got:
                best[arm] = [max(pair) for pair in zip(got, best.get(arm, got))]
    what = ("MB/s down", "MB/s up", "connections/s", "UDP round trips/s", "DNS questions/s")
    print(f"{'':20}" + "".join(f"{arm:>14}" for arm in best))
    for i, name in enumerate(what):
        print(f"{name:20}" + "".join(f"{v[i]:14.0f}" for v in best.values()))
        assert best["mayfly-net"][i] > 0, name
