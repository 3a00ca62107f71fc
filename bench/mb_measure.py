# SPDX-License-Identifier: Apache-2.0
"""The inner half of a run: takes the samples and writes them as events, one JSON object a line. Runs where KVM is.

A run has passes, and every scenario is measured in each of them. So a row has some of the machine's own changes in it. The distance between the
passes' medians says how much another run of the same command would differ (mb_stats.drift).
"""
import glob
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import mb_host
from mb_core import HERE, Absent, Context, Failed


AGAINST = " (B)"  # after an arm's name: the same arm with the build of --against


def load():
    """Every scenario of bench/scenarios/*.py, in the order of the files' names: {name: scenario}."""
    sys.path.insert(0, HERE)
    out = {}
    for path in sorted(glob.glob(os.path.join(HERE, "scenarios", "*.py"))):
        spec = importlib.util.spec_from_file_location("scenario_" + os.path.basename(path)[:-3], path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, sc in module.SCENARIOS.items():
            for field in ("what", "start", "stop", "arms", "seconds"):
                if field not in sc:
                    raise SystemExit(f"{path}: the scenario '{name}' has no '{field}'")
            out[name] = {"unit": "us", "where": "machine", **sc}
    return out


def why(e):
    return str(e) if isinstance(e, (Failed, OSError)) else f"{type(e).__name__}: {e}"


class Turn:
    """Inside of `with Turn(build)` the monitors that are started are of this build (None: of the first one)."""

    def __init__(self, vmm):
        self.vmm, self.was = vmm, None

    def __enter__(self):
        self.was = os.environ.get("MAYFLY_BENCH_VMM")
        if self.vmm:
            os.environ["MAYFLY_BENCH_VMM"] = self.vmm

    def __exit__(self, *_):
        if not self.vmm:
            return
        if self.was is None:
            del os.environ["MAYFLY_BENCH_VMM"]
        else:
            os.environ["MAYFLY_BENCH_VMM"] = self.was


class Live:
    """An arm that is ready, and the name that its rows have."""

    def __init__(self, ctx, cls, vmm):
        self.name, self.turn = cls.name + (AGAINST if vmm else ""), Turn(vmm)
        ctx.other_build = bool(vmm)
        with self.turn:
            self.arm = cls(ctx)

    def sample(self, warm):
        """warm: this sample will be dropped. An arm whose samples take minutes has a smaller one for it."""
        with self.turn:
            return self.arm.warm() if warm and hasattr(self.arm, "warm") else self.arm.sample()


class Measure:
    """Keeps to the time of --minutes. Before each part of the run, the time that is left is divided by the scenarios' weights ("seconds"). A scenario
    that has its samples earlier leaves the rest to the later ones. One that has used up its share stops, and the result says so. In a pass
    that has begun, the first sample is always taken."""

    def __init__(self, ctx, scenarios, a, out):
        self.ctx, self.scenarios, self.samples, self.passes, self.out = ctx, scenarios, a.samples, a.passes, out
        self.builds = [None, a.against] if a.against else [None]
        self.end = time.monotonic() + a.minutes * 60
        self.arms, self.round_s = {}, {}

    def emit(self, **what):
        self.out.write(json.dumps(what) + "\n")
        self.out.flush()

    def prepare(self, name):
        live = []
        for cls, build in ((c, b) for b in self.builds for c in self.scenarios[name]["arms"]):
            label = cls.name + (AGAINST if build else "")
            try:
                live.append(Live(self.ctx, cls, build))
                self.emit(event="arm", scenario=name, arm=label)
            except Absent as e:
                self.emit(event="absent", scenario=name, arm=label, why=str(e))
            except Exception as e:  # noqa: BLE001: a broken arm loses only its own rows, and the result says so
                self.emit(event="absent", scenario=name, arm=label, why="could not be prepared: " + why(e))
        self.arms[name] = live

    def one(self, name, live, i, part):
        try:
            self.emit(event="sample", scenario=name, arm=live.name, i=i, part=part, values=live.sample(i == 0))
        except Exception as e:  # noqa: BLE001: the same
            self.emit(event="failed", scenario=name, arm=live.name, i=i, part=part, why=why(e)[:300])

    def share(self, part, names):
        """Seconds for the first of `names` in this part. `names`: the scenarios that are still to come in this part."""
        passes = {n: self.passes_of(n) for n in self.arms}
        weight = {n: self.scenarios[n]["seconds"] / passes[n] for n in passes}
        to_come = sum(weight[n] for n in names) + sum(weight[n] * max(0, passes[n] - part - 1) for n in passes)
        return max(0.0, self.end - time.monotonic()) * weight[names[0]] / to_come

    def wanted(self, name):
        return min(self.samples, self.scenarios[name].get("samples", self.samples))

    def passes_of(self, name):
        return min(self.passes, self.scenarios[name].get("passes", self.passes))

    def part(self, name, part, share):
        """One pass of one scenario: its share of the samples, and one before them that is dropped."""
        live, passes = self.arms[name], self.passes_of(name)
        self.emit(event="part", scenario=name, part=part, passes=passes)
        n = -(-self.wanted(name) // passes)
        over = self.end <= time.monotonic()
        if over or (part and 2 * self.round_s.get(name, 0) > share):
            self.emit(event="cut", scenario=name, part=part, after=0, seconds=round(share, 1), over=over)
            return
        began = time.monotonic()
        for i in range(n + 1):
            now = time.monotonic()
            # from the second sample on; before each, whether a round as long as the last one still fits
            if i > 1 and now - began + self.round_s[name] > share:
                self.emit(event="cut", scenario=name, part=part, after=i - 1, seconds=round(share, 1), over=False)
                return
            # each round begins with another arm, so that no arm always follows the same one
            k = (i + part) % max(1, len(live))
            for arm in live[k:] + live[:k]:
                self.one(name, arm, i, part)
            self.round_s[name] = time.monotonic() - now

    def run(self, names):
        stamp, checks = mb_host.checks()
        self.emit(event="host", host=stamp, checks=checks)
        for name in names:
            sc = self.scenarios[name]
            self.emit(event="scenario", scenario=name, n=self.wanted(name), passes=self.passes_of(name),
                      **{k: sc[k] for k in ("unit", "what", "start", "stop", "rate", "phase_rate", "phase_unit", "apart") if k in sc})
        try:
            for name in names:
                self.emit(event="prepare", scenario=name)
                self.prepare(name)
            for part in range(self.passes):
                # scenarios with long samples last: if one sample takes longer than the whole share, no later scenario loses time
                todo = sorted((n for n in names if self.arms[n] and part < self.passes_of(n)), key=lambda n: self.scenarios[n]["seconds"])
                while todo:
                    self.part(todo[0], part, self.share(part, todo))
                    todo.pop(0)
        finally:
            self.close()

    def close(self):
        for arm in (live.arm for arms in self.arms.values() for live in arms):
            if hasattr(arm, "close"):
                try:
                    arm.close()
                except (Failed, OSError, subprocess.SubprocessError):
                    pass


def run(names, scenarios, a, out):
    for sig in (signal.SIGTERM, signal.SIGHUP):  # nothing that was started may be left behind, computing
        signal.signal(sig, lambda *_: sys.exit(1))
    ctx = Context(a.store, a.state, a.api)
    try:
        Measure(ctx, scenarios, a, out).run(names)
    finally:
        ctx.close()
