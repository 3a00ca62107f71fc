# SPDX-License-Identifier: Apache-2.0
"""The inner half of a run: takes the samples and writes them as events, one JSON object a line. Runs where KVM is.

A run has passes: every scenario is measured in each of them, so that what a row shows holds some of the machine's own ups and downs, and how
far the passes' medians lie apart tells what the same command would show again (mb_stats.drift).
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


class Measure:
    def __init__(self, ctx, scenarios, samples, passes, scale, out):
        self.ctx, self.scenarios, self.samples, self.passes, self.scale, self.out = ctx, scenarios, samples, passes, scale, out
        self.arms = {}

    def emit(self, **what):
        self.out.write(json.dumps(what) + "\n")
        self.out.flush()

    def prepare(self, name):
        """The arms of a scenario, made when it is first reached; they stay for the later passes."""
        sc, live = self.scenarios[name], []
        for cls in sc["arms"]:
            try:
                arm = cls(self.ctx)
                self.emit(event="arm", scenario=name, arm=cls.name)
                live.append(arm)
            except Absent as e:
                self.emit(event="absent", scenario=name, arm=cls.name, why=str(e))
            except Exception as e:  # noqa: BLE001: a broken arm costs its own rows, and is told, not the run
                self.emit(event="absent", scenario=name, arm=cls.name, why="could not be prepared: " + why(e))
        self.arms[name] = live

    def one(self, name, arm, i, part):
        try:
            self.emit(event="sample", scenario=name, arm=arm.name, i=i, part=part, values=arm.sample())
        except Exception as e:  # noqa: BLE001: the same
            self.emit(event="failed", scenario=name, arm=arm.name, i=i, part=part, why=why(e)[:300])

    def part(self, name, part):
        """One pass of one scenario: its share of the samples, and one before them that is dropped."""
        sc = self.scenarios[name]
        passes = sc.get("passes", self.passes)
        if part >= passes:
            return
        self.emit(event="part", scenario=name, part=part, passes=passes)
        began = time.monotonic()
        if name not in self.arms:
            self.prepare(name)
        n = -(-min(self.samples, sc.get("samples", self.samples)) // passes)
        limit = sc["seconds"] * self.scale / passes
        live = self.arms[name]
        for i in range(n + 1):
            if i > 1 and time.monotonic() - began > limit:
                self.emit(event="cut", scenario=name, part=part, after=i - 1, seconds=round(limit))
                return
            # each round begins with another arm: none is always the one behind the same neighbour
            k = (i + part) % max(1, len(live))
            for arm in live[k:] + live[:k]:
                self.one(name, arm, i, part)

    def run(self, names):
        stamp, checks = mb_host.checks()
        self.emit(event="host", host=stamp, checks=checks)
        for name in names:
            sc = self.scenarios[name]
            self.emit(event="scenario", scenario=name, n=self.samples, passes=sc.get("passes", self.passes),
                      **{k: sc[k] for k in ("unit", "what", "start", "stop", "rate", "phase_rate") if k in sc})
        try:
            for part in range(self.passes):
                for name in names:
                    self.part(name, part)
        finally:
            for live in self.arms.values():
                for arm in live:
                    if hasattr(arm, "close"):
                        try:
                            arm.close()
                        except (Failed, OSError, subprocess.SubprocessError):
                            pass


def run(names, scenarios, a, out):
    for sig in (signal.SIGTERM, signal.SIGHUP):  # nothing that was started may be left behind, computing
        signal.signal(sig, lambda *_: sys.exit(1))
    ctx = Context(a.store, a.state, a.api)
    # all of it in the time asked for: each scenario's share shrinks alike
    scale = min(1.0, a.minutes * 60 / max(1.0, sum(scenarios[n]["seconds"] for n in names)))
    try:
        Measure(ctx, scenarios, a.samples, a.passes, scale, out).run(names)
    finally:
        ctx.close()
