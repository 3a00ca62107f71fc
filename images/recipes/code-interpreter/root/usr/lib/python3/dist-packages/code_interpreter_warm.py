# SPDX-License-Identifier: Apache-2.0
"""In a Python kernel that is started before a template is taken: what is slow is imported, and the random generators are seeded again before the first cell
that runs in another machine. Sandboxes made from one template would otherwise draw the same numbers. Only `arm()`, which the image's own `warm` calls, asks for
this: a snapshot that a user takes keeps random.seed(42), and so does a resume, where the machine is the same."""
import os
import random
import sys

MACHINE_ID = os.environ.get("CODE_INTERPRETER_MACHINE_ID", "/etc/machine-id")


def machine():
    with open(MACHINE_ID) as f:
        return f.read().strip()


def reseed():
    random.seed()  # from the kernel's generator, which every restore reseeds
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    import ssl
    ssl.RAND_add(os.urandom(64), 64.0)  # OpenSSL's primary generator takes new entropy, and so do those that it seeds
    import tempfile
    tempfile._name_sequence = None


def arm():
    """Called once in the kernel, before the template is taken."""
    import ssl
    import tempfile  # noqa: F401 (for all that follows)
    for name in ("numpy", "pandas", "matplotlib.pyplot", "requests"):
        __import__(name)
    ssl.RAND_bytes(1)
    here, shell = machine(), sys.modules["IPython"].get_ipython()

    def before_cell(info):
        try:
            if machine() == here:
                return
            reseed()
            shell.events.unregister("pre_run_cell", before_cell)
        except BaseException as e:
            # IPython would go on: no cell may run with numbers that another sandbox draws as well
            sys.__stderr__.write(f"code-interpreter: cannot seed the random generators again: {e!r}\n")
            os._exit(70)
    shell.events.register("pre_run_cell", before_cell)
