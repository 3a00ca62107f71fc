# SPDX-License-Identifier: Apache-2.0
"""mayfly-fs in its jail on this host, mounted through the kernel's own FUSE client (tests/tools/fsbridge.c). No VM.

Needs root and /dev/fuse; skipped with the reason elsewhere.
"""
import errno
import fcntl
import mmap
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
FIRST_ID = 900000  # 65,536 user ids from here on are the guest's
STRESS = bool(os.environ.get("MAYFLY_STRESS"))


def why_not():
    if os.geteuid() != 0:
        return "needs root: it mounts"
    if not os.path.exists("/dev/fuse"):
        return "this host has no /dev/fuse"
    fd = os.open("/dev/fuse", os.O_RDWR)
    probe = subprocess.run(["mount", "-t", "fuse", "-o", f"fd={fd},rootmode=40000,user_id=0,group_id=0", "none", "/mnt"],
                           stderr=subprocess.PIPE, text=True, pass_fds=[fd])
    os.close(fd)
    if probe.returncode != 0:
        return f"FUSE cannot be mounted here: {probe.stderr.strip()}"
    subprocess.run(["umount", "-l", "/mnt"], check=False)
    return None


@pytest.fixture(scope="module", autouse=True)
def possible():
    if reason := why_not():
        pytest.skip(reason)


class Mounted:
    """A mount with one claim (folder 0), one read-only folder (1) and one host path (2)."""

    def __init__(self, path):
        self.path = path
        self.claim, self.fixed, self.host, self.mnt = (path / n for n in ("claim", "fixed", "host", "mnt"))
        for p in (self.claim, self.fixed, self.host, self.mnt):
            p.mkdir()
        (self.fixed / "marker.txt").write_text("marker")
        (path / "outside").write_text("secret")
        for p in (self.claim, self.host):
            os.chown(p, FIRST_ID, FIRST_ID)
        os.chmod(path, 0o755)
        self.log = open(path / "log", "w+")
        self.process = subprocess.Popen([TOP / "build/tools/fsbridge", TOP / "build/bin/mayfly-fs", str(FIRST_ID), self.mnt,
                                         f"rw,ids:{self.claim}", f"ro:{self.fixed}", f"rw:{self.host}"],
                                        stdout=self.log, stderr=self.log)
        self.wait("mounted")

    def said(self):
        return (self.path / "log").read_text()

    def wait(self, word, times=1):
        end = time.monotonic() + 20
        while self.said().count(word) < times:
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.01)

    def kill(self):
        before = self.said().count("restarted")
        self.process.send_signal(signal.SIGUSR1)
        self.wait("restarted", before + 1)

    def close(self):
        subprocess.run(["umount", "-l", self.mnt], check=False)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


@pytest.fixture
def fs(tmp_path):
    m = Mounted(tmp_path)
    yield m
    m.close()


def sh(cmd, cwd, **kw):
    return subprocess.run(["bash", "-ec", cmd], cwd=cwd, capture_output=True, text=True, timeout=120, **kw)


def test_what_a_guest_does_with_a_volume(fs):
    r = sh("echo one > a; cp a b; mv b c; ln c d; ln -s c l; cat l; mkdir -p x/y; mv x z; touch z/y/f; rm -r z; ls; stat -c %h c", fs.mnt / "0")
    assert r.returncode == 0 and r.stdout.split() == ["one", "a", "c", "d", "l", "2"], r
    assert (fs.claim / "c").read_text() == "one\n"
    r = sh("cat marker.txt; ! echo x > marker.txt; ! rm marker.txt; ! touch new", fs.mnt / "1")
    assert r.returncode == 0 and r.stdout == "marker" and r.stderr.count("Read-only file system") == 3, r
    assert sorted(os.listdir(fs.mnt)) == ["0", "1", "2"]


