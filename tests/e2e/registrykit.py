# SPDX-License-Identifier: Apache-2.0
"""Registries for tests: Debian's docker-registry with each kind of authentication, a token service for it, and one that misbehaves as told."""
import base64
import http.server
import json
import os
import pathlib
import random
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse

WHO = ("u", "p w")


def free_port():
    """A port that a server will be told to take. It is below the kernel's ephemeral ports, so that no connection of another test gets it meanwhile."""
    while True:
        port = random.randrange(12000, 32000)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            pass


class Serving:
    """A server of this process, in a thread; answer(handler) is called for each GET and HEAD. seen: (path, Range, Authorization) of each."""

    def __init__(self, answer=None, host="127.0.0.1"):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *a):
                pass

            def do_GET(self):
                outer.seen.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
                try:
                    outer.answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the client left before the end, as many of these tests want
            do_HEAD = do_GET

            def reply(self, status, body=b"", **headers):
                self.send_response(status)
                headers.setdefault("Content_Length", str(len(body)))
                for k, v in headers.items():
                    self.send_header(k.replace("_", "-"), v)
                self.end_headers()
                self.wfile.write(body)

        self.answer, self.seen = answer, []
        self.http = http.server.ThreadingHTTPServer((host, 0), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_port
        self.gone = threading.Event()
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def hang(self, h):
        """Accepts the request and says nothing until the test is over."""
        self.gone.wait(120)
        h.close_connection = True

    def close(self):
        self.gone.set()
        self.http.shutdown()
        self.http.server_close()

    def serve(self, layout, blob=None, manifest=None):
        """Answers as a registry would for the one image of a layout; blob(handler, data, times asked) may spoil it. The image's name."""
        index = json.loads((layout / "index.json").read_text())["manifests"][0]
        count = {}

        def answer(h):
            what = h.path.rsplit("/", 1)[1]
            digest = what if what.startswith("sha256:") else index["digest"]
            f = layout / "blobs" / "sha256" / digest.split(":")[1]
            if not f.exists():
                return h.reply(404)
            data = f.read_bytes()
            if "/manifests/" in h.path:
                return manifest(h, data) if manifest else h.reply(200, data, Content_Type=index["mediaType"])
            count[digest] = count.get(digest, 0) + 1
            if blob:
                return blob(h, data, count[digest])
            return h.reply(200, data)
        self.answer = answer
        return f"127.0.0.1:{self.port}/x/y:1"

    def forge(self, store, namespace):
        """Answers with the manifest of the one image that this namespace fetched into a store, and with all of it but the layers. Those are returned."""
        name, manifest = fetched_by(store, namespace)
        layers = {d["digest"][7:] for d in manifest["layers"]}

        def answer(h):
            what = name if "/manifests/" in h.path else h.path[-64:]
            if what in layers:
                return h.reply(404)
            return h.reply(200, (store / "blobs" / "sha256" / what).read_bytes(), Content_Type=manifest["mediaType"])
        self.answer = answer
        return layers


def fetched_by(store, namespace):
    """(hex digest, manifest) of the one image that this namespace fetched. What a registry has may differ from what was pushed: skopeo compresses."""
    (name,) = [n.name[:64] for n in (store / "grants").iterdir() if n.name.endswith("." + namespace) and (store / "images" / n.name[:64]).is_dir()]
    return name, json.loads((store / "blobs" / "sha256" / name).read_text())


def range_of(h):
    """The first byte asked for."""
    return int((h.headers.get("Range") or "bytes=0-").split("=")[1].split("-")[0])


# ---- a token service, as docker-registry's `auth: token` wants it

def b64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenService:
    """RS256 tokens for whoever knows the password, signed by a certificate that the registry was given."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.key, self.cert = self.folder / "token.key", self.folder / "token.crt"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=tokens", "-days", "2", "-keyout", self.key,
                        "-out", self.cert], check=True, capture_output=True)
        der = subprocess.run(["openssl", "x509", "-in", self.cert, "-outform", "der"], check=True, capture_output=True).stdout
        self.x5c = base64.b64encode(der).decode()
        self.asked, self.lifetime = [], 300
        self.http = Serving(self.answer)
        self.url = f"http://127.0.0.1:{self.http.port}/token"

    def sign(self, claims):
        head = {"typ": "JWT", "alg": "RS256", "x5c": [self.x5c]}
        text = b64url(json.dumps(head).encode()) + "." + b64url(json.dumps(claims).encode())
        with tempfile.NamedTemporaryFile(dir=self.folder) as f:
            f.write(text.encode())
            f.flush()
            signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", self.key, f.name], check=True, capture_output=True).stdout
        return text + "." + b64url(signature)

    def answer(self, h):
        query = urllib.parse.parse_qs(urllib.parse.urlparse(h.path).query)
        want = "Basic " + base64.b64encode(":".join(WHO).encode()).decode()
        self.asked.append((query.get("scope", [""])[0], h.headers.get("Authorization") == want))
        if h.headers.get("Authorization") != want:
            return h.reply(401, WWW_Authenticate='Basic realm="tokens"')
        access = []
        for scope in query.get("scope", []):
            kind, name, actions = scope.split(":")
            access.append({"type": kind, "name": name, "actions": actions.split(",")})
        now = int(time.time())
        token = self.sign({"iss": "mayfly-test", "sub": WHO[0], "aud": query["service"][0], "exp": now + self.lifetime, "nbf": now - 5, "iat": now,
                           "jti": str(len(self.asked)), "access": access})
        return h.reply(200, json.dumps({"token": token}).encode(), Content_Type="application/json")

    def close(self):
        self.http.close()


class Registry:
    """docker-registry on the loopback: auth is open, htpasswd or token; tls_name: over TLS, with a certificate for that name (.cert)."""

    def __init__(self, folder, auth="open", tls_name=None):
        self.folder, self.auth = pathlib.Path(folder), auth
        self.folder.mkdir(parents=True, exist_ok=True)
        self.host = f"127.0.0.1:{free_port()}"
        self.tokens, more = None, ""
        if auth == "htpasswd":
            subprocess.run(["htpasswd", "-Bbc", self.folder / "htpasswd", *WHO], check=True, capture_output=True)
            more = f"auth: {{htpasswd: {{realm: r, path: {self.folder}/htpasswd}}}}\n"
        elif auth == "token":
            self.tokens = TokenService(self.folder)
            more = (f"auth: {{token: {{realm: '{self.tokens.url}', service: registry.test, issuer: mayfly-test, "
                    f"rootcertbundle: {self.tokens.cert}}}}}\n")
        tls = ""
        if tls_name:
            self.cert = self.folder / "tls.pem"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={tls_name}", "-days", "2", "-addext",
                            f"subjectAltName=DNS:{tls_name}", "-keyout", self.folder / "tls.key", "-out", self.cert], check=True, capture_output=True)
            tls = f", tls: {{certificate: {self.cert}, key: {self.folder}/tls.key}}"
        (self.folder / "registry.yml").write_text(f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {self.folder}/data}}}}\n"
                                                  f"http: {{addr: '{self.host}'{tls}}}\n{more}")
        self.log = open(self.folder / "registry.log", "wb")
        self.proc = subprocess.Popen(["docker-registry", "serve", self.folder / "registry.yml"], stdout=self.log, stderr=self.log)
        address = self.host.split(":")
        end = time.monotonic() + 60
        while time.monotonic() < end and self.proc.poll() is None:
            try:
                socket.create_connection((address[0], int(address[1]))).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError((self.folder / "registry.log").read_text())

    def push(self, layout, name, tag="t", *more):
        """Pushes layout:tag as name into this registry. Returns the name to pull."""
        creds = ["--dest-creds", ":".join(WHO)] if self.auth != "open" else []
        r = subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", *creds, *more, f"oci:{layout}:{tag}", f"docker://{self.host}/{name}"],
                           capture_output=True, text=True, env=os.environ | {"XDG_RUNTIME_DIR": str(self.folder)})
        assert r.returncode == 0, r.stderr
        return f"{self.host}/{name}"

    def close(self):
        self.proc.terminate()
        self.proc.wait()
        self.log.close()
        if self.tokens:
            self.tokens.close()
