# SPDX-License-Identifier: Apache-2.0
"""What the numbers were measured on: the stamp that every result carries, and the checks of bench/doctor, which only report."""
import os
import platform
import time


def read(path, default=""):
    try:
        with open(path) as f:
            return f.read().strip()
    except OSError:
        return default


def cpu_model():
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def cpu_flags():
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


def virtualization():
    """hardware | nested | emulated | software | none: what a VM that is started here runs on."""
    flags = cpu_flags()
    release = os.uname().release
    if "mayfly-appliance" in release or "TCG" in cpu_model() or "QEMU" in cpu_model():
        return "emulated"
    if not os.path.exists("/dev/kvm"):
        return "none"
    if not flags & {"vmx", "svm"}:
        return "software"
    return "nested" if "hypervisor" in flags else "hardware"


def steal_percent(seconds=0.5):
    def ticks():
        v = [int(x) for x in read("/proc/stat").splitlines()[0].split()[1:]]
        return sum(v[:8]), v[7] if len(v) > 7 else 0
    a, sa = ticks()
    time.sleep(seconds)
    b, sb = ticks()
    return 100.0 * (sb - sa) / max(1, b - a)


def stalls(seconds=0.5, gap_us=1000):
    """(percent of the time lost in gaps, the longest in us) of a loop that only looks at the clock. It shows how much others disturb a program that computes,
    also where the hypervisor reports no steal."""
    lost = longest = 0
    begun = last = time.monotonic_ns()
    while last - begun < seconds * 1e9:
        now = time.monotonic_ns()
        gap = (now - last) / 1000
        if gap > gap_us:
            lost += gap
        longest, last = max(longest, gap), now
    return 100.0 * lost / (seconds * 1e6), longest


def governors():
    base = "/sys/devices/system/cpu"
    got = {read(f"{base}/{c}/cpufreq/scaling_governor") for c in os.listdir(base) if c[3:].isdigit()} if os.path.isdir(base) else set()
    return ", ".join(sorted(got - {""})) or "none"


def stamp():
    mem = {l.split(":")[0]: int(l.split()[1]) for l in read("/proc/meminfo").splitlines() if len(l.split()) > 1}
    return {
        "cpu": cpu_model(), "cpus": os.cpu_count(), "kernel": os.uname().release,
        "virtualization": virtualization(),
        "memory_mib": mem.get("MemTotal", 0) // 1024, "memory_free_mib": mem.get("MemAvailable", 0) // 1024,
        "swap_mib": (mem.get("SwapTotal", 0) - mem.get("SwapFree", 0)) // 1024,
        "governor": governors(),
        "thp": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "aslr": read("/proc/sys/kernel/randomize_va_space"),
        "load": read("/proc/loadavg").split(" ")[0], "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def checks():
    """[(good?, what, what it does to the numbers)]"""
    s = stamp()
    out = []
    v = s["virtualization"]
    meaning = {
        "hardware": (True, "KVM on the hardware", ""),
        "nested": (False, "KVM, itself inside a virtual machine", "exits cost several times more; compare arms only"),
        "emulated": (False, "KVM under software emulation (the appliance)",
                     "absolute times mean nothing outside; only compare arms of one run"),
        "software": (False, "a /dev/kvm without hardware behind it", "guest kernels run interpreted: use mayfly machine"),
        "none": (False, "no /dev/kvm", "arms that need it are reported absent"),
    }[v]
    out.append((meaning[0], "virtualization: " + meaning[1], meaning[2]))
    gov = s["governor"]
    out.append((gov in ("performance", "none"), f"frequency governor: {gov}",
                "" if gov in ("performance", "none") else "the first samples run slow: set it to performance"))
    turbo = {"1": "off", "0": "on"}.get(read("/sys/devices/system/cpu/intel_pstate/no_turbo")) or \
        {"1": "on", "0": "off"}.get(read("/sys/devices/system/cpu/cpufreq/boost"))
    if turbo:
        out.append((turbo == "off", "turbo " + turbo, "" if turbo == "off" else "maxima and long runs drift with temperature"))
    steal = steal_percent()
    out.append((steal < 1, f"steal: {steal:.1f}% of the CPU time", "" if steal < 1 else "a neighbour takes it: p95 and above show the neighbour"))
    lost, longest = stalls()
    s["stalls_percent"], s["steal_percent"] = round(lost, 1), round(steal, 1)
    out.append((lost < 2, f"stalls: {lost:.1f}% of half a second lost in gaps above 1 ms, the longest {longest / 1000:.1f} ms",
                "" if lost < 2 else "a neighbour computes, whatever steal says: p95 and above, and the drift between passes, show the neighbour"))
    load = float(s["load"] or 0)
    out.append((load < 0.3 * (s["cpus"] or 1), f"load: {load} on {s['cpus']} CPU{'' if s['cpus'] == 1 else 's'}",
                "" if load < 0.3 * (s["cpus"] or 1) else "something else runs: expect wide tails"))
    out.append((s["swap_mib"] == 0, f"swap in use: {s['swap_mib']} MiB", "" if s["swap_mib"] == 0 else "cold pages may come from disk"))
    roomy = s["memory_free_mib"] >= 3072
    out.append((roomy, f"memory available: {s['memory_free_mib']} MiB", "" if roomy else "a whole run wants 3 GiB: its larger bursts may not fit"))
    out.append((s["aslr"] != "2" or v != "emulated", f"address randomisation: {s['aslr']}",
                "" if s["aslr"] != "2" or v != "emulated" else "triples the start of position-independent programs under emulation"))
    out.append(("[always]" in s["thp"], "huge pages: " + s["thp"], "" if "[always]" in s["thp"] else "boots touch 4 KiB pages one by one"))
    return s, out