def test_owners(fs):
    r = sh("touch a; chown 1000:2000 a; stat -c '%u %g' a; touch b; stat -c '%u %g' b", fs.mnt / "0")
    assert r.stdout == "1000 2000\n0 0\n", r
    assert (os.stat(fs.claim / "a").st_uid, os.stat(fs.claim / "b").st_uid) == (FIRST_ID + 1000, FIRST_ID)
    # a guest's id beyond the range has no owner on the host
    assert sh("chown 70000 a", fs.mnt / "0").returncode != 0
    # on a host path everything belongs to one user
    r = sh("touch a; chown 1000:2000 a; stat -c '%u %g' a", fs.mnt / "2")
    assert r.stdout == "0 0\n" and os.stat(fs.host / "a").st_uid == FIRST_ID, r


def test_a_claim_does_not_fill_its_disk(tmp_path):
    """A guest leaves 512 MiB of the disk that its claims are on; what it removes makes room."""
    (tmp_path / "claim").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600m,mode=755", "none", tmp_path / "claim"], check=True)
    try:
        os.chown(tmp_path / "claim", FIRST_ID, FIRST_ID)
        with open(tmp_path / "log", "w+") as log:
            (tmp_path / "mnt").mkdir()
            os.chmod(tmp_path, 0o755)
            p = subprocess.Popen([TOP / "build/tools/fsbridge", TOP / "build/bin/mayfly-fs", str(FIRST_ID), tmp_path / "mnt", f"rw,ids:{tmp_path}/claim"], stdout=log, stderr=log)
            try:
                end = time.monotonic() + 20
                while "mounted" not in (tmp_path / "log").read_text():
                    assert p.poll() is None and time.monotonic() < end
                    time.sleep(0.01)
                r = sh("! dd if=/dev/zero of=f bs=1M count=200; ! fallocate -l 1G g; ! touch new; ! mkdir d; cat f | wc -c; rm f; echo again >h; cat h", tmp_path / "mnt" / "0")
                assert r.returncode == 0 and r.stderr.count("No space left") == 4, r
                written = int(r.stdout.split()[0])
                assert 60 << 20 < written <= 88 << 20 and r.stdout.split()[-1] == "again", r
            finally:
                subprocess.run(["umount", "-l", tmp_path / "mnt"], check=False)
                p.wait(20)
    finally:
        subprocess.run(["umount", "-l", tmp_path / "claim"], check=False)


@pytest.fixture
def limited(tmp_path, request):
    """Two file servers of one claim that may hold 16 MiB, or what a test says: their mounts, and the folder itself."""
    most = getattr(request, "param", 16 << 20)
    (tmp_path / "claim").mkdir()
    os.chmod(tmp_path, 0o755)
    os.chown(tmp_path / "claim", FIRST_ID, FIRST_ID)
    running = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        log = open(tmp_path / f"{name}.log", "w+")
        running.append((tmp_path / name, log, subprocess.Popen([TOP / "build/tools/fsbridge", TOP / "build/bin/mayfly-fs", str(FIRST_ID), tmp_path / name,
                                                               f"rw,ids,max={most}:{tmp_path}/claim"], stdout=log, stderr=log)))
    end = time.monotonic() + 20
    while not all("mounted" in (tmp_path / f"{n}.log").read_text() for n in ("one", "two")):
        assert all(p.poll() is None for _, _, p in running) and time.monotonic() < end, [(tmp_path / f"{n}.log").read_text() for n in ("one", "two")]
        time.sleep(0.01)
    yield tmp_path / "one" / "0", tmp_path / "two" / "0", tmp_path / "claim"
    for mnt, _, _ in running:
        subprocess.run(["umount", "-l", mnt], check=False)
    for _, log, p in running:
        p.wait(60)
        log.close()


def used(folder):
    return int(subprocess.run(["du", "-s", "--block-size=1", folder], capture_output=True, text=True, check=True).stdout.split()[0])


