# SPDX-License-Identifier: Apache-2.0
"""The same work on the root disk and on a claim, in one sandbox: what a volume costs. The clock is the guest's."""
import uuid

from mb_core import Failed

MIB = 256
FILES = 2000
LOOKED_AT = 10000

# every phase begins with cold caches; /proc/uptime has hundredths of a second
SCRIPT = r"""
cd $1 || exit 1; rm -rf bench; mkdir bench; cd bench
now() { read -r up _ </proc/uptime; echo ${up%.*}${up#*.}0000; }
cold() { sync; echo 3 >/proc/sys/vm/drop_caches; at=$(now); }
said() { echo $1 $(($(now) - at)); }
cold; dd if=/dev/zero of=big bs=1M count=MIB conv=fsync 2>/dev/null; said write
cold; dd if=big of=/dev/null bs=1M 2>/dev/null; said read; rm big
mkdir many; cold; i=0; while [ $i -lt FILES ]; do echo $i >many/$i; i=$((i+1)); done; sync; said create
cold; i=0; while [ $i -lt LOOKED_AT ]; do [ -f many/$((i % FILES)) ] || exit 1; i=$((i+1)); done; said stat
cold; rm -rf many; sync; said remove
""".replace("MIB", str(MIB)).replace("LOOKED_AT", str(LOOKED_AT)).replace("FILES", str(FILES))


class Work:
    def __init__(self, ctx):
        self.d = ctx.daemon()
        self.sid = ctx.once("volume-sandbox", self.make)

    def make(self):
        volume = {"name": "v", "mountPath": "/volume", "pvc": {"claimName": "bench-" + uuid.uuid4().hex[:8], "deleteOnSandboxTermination": True}}
        return self.d.api.create(self.d.image, entrypoint=["sleep", "86400"], volumes=[volume])

    def sample(self):
        out = self.d.api.output(self.sid, f"sh -c '{SCRIPT.replace(chr(39), '')}' _ {self.where}")
        words = out.split()
        if len(words) != 10:
            raise Failed("the guest said: " + out[-200:])
        phases = {k: float(v) for k, v in zip(words[::2], words[1::2])}
        return {"total": sum(phases.values()), **phases}


class Root(Work):
    name = "root disk"
    where = "/root"


class Volume(Work):
    name = "mayfly"
    where = "/volume"


SCENARIOS = {
    "volume": {
        "what": f"a file of {MIB} MiB written and read, {FILES} files created, {LOOKED_AT} looked up, all removed; caches cold before each",
        "start": "before each phase (guest's clock)", "stop": "its end, synced",
        "arms": [Root, Volume], "seconds": 120, "samples": 5, "passes": 1, "phase_rate": {"write": MIB, "read": MIB},
    },
}
