# SPDX-License-Identifier: Apache-2.0
"""A Jupyter server on this host with the packages, settings and kernels that the code-interpreter images have. Node.js, JDK and Go are this host's; the
image has the distribution's."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

from registrykit import free_port

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
VENV = pathlib.Path(sys.executable).parent.parent
RECIPE = TOP / "images" / "recipes" / "code-interpreter"
ROOT, ALL = RECIPE / "root", RECIPE / "all"
LIBRARY = "/usr/local/lib/code-interpreter"  # of the image; here the folder `kernels` of the tests' environment
TOKEN = "a-token"


class Jupyter:
    def __init__(self, folder, languages=()):
        """languages: those to have beside Python and bash."""
        self.dir = pathlib.Path(folder)
        self.python = VENV / "jupyter" / "bin" / "python"
        self.config = self.dir / "config.py"
        kernels = self.dir / "share" / "jupyter" / "kernels"
        kernels.mkdir(parents=True)
        specs = "usr/local/share/jupyter/kernels"
        for spec in [*(ROOT / specs).iterdir(), *(ALL / specs / name for name in languages)]:
            text = json.loads((spec / "kernel.json").read_text())
            text["argv"] = [str(self.python) if a == "python3" else a.replace(LIBRARY, str(VENV / "kernels")) for a in text["argv"]]
            (kernels / spec.name).mkdir()
            (kernels / spec.name / "kernel.json").write_text(json.dumps(text))
        shutil.copy(ROOT / "etc/jupyter/code_interpreter_config.py", self.config)
        self.log, self.machine_id = self.dir / "jupyter.log", self.dir / "machine-id"
        self.port = free_port()
        self.proc = None

    @property
    def env(self):
        """The environment of a sandbox that is to use this server."""
        return {"JUPYTER_HOST": f"http://127.0.0.1:{self.port}", "JUPYTER_TOKEN": TOKEN}

    @property
    def inside(self):
        """The environment of its processes, and of a command beside it."""
        return os.environ | self.env | {"JUPYTER_PORT": str(self.port), "JUPYTER_RUNTIME_DIR": str(self.dir / "run"), "CODE_INTERPRETER_MACHINE_ID": str(self.machine_id),
                                        "PYTHONPATH": f"{ROOT}/usr/lib/python3/dist-packages:{ALL}/usr/lib/python3/dist-packages", "PYTHONDONTWRITEBYTECODE": "1"}

    def warm(self):
        """What the readiness probe of a template does."""
        return subprocess.run([self.python, ROOT / "opt/code-interpreter/warm"], env=self.inside, cwd=self.dir, capture_output=True, text=True, timeout=120)

    def start(self):
        self.machine_id.write_text("a" * 32)
        env = self.inside | {"JUPYTER_PATH": str(self.dir / "share" / "jupyter"), "HOME": str(self.dir), "IPYTHONDIR": str(self.dir / "ipython")}
        with open(self.log, "ab") as log:
            self.proc = subprocess.Popen([self.python, ROOT / "opt/code-interpreter/server", "--ip=127.0.0.1", f"--port={self.port}", f"--config={self.config}"],
                                         env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.dir)
        return self

    def wait(self):
        end = time.monotonic() + 120
        while True:
            assert self.proc.poll() is None and time.monotonic() < end, self.log.read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except OSError:
                time.sleep(0.05)

    def kernels(self):
        """Process ids of the kernels that it started: its children."""
        return [int(p) for p in pathlib.Path(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children").read_text().split()]

    def stop(self):
        if not self.proc:
            return
        kernels = self.kernels() if self.proc.poll() is None else []
        self.proc.send_signal(signal.SIGKILL)
        self.proc.wait()
        for p in kernels:
            try:
                os.killpg(p, signal.SIGKILL)
            except OSError:
                pass
        self.proc = None