def test_a_limit_of_bytes(limited):
    one, two, claim = limited
    r = sh("! dd if=/dev/zero of=f bs=1M count=30; ! touch g; ! mkdir d; ! ln -s x l; ! fallocate -l 1M h", one)
    assert r.returncode == 0 and r.stderr.count("No space left") == 5, r
    assert 15 << 20 <= used(claim) <= 17 << 20
    assert "No space left" in sh("! echo x >g", two).stderr
    # what is removed makes room at once, and for another sandbox within a second
    assert sh("rm f; for i in $(seq 100); do echo x 2>/dev/null >f && break; sleep 0.1; done; cat f", one).stdout == "x\n"
    assert sh("sleep 1.1; head -c 1M /dev/zero >g; stat -fc '%b %S' .", two).stdout.split() == ["4096", "4096"]
    # writing the same bytes again and again takes no room
    r = sh("for i in $(seq 12); do dd if=/dev/zero of=again bs=1M count=8 conv=notrunc; done", one)
    assert r.returncode == 0, r
    # a file with many names counts once
    r = sh("rm -f again; head -c 7M /dev/zero >a; for i in $(seq 50); do ln a a$i; done; head -c 5M /dev/zero >b", one)
    assert r.returncode == 0, r
    # nor does it help to hide bytes
    assert sh("rm -f *; fallocate -n -l 100M x", one).returncode != 0
    assert used(claim) < 2 << 20


def test_a_limit_counts_files_without_a_name(limited):
    one, _, claim = limited
    with open(one / "f", "w+b", 0) as f:
        os.unlink(one / "f")
        with pytest.raises(OSError) as e:
            for _ in range(30):
                f.write(bytes(1 << 20))
        assert e.value.errno == 28 and 14 << 20 <= os.fstat(f.fileno()).st_size <= 17 << 20
        with pytest.raises(OSError):
            (one / "g").write_text("x")
    assert sh("for i in $(seq 50); do echo x >g && exit; sleep 0.1; done; exit 1", one).returncode == 0  # the kernel releases the file soon


def test_a_limit_in_a_deep_tree(limited):
    one, _, claim = limited
    deep = claim
    for i in range(300):
        deep = deep / "d"
    os.makedirs(deep)
    subprocess.run(["chown", "-R", f"{FIRST_ID}:{FIRST_ID}", claim], check=True)
    assert "No space left" in sh("! echo x >f", one).stderr
    subprocess.run(["rm", "-r", claim / "d"], check=True)
    assert sh("sleep 1.1; echo x >f", one).returncode == 0


@pytest.mark.parametrize("limited", [1 << 18], indirect=True)
def test_a_limit_counts_attributes(limited):
    """Files that are empty but for their attributes: each takes a page of the disk."""
    one, two, claim = limited
    (one / "f").touch()
    os.setxattr(one / "f", "user.a", bytes(2000))
    with pytest.raises(OSError) as e:
        os.setxattr(one / "f", "user.b", bytes(3000))
    assert e.value.errno == errno.ENOSPC
    os.setxattr(one / "f", "user.a", bytes(3000))  # in the place of the first
    if not os.stat(claim / "f").st_blocks:
        pytest.skip("this file system does not count attributes")
    made = 0
    with pytest.raises(OSError) as e:
        for made in range(1000):
            (one / f"f{made}").touch()
            os.setxattr(one / f"f{made}", "user.a", bytes(3000))
    assert e.value.errno == errno.ENOSPC and made > 20
    assert used(claim) <= 1 << 19


@pytest.mark.parametrize("limited", [1 << 18], indirect=True)
def test_a_limit_counts_names(limited):
    """Folders grow by links and renames, and take room of the disk although no file does."""
    one, _, claim = limited
    (one / "f").touch()
    with pytest.raises(OSError) as e:
        for made in range(10000):
            os.link(one / "f", one / f"{made:0250}")
    assert e.value.errno == errno.ENOSPC and used(claim) <= 1 << 19
    with pytest.raises(OSError) as e:
        os.rename(one / "f", one / ("g" * 250))
    assert e.value.errno == errno.ENOSPC
    # a full claim allows what needs no room
    os.rename(one / f"{0:0250}", one / "f")
    os.rename(one / f"{1:0250}", one / "h")


def test_a_limit_counts_files_that_others_removed(limited):
    """A file that one sandbox has open, and the other removed."""
    one, two, claim = limited
    held = []
    try:
        with pytest.raises(OSError) as e:
            for i in range(60):
                held.append(open(one / f"f{i}", "wb", 0))
                held[-1].write(bytes(1 << 20))
                os.unlink(two / f"f{i}")
        assert e.value.errno == errno.ENOSPC and 10 < len(held) < 20
    finally:
        for f in held:
            f.close()


