# SPDX-License-Identifier: Apache-2.0
"""The kernel of bash_kernel, which seeds the shell's RANDOM again if a template holds it: before the first cell that runs in another machine."""
import os
import sys

from bash_kernel.kernel import BashKernel
from code_interpreter_warm import machine
from ipykernel.kernelapp import IPKernelApp

PREPARE = "# code-interpreter: prepare"  # what `warm` sends


class Kernel(BashKernel):
    prepared = None  # the machine in which it was prepared, until it runs in another one

    def seed_for_this_machine(self):
        try:
            if machine() == self.prepared:
                return
            self.bashwrapper.run_command(f"RANDOM={int.from_bytes(os.urandom(4), 'little') >> 1}")
            self.prepared = None
        except BaseException as e:
            # no cell may run with numbers that another sandbox draws as well
            sys.__stderr__.write(f"code-interpreter: cannot seed RANDOM again: {e!r}\n")
            os._exit(70)

    def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False):
        if code == PREPARE:
            self.bashwrapper.run_command("true")
            self.prepared = machine()
            return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}
        if self.prepared:
            self.seed_for_this_machine()
        return super().do_execute(code, silent, store_history, user_expressions, allow_stdin)


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=Kernel)
