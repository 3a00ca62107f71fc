# SPDX-License-Identifier: Apache-2.0
"""The outer half of a run: events to a result, a result to a table, to markdown, to files and back.

{"host", "checks", "command", "scenarios": {name: {"unit", "what", ..., "arms": {arm: {"samples": [{"total", phase...}], "parts": [pass of each],
"failed": [why], "absent": why or None}}}}}
"""
import json

import mb_stats


def collect(lines, progress):
    res = {"scenarios": {}}
    for line in lines:
        line = line.strip()
        if not line.startswith("{"):
            if line:
                progress.note(line)
            continue
        take(res, json.loads(line), progress)
    return res


def take(res, ev, progress):
    kind = ev["event"]
    if kind == "host":
        res.setdefault("host", ev["host"])
        res.setdefault("checks", ev["checks"])
        res["now"] = ev["host"]
        return
    name = ev["scenario"]
    if kind == "scenario":
        res["scenarios"][name] = {**{k: v for k, v in ev.items() if k not in ("event", "scenario")}, "host": res["now"], "cut": 0, "arms": {}}
        return
    sc = res["scenarios"][name]
    if kind == "part":
        progress.part(name, ev["part"])
        return
    if kind == "cut":
        sc["cut"] += 1
        return
    arm = sc["arms"].setdefault(ev["arm"], {"samples": [], "parts": [], "failed": [], "absent": None})
    if kind == "absent":
        arm["absent"] = ev["why"]
        progress.note(f"{name}: {ev['arm']} is absent: {ev['why']}")
    elif kind == "sample" and ev["i"] > 0:  # the first of each pass is dropped
        arm["samples"].append(ev["values"])
        arm["parts"].append(ev["part"])
    elif kind == "failed":
        arm["failed"].append(ev["why"])
        progress.note(f"{name}: {ev['arm']} failed: {ev['why']}")
    progress.step(name)


def rows(res):
    """(scenario, its dict, arm, its dict, phase, values, the pass of each value)"""
    for name, sc in res["scenarios"].items():
        for arm, a in sc["arms"].items():
            phases = []
            for s in a["samples"]:
                phases += [p for p in s if p not in phases]
            for phase in phases or ["total"]:
                got = [(s[phase], part) for s, part in zip(a["samples"], a["parts"]) if phase in s]
                yield name, sc, arm, a, phase, [v for v, _ in got], [p for _, p in got]


def show(v, unit):
    return mb_stats.human(v) if unit == "us" else "-" if v is None else f"{v:,.0f} {unit}"


def rate(sc, phase, p50):
    """The median as a rate, where the scenario says of what: "" if not."""
    amount = sc.get("rate") if phase == "total" else None
    if phase in (sc.get("phase_rate") or {}):
        amount = (sc["phase_rate"][phase], (sc.get("rate") or (0, "MiB/s"))[1])
    if not amount or not p50:
        return ""
    return f"{mb_stats.short(amount[0] * 1e6 / p50)} {amount[1]}"


def cells(name, sc, arm, a, phase, values, parts):
    """One row as text: n, failed, p50, noise, p95, p99, max, rate"""
    s, unit = mb_stats.summary(values), sc["unit"]
    return [str(s["n"]), str(len(a["failed"])) if phase == "total" else "", show(s["p50_us"], unit), "± " + show(mb_stats.noise(values, parts), unit),
            show(s["p95_us"], unit), show(s["p99_us"], unit), show(s["max_us"], unit), rate(sc, phase, s["p50_us"])]


HEAD = ["n", "failed", "p50", "noise", "p95", "p99", "max", "rate"]


def table(res):
    print(f"{'scenario':14} {'arm':16} {'phase':20} {'n':>3} {'failed':>6} {'p50':>10} {'noise':>11} {'p95':>10} {'p99':>10} {'max':>10}  rate")
    last = None
    for name, sc, arm, a, phase, values, parts in rows(res):
        if a["absent"]:
            print(f"{name:14} {arm:16} absent: {a['absent']}")
            continue
        c = cells(name, sc, arm, a, phase, values, parts)
        shown = (name, arm) if (name, arm) != last else ("", "")
        last = (name, arm)
        print(f"{shown[0]:14} {shown[1]:16} {phase:20} {c[0]:>3} {c[1]:>6} {c[2]:>10} {c[3]:>11} {c[4]:>10} {c[5]:>10} {c[6]:>10}  {c[7]}")


def markdown(res, phases=True):
    """The result as a page to paste: stamp, command, one table; nothing left out."""
    h = res.get("host", {})
    out = [f"{h.get('time', '')}: {h.get('cpu', '')}, {h.get('cpus', '')} CPUs, {h.get('memory_mib', '')} MiB, Linux {h.get('kernel', '')}, "
           f"virtualization: {h.get('virtualization', '')}, load {h.get('load', '')}.", "", "```", res.get("command", ""), "```", ""]
    out += ["| scenario | arm | phase | " + " | ".join(HEAD) + " |", "|---|---|---|" + "--:|" * len(HEAD)]
    absent = {}
    last = None
    for name, sc, arm, a, phase, values, parts in rows(res):
        if a["absent"]:
            absent.setdefault((arm, a["absent"]), []).append(name)
            continue
        if phase != "total" and not phases:
            continue
        c = cells(name, sc, arm, a, phase, values, parts)
        first = name if last != name else ""
        last = name
        bold = "**" if phase == "total" else ""
        out.append(f"| {first} | {arm if phase == 'total' else ''} | {phase} | {c[0]} | {c[1]} | {bold}{c[2]}{bold} | " + " | ".join(c[3:]) + " |")
    out += ["", *(f"- absent: `{arm}` in {', '.join(f'`{n}`' for n in names)}: {why}" for (arm, why), names in absent.items())]
    for name, sc in res["scenarios"].items():
        if sc.get("cut"):
            out.append(f"- `{name}` was cut short in {sc['cut']} of {sc['passes']} passes: its time was over")
        for arm, a in sc["arms"].items():
            for why in sorted(set(a["failed"]))[:3]:
                out.append(f"- failed: `{name}`, `{arm}`: {why}")
    return "\n".join(out) + "\n"


def write(res, path):
    """PATH: one line a row, as the issue tracker's and other programs want it; PATH.raw: the samples, and all that the page needs."""
    with open(path, "w") as out, open(path + ".raw", "w") as raw:
        for name, sc, arm, a, phase, values, parts in rows(res):
            s = mb_stats.summary(values)
            del s["min_us"]
            line = {"scenario": name, "arm": arm, "phase": phase, "failed": len(a["failed"]), **s, "noise_us": mb_stats.noise(values, parts),
                    "unit": sc["unit"], "host": sc["host"], "command": res.get("command", "")}
            if a["absent"]:
                line["absent"] = a["absent"]
            out.write(json.dumps(line) + "\n")
        raw.write(json.dumps(res) + "\n")


def read(path):
    with open(path if path.endswith(".raw") else path + ".raw") as f:
        return json.loads(f.readline())