def test_nothing_dangerous_reaches_the_host(fs):
    r = sh("touch s; chmod 6755 s; mkdir d; chmod 2755 d; ! mknod dev c 1 3; mkfifo p; stat -c %a s d", fs.mnt / "0")
    assert r.returncode == 0 and r.stdout.split() == ["755", "755"], r
    assert oct(os.stat(fs.claim / "s").st_mode)[-4:] == "0755"
    assert not (fs.claim / "dev").exists()
    with pytest.raises(OSError):
        os.setxattr(fs.mnt / "0" / "s", "security.capability", b"\1\0\0\2" + b"\0" * 16)
    os.setxattr(fs.mnt / "0" / "s", "user.mine", b"yes")
    assert os.listxattr(fs.mnt / "0" / "s") == ["user.mine"] and os.getxattr(fs.mnt / "0" / "s", "user.mine") == b"yes"
    os.removexattr(fs.mnt / "0" / "s", "user.mine")
    assert os.listxattr(fs.mnt / "0" / "s") == []


def test_special_names(fs):
    """A socket and a FIFO on a volume are names; the guest's kernel connects the processes."""
    path = str(fs.mnt / "0" / "sock")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen()
        client.connect(path)
        client.sendall(b"hello")
        assert server.accept()[0].recv(10) == b"hello"
    os.mknod(fs.mnt / "0" / "plain", 0o100644)
    r = sh("mkfifo p; (echo through > p) & cat p; stat -c %F p sock plain", fs.mnt / "0")
    assert r.stdout.splitlines() == ["through", "fifo", "socket", "regular empty file"], r


def test_links_lead_nowhere(fs):
    os.symlink("../outside", fs.claim / "up")
    os.symlink(fs.path / "outside", fs.claim / "abs")
    # the guest's kernel follows a link in the guest's own tree: the host's file is not reached by it
    r = sh("readlink up abs; cat up", fs.mnt / "0")
    assert r.stdout.split() == ["../outside", str(fs.path / "outside")] and "secret" not in r.stdout and r.returncode != 0, r
    # and the process itself has nothing but the volumes
    pid = int(sh("pgrep -P $PPID_OF mayfly-fs", "/", env={**os.environ, "PPID_OF": str(fs.process.pid)}).stdout)
    assert sorted(os.listdir(f"/proc/{pid}/root")) == ["volume0", "volume1", "volume2"]
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    assert f"Uid:\t{FIRST_ID}" in status and "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status
    assert "CapEff:\t000000000000000b" in status and "CapBnd:\t0000000000000000" in status  # chown, dac_override, fowner


def test_changes_of_others_are_seen_within_a_second(fs):
    a, b = fs.mnt / "0" / "f", fs.claim / "f"
    a.write_text("one")
    assert a.read_text() == "one"
    b.write_text("longer")
    time.sleep(1)
    assert a.read_text() == "longer"
    os.rename(b, fs.claim / "g")
    time.sleep(1)
    assert os.listdir(fs.mnt / "0") == ["g"] and not a.exists()


def test_appends_of_two_meet(fs):
    here, there = open(fs.mnt / "0" / "log", "ab", 0), open(fs.claim / "log", "ab", 0)
    for i in range(100):
        here.write(b"here\n")
        there.write(b"there\n")
    words = (fs.claim / "log").read_text().split()
    assert words.count("here") == 100 and words.count("there") == 100


def test_open_files_outlive_the_process(fs):
    with open(fs.mnt / "0" / "f", "w+b", 0) as f, open(fs.mnt / "0" / "gone", "w+b", 0) as gone:
        f.write(b"before")
        os.unlink(fs.mnt / "0" / "gone")
        here = os.open(fs.mnt / "0", os.O_RDONLY)
        fs.kill()
        f.write(b" after")
        assert os.pread(f.fileno(), 100, 0) == b"before after"
        assert sorted(os.listdir(here)) == ["f"]
        with pytest.raises(OSError) as e:
            os.pwrite(gone.fileno(), b"x", 0)
        assert e.value.errno in (116, 5), e  # ESTALE
        os.close(here)
    assert (fs.claim / "f").read_text() == "before after"


