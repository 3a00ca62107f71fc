# SPDX-License-Identifier: Apache-2.0
"""A small internet on this host: a resolver, a web server with and without TLS, and on it a Python index, a Debian repository, a git server and an npm
registry, each with one package that is made here. A sandbox in the appliance finds all of it behind one address (GUEST_SEES)."""
import base64
import gzip
import hashlib
import http.server
import io
import json
import os
import socket
import socketserver
import ssl
import struct
import subprocess
import tarfile
import threading
import urllib.parse
import zipfile

GUEST_SEES = "10.0.2.2"  # this host, as the appliance's network has it
DOMAIN = "mayfly.example"
NAME = "hello-mayfly"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def wheel():
    module, info = "hello_mayfly", "hello_mayfly-1.0.dist-info"
    files = {f"{module}.py": "def greet():\n    return 'hello from a wheel'\n",
             f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    record = "".join(f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(t.encode()).digest()).rstrip(b'=').decode()},{len(t)}\n" for n, t in files.items())
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for n, t in (files | {f"{info}/RECORD": record + f"{info}/RECORD,,\n"}).items():
            z.writestr(n, t)
    return f"{module}-1.0-py3-none-any.whl", out.getvalue()


def npm_package():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as t:
        for name, text in (("package.json", json.dumps({"name": NAME, "version": "1.0.0", "main": "index.js"})),
                           ("index.js", "module.exports = () => 'hello from npm';\n")):
            i = tarfile.TarInfo("package/" + name)
            i.size = len(text)
            t.addfile(i, io.BytesIO(text.encode()))
    return out.getvalue()


def deb(tmp):
    root = tmp / "deb"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr/share/hello-mayfly").mkdir(parents=True)
    (root / "usr/share/hello-mayfly/greeting").write_text("hello from a deb\n")
    (root / "DEBIAN/control").write_text(f"Package: {NAME}\nVersion: 1.0\nArchitecture: all\nMaintainer: test <test@{DOMAIN}>\nDescription: one file\n")
    subprocess.run(["dpkg-deb", "-b", "--root-owner-group", root, tmp / "hello.deb"], check=True, capture_output=True)
    return (tmp / "hello.deb").read_bytes()


def repository(tmp):
    """A bare git repository with one commit."""
    work, bare = tmp / "work", tmp / "repo.git"
    env = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@" + DOMAIN, "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@" + DOMAIN}
    work.mkdir()
    (work / "greeting").write_text("hello from git\n")
    for cmd in (["init", "-q", "-b", "main", work], ["-C", work, "add", "."], ["-C", work, "commit", "-q", "-m", "one"], ["clone", "-q", "--bare", work, bare]):
        subprocess.run(["git", *cmd], check=True, env=env, capture_output=True)
    return bare


def authority(tmp):
    """An authority of our own, and a certificate of it for all names below DOMAIN. Returns both files."""
    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=tmp)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "30", "-subj", "/CN=test authority",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "req.pem", "-subj", "/CN=" + DOMAIN)
    (tmp / "ext").write_text(f"subjectAltName=DNS:*.{DOMAIN},DNS:{DOMAIN},IP:{GUEST_SEES}\nbasicConstraints=CA:FALSE\n")
    openssl("x509", "-req", "-in", "req.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-extfile", "ext", "-out", "cert.pem")
    return tmp / "ca.pem", (tmp / "cert.pem", tmp / "key.pem")


