# SPDX-License-Identifier: Apache-2.0
"""An older host kernel: the tests of the monitor, of snapshots and of a sandbox from end to end run in an appliance of Linux 6.1.

That kernel has no PAGEMAP_SCAN, no KVM_PRE_FAULT_MEMORY and fewer files in its cgroups. MAYFLY_STRESS=1 only, because the test builds the kernel
(about ten minutes). `make kernel APPLIANCE=6.1` and `E2E_KERNEL=appliance-6.1 make e2e T=name` run one test there."""
import os
import subprocess
import sys

import pytest
from conftest import TOP

OLD = "6.1"
FILES = ("test_vm.py", "test_rounds.py", "test_smoke.py")
NO_SOURCE = 3  # guest/kernel/build: this release of the distribution has no such source package
KERNEL_S, TESTS_S = 3600, 3600


@pytest.mark.skipif(not os.environ.get("MAYFLY_STRESS"), reason="MAYFLY_STRESS=1: it builds a kernel")
def test_on_an_older_host_kernel():
    built = subprocess.run([TOP / "guest" / "kernel" / "build", f"appliance-{OLD}"], capture_output=True, text=True, timeout=KERNEL_S)
    if built.returncode == NO_SOURCE:
        pytest.skip(built.stderr.strip())
    assert built.returncode == 0, built.stdout + built.stderr
    # The normal sizes, in an appliance of its own: this run asks what works there, not how fast.
    env = {k: v for k, v in os.environ.items() if k not in ("MAYFLY_STRESS", "KEEP", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")}
    name = os.environ.get("E2E_MACHINE", "e2e") + "-old"
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *FILES], cwd=TOP / "tests" / "e2e",
                         env={**env, "E2E_KERNEL": f"appliance-{OLD}", "E2E_MACHINE": name}, capture_output=True, text=True, timeout=TESTS_S)
    print(run.stdout[-4000:])
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