def test_what_programs_rely_on(fs):
    """Holes, times, the size of the disk, shared mappings, appends, truncation."""
    path, there = fs.mnt / "0" / "f", fs.claim / "f"
    with open(path, "w+b", 0) as f:
        os.ftruncate(f.fileno(), 1 << 30)
        os.pwrite(f.fileno(), b"end", (1 << 30) - 3)
        assert os.stat(there).st_size == 1 << 30 and os.stat(there).st_blocks < 1000
        assert os.lseek(f.fileno(), 0, os.SEEK_DATA) > (1 << 30) - (1 << 20) and os.lseek(f.fileno(), 0, os.SEEK_HOLE) == 0
        os.ftruncate(f.fileno(), 8192)
        with mmap.mmap(f.fileno(), 8192) as m:
            m[4096:4102] = b"mapped"
            m.flush()
        assert there.read_bytes()[4096:4102] == b"mapped"
        os.fsync(f.fileno())
    os.utime(path, ns=(1_000_000_007, 2_000_000_009))
    assert (os.stat(there).st_atime_ns, os.stat(there).st_mtime_ns) == (1_000_000_007, 2_000_000_009)
    mine, hosts = os.statvfs(path), os.statvfs(there)
    assert mine.f_blocks * mine.f_frsize == hosts.f_blocks * hosts.f_frsize
    with open(path, "wb"):
        pass
    assert there.read_bytes() == b""
    with open(path, "ab", 0) as a, open(path, "ab", 0) as b:
        for i in range(50):
            a.write(b"a\n")
            b.write(b"b\n")
    assert sorted(there.read_text().split()) == ["a"] * 50 + ["b"] * 50


def test_locks(fs):
    """They hold between the processes of one sandbox."""
    path = fs.mnt / "0" / "f"
    path.write_bytes(bytes(100))
    tried = """
import fcntl, sys
f = open(sys.argv[1], "r+b")
for how in (lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0),
            lambda: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 50)):
    try:
        how()
        print("locked")
    except BlockingIOError:
        print("busy")
"""
    with open(path, "r+b") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        fcntl.lockf(f, fcntl.LOCK_EX, 20, 0)
        for expect in ("busy busy locked", "locked locked locked"):
            out = subprocess.run([sys.executable, "-c", tried, path], capture_output=True, text=True, check=True).stdout
            assert out.split() == expect.split()
            fcntl.flock(f, fcntl.LOCK_UN)
            fcntl.lockf(f, fcntl.LOCK_UN)


def test_files_without_a_name(fs):
    """O_TMPFILE: such a file can be given a name; one without a name ends with the server that had it open."""
    fd, gone = (os.open(fs.mnt / "0", os.O_TMPFILE | os.O_RDWR, 0o640) for _ in range(2))
    os.write(fd, b"content")
    assert os.listdir(fs.claim) == []
    proc = os.open("/proc/self/fd", os.O_PATH)
    os.link(str(fd), fs.mnt / "0" / "named", src_dir_fd=proc, follow_symlinks=True)
    os.close(proc)
    assert (fs.claim / "named").read_bytes() == b"content" and os.stat(fs.claim / "named").st_mode & 0o7777 == 0o640
    fs.kill()
    assert os.pread(fd, 100, 0) == b"content"
    with pytest.raises(OSError) as e:
        os.write(gone, b"x")
    assert e.value.errno in (errno.ESTALE, errno.EIO)
    os.close(fd)
    os.close(gone)