class Web(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 200

    def handle_error(self, *a):
        pass


def files_of(tmp):
    """({path: (type, bytes)}, the npm package). The git server is apart."""
    name, whl = wheel()
    pkg, tgz = deb(tmp), npm_package()
    packages = (f"Package: {NAME}\nVersion: 1.0\nArchitecture: all\nMaintainer: test <test@{DOMAIN}>\nFilename: ./hello.deb\nSize: {len(pkg)}\n"
                f"SHA256: {sha256(pkg)}\nDescription: one file\n\n").encode()
    zipped = gzip.compress(packages)
    release = f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {sha256(packages)} {len(packages)} Packages\n {sha256(zipped)} {len(zipped)} Packages.gz\n".encode()
    html = "text/html"
    return {
        "/simple/": (html, f'<a href="{NAME}/">{NAME}</a>'.encode()),
        f"/simple/{NAME}/": (html, f'<a href="/files/{name}#sha256={sha256(whl)}">{name}</a>'.encode()),
        "/files/" + name: ("application/zip", whl),
        "/debian/Packages": ("text/plain", packages), "/debian/Packages.gz": ("application/gzip", zipped),
        "/debian/Release": ("text/plain", release), "/debian/hello.deb": ("application/octet-stream", pkg),
        "/npm/-/hello-mayfly-1.0.0.tgz": ("application/octet-stream", tgz),
    }, tgz


class Servers:
    """.http, .https: ports; .dns: port; .ca: the authority's file; .hits: (scheme, host, path) of each request."""

    def __init__(self, tmp):
        self.files, self.tgz = files_of(tmp)
        self.bare = repository(tmp)
        self.ca, (cert, key) = authority(tmp)
        self.hits, self.answers, self.redirects = [], {}, {}
        self.servers = []
        self.http = self._web(None)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self.https = self._web(context)
        self.dns = self._resolver()

    def _web(self, context):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                if context:
                    self.request.settimeout(60)
                    self.request = context.wrap_socket(self.request, server_side=True)
                super().setup()

            def do_GET(self):
                outer.answer(self, "https" if context else "http")

            do_POST = do_GET

            def log_message(self, *a):
                pass

        server = Web(("127.0.0.1", 0), Handler)
        self.servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_address[1]

    def answer(self, r, scheme):
        url = urllib.parse.urlsplit(r.path.replace("/./", "/"))  # apt says it like that
        self.hits.append((scheme, r.headers.get("Host", ""), url.path))
        if url.path.startswith("/repo.git/"):
            return self.git(r, url)
        if url.path.startswith("/bytes/"):
            return self.send(r, 200, "application/octet-stream", b"x" * int(url.path[7:]))
        if url.path in self.redirects:
            r.send_response(302)
            r.send_header("Location", self.redirects[url.path])
            r.send_header("Content-Length", "0")
            r.end_headers()
            return None
        if url.path == f"/npm/{NAME}":
            here = f"{scheme}://{r.headers['Host']}/npm/-/hello-mayfly-1.0.0.tgz"
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(self.tgz).digest()).decode()
            body = {"name": NAME, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": NAME, "version": "1.0.0", "main": "index.js",
                    "dist": {"tarball": here, "integrity": integrity, "shasum": hashlib.sha1(self.tgz).hexdigest()}}}}
            return self.send(r, 200, "application/json", json.dumps(body).encode())
        kind, body = self.files.get(url.path, ("text/plain", None))
        return self.send(r, 404 if body is None else 200, kind, body or b"no such thing\n")

    def send(self, r, status, kind, body):
        r.send_response(status)
        r.send_header("Content-Type", kind)
        r.send_header("Content-Length", str(len(body)))
        r.end_headers()
        r.wfile.write(body)

    def git(self, r, url):
        """Git's own server, by CGI."""
        body = r.rfile.read(int(r.headers.get("Content-Length") or 0))
        env = {"PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(self.bare.parent), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": url.path, "QUERY_STRING": url.query,
               "REQUEST_METHOD": r.command, "CONTENT_TYPE": r.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body)), "GIT_CONFIG_GLOBAL": "/dev/null",
               "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*", "HTTP_CONTENT_ENCODING": r.headers.get("Content-Encoding", "")}
        if r.headers.get("Git-Protocol"):
            env["GIT_PROTOCOL"] = r.headers["Git-Protocol"]
        out = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, timeout=60).stdout
        head, _, content = out.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self.send(r, int(headers.get("Status", "200").split()[0]), headers.get("Content-Type", "text/plain"), content)

    def _resolver(self):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.bind(("127.0.0.1", 0))

        def serve():
            while True:
                q, who = s.recvfrom(4096)
                threading.Thread(target=lambda q=q, who=who: s.sendto(self.resolve(q), who), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        return s.getsockname()[1]

    def resolve(self, q):
        """Our own names; `answers` (a name to a list of addresses, one for each question in turn); else what this host's resolver says."""
        at, labels = 12, []
        while q[at]:
            labels.append(q[at + 1:at + 1 + q[at]].decode())
            at += q[at] + 1
        name, kind = ".".join(labels).lower(), struct.unpack(">H", q[at + 1:at + 3])[0]
        addrs, code = [], 0
        if name in self.answers:
            addrs = [self.answers[name][0]]
            if kind == 1 and len(self.answers[name]) > 1:
                self.answers[name].pop(0)
        elif name.endswith(DOMAIN):
            addrs = [GUEST_SEES]
        else:
            try:
                addrs = sorted({a[4][0] for a in socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)})
            except OSError:
                code = 3
        rr = b""
        if kind != 1:
            addrs = []
        for a in addrs:
            rr += b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton(a)
        return q[:2] + bytes([0x81, 0x80 | code]) + struct.pack(">HHHH", 1, len(addrs), 0, 0) + q[12:at + 5] + rr

    def close(self):
        for s in self.servers:
            s.shutdown()
            s.server_close()