def test_killed_again_and_again_under_work(fs):
    script = "for i in $(seq 300); do mkdir -p d$i 2>/dev/null; echo $i > d$i/f 2>/dev/null; cat d$i/f 2>/dev/null; done | wc -l"
    work = subprocess.Popen(["bash", "-c", script], cwd=fs.mnt / "0", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for _ in range(10):
        time.sleep(0.1)
        if work.poll() is None:
            fs.kill()
    # a request in flight may fail with EIO; most rounds meet no kill
    assert int(work.communicate()[0]) > 100
    assert sh("echo alive > end; cat end", fs.mnt / "0").stdout == "alive\n"


def test_behaves_like_the_hosts_file_system(fs, tmp_path):
    """Random calls on a volume and on a plain folder give the same answers."""
    for seed in range(10 if STRESS else 1):
        ref, mine = tmp_path / f"ref{seed}", fs.mnt / "0" / f"cmp{seed}"
        ref.mkdir()
        mine.mkdir()
        r = subprocess.run([TOP / "build/tools/fscompare", mine, ref, "60" if STRESS else "5", str(seed + 1)], capture_output=True, text=True)
        assert r.returncode == 0 and "no difference" in r.stdout, r.stdout


# Random calls on few names, which other processes use at the same moment. What two processes may do to each other is no error.
STORM = """
import errno, os, random, sys
rnd = random.Random(int(sys.argv[1]))
allowed = {errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ELOOP, errno.EINVAL, errno.EPERM}
def name():
    return rnd.choice(("{0}", "d{0}", "d{0}/{1}", "d{0}/d{1}", "d{0}/d{1}/{2}")).format(rnd.randrange(5), rnd.randrange(5), rnd.randrange(5))
def write():
    with open(name(), rnd.choice(("wb", "ab", "r+b", "xb")), 0) as f:
        f.write(bytes([rnd.randrange(256)]) * rnd.randrange(100000))
        if rnd.randrange(4) == 0:
            os.fsync(f.fileno())
def read():
    with open(name(), "rb", 0) as f:
        f.read()
calls = (write, write, read, read, lambda: os.rename(name(), name()), lambda: os.link(name(), name()), lambda: os.unlink(name()), lambda: os.mkdir(name()),
         lambda: os.rmdir(name()), lambda: os.symlink(name(), name()), lambda: os.truncate(name(), rnd.randrange(100000)), lambda: os.chmod(name(), 0o700),
         lambda: [os.lstat(e.path) for e in os.scandir(name())], lambda: os.utime(name()))
for _ in range(int(sys.argv[2])):
    try:
        rnd.choice(calls)()
    except OSError as e:
        assert e.errno in allowed, e
"""


def tree(top):
    """{path: (mode, links, mtime, content)}"""
    out = {}
    for folder, folders, files in os.walk(top):
        for n in folders + files:
            p = os.path.join(folder, n)
            st = os.lstat(p)
            content = os.readlink(p) if os.path.islink(p) else pathlib.Path(p).read_bytes() if os.path.isfile(p) else None
            out[os.path.relpath(p, top)] = (st.st_mode, st.st_nlink, st.st_mtime_ns, content)
    return out


def test_many_work_in_one_tree(fs):
    """Four processes storm the same few names; at the end the guest sees what is on the disk."""
    calls = "20000" if STRESS else "300"
    for seed in range(10 if STRESS else 1):
        at = fs.mnt / "0" / f"storm{seed}"
        at.mkdir()
        storm = [subprocess.Popen([sys.executable, "-c", STORM, str(seed * 4 + i), calls], cwd=at, stderr=subprocess.PIPE, text=True)
                 for i in range(4)]
        for p in storm:
            _, err = p.communicate()
            assert p.returncode == 0, err
        time.sleep(1)  # what a guest may believe
        assert tree(at) == tree(fs.claim / f"storm{seed}")


def test_git_and_databases(fs):
    r = sh("git init -q r && cd r && git config user.email a@b && git config user.name n && for i in $(seq 200); do echo $i > f$i; done && "
           "git add . && git commit -qm one && git gc -q && git fsck 2>&1 && git status --short", fs.mnt / "0")
    assert r.returncode == 0 and r.stdout == "", r
    r = sh("""python3 - <<'E'
import sqlite3
db = sqlite3.connect("x.db", isolation_level=None)
db.execute("pragma journal_mode=wal")
db.execute("create table t (n)")
for i in range(200):
    db.execute("insert into t values (?)", (i,))
other = sqlite3.connect("x.db")
print(other.execute("select count(*) from t").fetchone()[0], db.execute("pragma integrity_check").fetchone()[0])
E""", fs.mnt / "0")
    assert r.stdout == "200 ok\n", r
