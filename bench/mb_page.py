# SPDX-License-Identifier: Apache-2.0
"""One self-contained page of a run: tables and plots, SVG made here, light and dark, no network, no script needed to read it."""
import html
import math
import re

import mb_result
import mb_stats

# one fixed colour per arm, the same in every plot of every page; light and dark variants are chosen for contrast on their ground
ARMS = {"floor": ("#6b7280", "#9ca3af"), "mayfly-vmm": ("#0f766e", "#2dd4bf"), "mayfly": ("#1d4ed8", "#60a5fa"),
        "qemu": ("#c2410c", "#fb923c"), "firecracker": ("#a16207", "#facc15"), "cloud-hypervisor": ("#7e22ce", "#c084fc"),
        "krun": ("#be185d", "#f472b6"), "mayfly-boot": ("#6d28d9", "#a78bfa"), "mayfly-no-jail": ("#be185d", "#f472b6"),
        "mayfly-no-pool": ("#a16207", "#facc15"), "no jail, no pool": ("#b91c1c", "#fca5a5"), "mayfly-vmm-boot": ("#4d7c0f", "#a3e635"), "docker": ("#0369a1", "#38bdf8"), "runc": ("#b91c1c", "#fca5a5")}
PHASES = [("#0f766e", "#2dd4bf"), ("#1d4ed8", "#60a5fa"), ("#c2410c", "#fb923c"), ("#7e22ce", "#c084fc"), ("#a16207", "#facc15"),
          ("#be185d", "#f472b6"), ("#4d7c0f", "#a3e635"), ("#0369a1", "#7dd3fc"), ("#b91c1c", "#fca5a5"), ("#57534e", "#d6d3d1")]

CSS = """
:root{--bg:#fff;--fg:#1f2328;--dim:#59636e;--line:#d1d9e0;--grid:#eaeef2;--warn-bg:#fff8c5;--warn:#6b4e00;--bad:#b42318}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9198a1;--line:#3d444d;--grid:#21262d;--warn-bg:#3a2d08;--warn:#f2cc60;--bad:#ff9f95}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1080px;padding:24px 20px 60px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}h1{font-size:26px;line-height:1.25;margin:0 0 6px}
h2{font-size:20px;margin:44px 0 2px;padding-top:14px;border-top:1px solid var(--line)}h3{font-size:15px;margin:20px 0 6px}
p{margin:4px 0}a{color:inherit}.dim{color:var(--dim)}code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
.warn{background:var(--warn-bg);color:var(--warn);padding:10px 14px;border-radius:6px;margin:14px 0;font-weight:600}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:10px 0;font-variant-numeric:tabular-nums;font-size:14px;white-space:nowrap}
th,td{padding:4px 12px;text-align:right;border-bottom:1px solid var(--grid)}th{color:var(--dim);font-weight:600}
th.t,td.t{text-align:left}tr.sub td{color:var(--dim);font-size:13px}tr.sub td.t+td.t{padding-left:26px}td.bad{color:var(--bad);white-space:normal;overflow-wrap:anywhere}
ul{margin:6px 0;padding-left:20px}svg{display:block;max-width:100%;height:auto;margin:6px 0}
svg text{fill:var(--fg);font:12px system-ui,sans-serif}svg text.d{fill:var(--dim)}svg text.halo{paint-order:stroke;stroke:var(--bg);stroke-width:4px}.g{stroke:var(--grid)}.ax{stroke:var(--line)}
.key{display:inline-flex;align-items:center;gap:6px;margin-right:16px;font-size:13px}.key i{width:11px;height:11px;border-radius:2px;display:inline-block}
"""


def esc(s):
    return html.escape(str(s))


def prose(s):
    return re.sub("`([^`]+)`", r"<code>\1</code>", esc(s))


fmt = mb_result.show


def arm_class(name):
    return "a-" + "".join(c if c.isalnum() else "-" for c in name)


def colours(res):
    """Every arm of the result has a colour: its own, or by its place among the unknown ones."""
    names = {arm for sc in res["scenarios"].values() for arm in sc["arms"]}
    arms = ARMS | {n: PHASES[i % len(PHASES)] for i, n in enumerate(sorted(names - ARMS.keys()))}
    rules = [(f".{arm_class(n)}", c) for n, c in arms.items()] + [(f".p{i}", c) for i, c in enumerate(PHASES)]
    light, dark = ("".join(f"{sel}{{--c:{c[k]}}}" for sel, c in rules) for k in (0, 1))
    return ":root{--c:var(--fg)}" + light + "@media(prefers-color-scheme:dark){" + dark + "}"


def key(items):
    return "<p>" + "".join(f'<span class="key {c}"><i style="background:var(--c)"></i>{esc(t)}</span>' for c, t in items) + "</p>"


def nice_ticks(lo, hi, log, about=6):
    if log:
        out = []
        for e in range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1):
            out += [m * 10 ** e for m in (1, 2, 5)]
        out = [t for t in out if lo <= t <= hi]
        return [t for t in out if str(t).lstrip("0.")[0] == "1"] if len(out) > 9 else out
    raw = (hi - lo) / about or 1
    mag = 10 ** math.floor(math.log10(raw))
    step = next(m * mag for m in (1, 2, 5, 10) if m * mag >= raw)
    t = math.ceil(lo / step) * step
    out = []
    while t <= hi + step / 1e6:
        out.append(t)
        t += step
    return out


def tick_label(v, unit):
    """As short as it can be said."""
    if unit != "us":
        return f"{v:,.0f}"
    for div, name in ((1e6, "s"), (1e3, "ms")):
        if v >= div:
            return f"{v / div:g} {name}"
    return f"{v:g} us" if v else "0"


def axis(x0, x1, y, lo, hi, log, unit, height, top):
    def at(v):
        if log:
            return x0 + (x1 - x0) * (math.log(v) - math.log(lo)) / (math.log(hi) - math.log(lo))
        return x0 + (x1 - x0) * (v - lo) / ((hi - lo) or 1)
    s = ""
    last = -1e9
    for t in nice_ticks(lo, hi, log):
        x = at(t)
        s += f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{y}"/>'
        if x - last > 56:
            s += f'<text class="d" x="{x:.1f}" y="{y + 16}" text-anchor="middle">{tick_label(t, unit)}</text>'
            last = x
    return s + f'<line class="ax" x1="{x0}" x2="{x1}" y1="{y}" y2="{y}"/>', at


def distribution(arms, unit):
    """Each sample is a dot, arms one below the other on one axis; a bar is the median, a whisker ends at p95."""
    rows = [(n, [s["total"] for s in a["samples"]]) for n, a in arms.items() if a["samples"]]
    if not rows:
        return ""
    values = [v for _, vs in rows for v in vs]
    lo, hi = min(values), max(values)
    log = lo > 0 and hi / lo > 12
    pad = (hi - lo) * 0.04 or hi * 0.05 or 1
    lo, hi = (lo / 1.1, hi * 1.1) if log else (max(0, lo - pad), hi + pad)
    x0, x1, row = 150, 1010, 54
    h = row * len(rows) + 34
    base, at = axis(x0, x1, row * len(rows) + 8, lo, hi, log, unit, h, 6)
    s = base
    for i, (name, vs) in enumerate(rows):
        y = 8 + row * i + row / 2
        sm = mb_stats.summary(vs)
        s += f'<g class="{arm_class(name)}"><text x="{x0 - 12}" y="{y + 4}" text-anchor="end">{esc(name)}</text>'
        for k, v in enumerate(vs):
            dy = ((k * 7919) % 21 - 10) * 1.15  # spread by order, always alike
            s += f'<circle cx="{at(v):.1f}" cy="{y + dy:.1f}" r="3" fill="var(--c)" fill-opacity=".5"><title>{esc(fmt(v, unit))}</title></circle>'
        m, p95 = at(sm["p50_us"]), at(sm["p95_us"])
        s += (f'<line x1="{m:.1f}" x2="{p95:.1f}" y1="{y}" y2="{y}" stroke="var(--c)" stroke-width="1.5"/>'
              f'<line x1="{p95:.1f}" x2="{p95:.1f}" y1="{y - 7}" y2="{y + 7}" stroke="var(--c)" stroke-width="1.5"/>'
              f'<line x1="{m:.1f}" x2="{m:.1f}" y1="{y - 17}" y2="{y + 17}" stroke="var(--c)" stroke-width="3.5"/></g>')
    scale = ", logarithmic" if log else ""
    return (f'<h3>Distribution</h3><p class="dim">a dot is a sample; thick bar: median; whisker: to p95{scale}</p>'
            f'<svg viewBox="0 0 1040 {h}" role="img" aria-label="distribution of samples">{s}</svg>')


def phases(sc):
    """Medians of the phases, stacked; what no phase covers is grey. What is no part of the total stands in the table only."""
    arms, unit, names, apart = sc["arms"], sc["unit"], [], sc.get("apart", ())
    for a in arms.values():
        for s in a["samples"]:
            names += [p for p in s if p != "total" and p not in names and p not in apart and mb_result.unit_of(sc, p) == unit]
    rows = []
    for n, a in arms.items():
        if any(len(s) > 1 for s in a["samples"]):
            med = {p: mb_stats.summary([s[p] for s in a["samples"] if p in s])["p50_us"] for p in names
                   if any(p in s for s in a["samples"])}
            rows.append((n, med, mb_stats.summary([s["total"] for s in a["samples"]])["p50_us"]))
    if not rows or unit != "us":
        return ""
    hi = max(max(t, sum(m.values())) for _, m, t in rows) * 1.02
    x0, x1, row = 150, 1010, 40
    h = row * len(rows) + 34
    s, at = axis(x0, x1, row * len(rows) + 8, 0, hi, False, unit, h, 6)
    for i, (n, med, total) in enumerate(rows):
        y, x = 8 + row * i + 8, 0.0
        s += f'<text x="{x0 - 12}" y="{y + 16}" text-anchor="end">{esc(n)}</text>'
        for p, v in med.items():
            s += (f'<rect class="p{names.index(p) % len(PHASES)}" x="{at(x):.1f}" y="{y}" width="{max(0.5, at(x + v) - at(x)):.1f}" height="24" '
                  f'fill="var(--c)"><title>{esc(p)}: {esc(fmt(v, unit))}</title></rect>')
            x += v
        if total > x:
            s += (f'<rect x="{at(x):.1f}" y="{y}" width="{at(total) - at(x):.1f}" height="24" fill="var(--line)">'
                  f'<title>the rest: {esc(fmt(total - x, unit))}</title></rect>')
    return ("<h3>Phases</h3>" + key([(f"p{i % len(PHASES)}", p) for i, p in enumerate(names)] + [("", "the rest")]).replace(
        'class="key "><i style="background:var(--c)"', 'class="key"><i style="background:var(--line)"') +
        f'<svg viewBox="0 0 1040 {h}" role="img" aria-label="phases, stacked">{s}</svg>')


def scaling(name, group, unit):
    """p50 and p95 over how many were started at once."""
    series = {}
    for size, sc in group:
        for arm, a in sc["arms"].items():
            vs = [s["total"] for s in a["samples"]]
            if vs:
                sm = mb_stats.summary(vs)
                series.setdefault(arm, []).append((size, sm["p50_us"], sm["p95_us"]))
    if not any(len(p) > 1 for p in series.values()):
        return ""
    xs = sorted({p[0] for ps in series.values() for p in ps})
    values = [v for ps in series.values() for _, m, q in ps for v in (m, q)]
    lo, hi = min(values) / 2, max(values) * 1.5
    x0, x1, y0, y1 = 90, 1000, 270, 14

    def at_x(v):  # twice as many, one step further
        return x0 + 60 + (x1 - x0 - 160) * math.log(v / xs[0]) / math.log(xs[-1] / xs[0])

    def at_y(v):
        return y0 - (y0 - y1) * math.log(v / lo) / math.log(hi / lo)
    s = ""
    for t in nice_ticks(lo, hi, True):
        s += (f'<line class="g" x1="{x0}" x2="{x1}" y1="{at_y(t):.1f}" y2="{at_y(t):.1f}"/>'
              f'<text class="d" x="{x0 - 8}" y="{at_y(t) + 4:.1f}" text-anchor="end">{tick_label(t, unit)}</text>')
    for v in xs:
        s += f'<text class="d" x="{at_x(v):.1f}" y="{y0 + 18}" text-anchor="middle">{v} at once</text>'
    labels = ""
    for arm, ps in series.items():
        ps.sort()
        line = " ".join(f"{at_x(x):.1f},{at_y(m):.1f}" for x, m, _ in ps)
        band = line + " " + " ".join(f"{at_x(x):.1f},{at_y(q):.1f}" for x, _, q in reversed(ps))
        s += (f'<g class="{arm_class(arm)}"><polygon points="{band}" fill="var(--c)" fill-opacity=".15"/>'
              f'<polyline points="{line}" fill="none" stroke="var(--c)" stroke-width="2.5"/>')
        for x, m, q in ps:
            # the higher of two stands above its dot, the lower one below
            top = m >= max(v for other in series.values() for k, v, _ in other if k == x)
            s += (f'<circle cx="{at_x(x):.1f}" cy="{at_y(m):.1f}" r="4.5" fill="var(--c)"><title>{x} at once: p50 {esc(fmt(m, unit))}, '
                  f'p95 {esc(fmt(q, unit))}</title></circle>')
            labels += f'<text class="halo" x="{at_x(x):.1f}" y="{at_y(m) + (-11 if top else 21):.1f}" text-anchor="middle">{esc(fmt(m, unit))}</text>'
        s += "</g>"
    return (f"<h2>{esc(name)}: scaling</h2><p class='dim'>line: median until all are done; band: to p95; both axes logarithmic</p>" +
            key([(arm_class(a), a) for a in series]) +
            f'<svg viewBox="0 0 1040 296" role="img" aria-label="scaling">{s}{labels}<line class="ax" x1="{x0}" x2="{x1}" y1="{y0}" y2="{y0}"/></svg>')


def table(name, sc):
    heads = "".join(f"<th>{h}</th>" for h in mb_result.HEAD)
    out = f"<div class='wide'><table><tr><th class='t'>arm</th><th class='t'>phase</th>{heads}</tr>"
    for _, _, arm, a, phase, values, parts in mb_result.rows({"scenarios": {name: sc}}):
        if a["absent"]:
            out += f"<tr class='sub'><td class='t'>{esc(arm)}</td><td class='t' colspan='{len(mb_result.HEAD) + 1}'>absent: {esc(a['absent'])}</td></tr>"
            continue
        cells = mb_result.cells(name, sc, arm, a, phase, values, parts)
        out += (f"<tr{'' if phase == 'total' else ' class=sub'}><td class='t'>{esc(arm) if phase == 'total' else ''}</td><td class='t'>{esc(phase)}</td>"
                + "".join(f"<td>{esc(c)}</td>" for c in cells) + "</tr>")
        if phase == "total":
            out += "".join(f"<tr><td class='t'></td><td class='t bad' colspan='{len(mb_result.HEAD) + 1}'>{esc(why)}</td></tr>"
                           for why in mb_result.failures(a)[:3])
    return out + "</table></div>"


def page(res, command):
    host = res.get("host", {})
    emulated = host.get("virtualization") == "emulated"
    title = "mayfly bench" + (": inside the appliance, absolute numbers mean nothing" if emulated else "")
    out = ["<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width,initial-scale=1'>"
           "<meta name='color-scheme' content='light dark'>"
           f"<title>{esc(title)}</title><style>{CSS}{colours(res)}</style></head><body><h1>{esc(title)}</h1>"
           f"<p class='dim'>{esc(host.get('time', ''))} · {esc(host.get('cpu', ''))}, {esc(host.get('cpus', ''))} CPU{'' if host.get('cpus') == 1 else 's'}, "
           f"{esc(host.get('memory_mib', ''))} MiB · Linux {esc(host.get('kernel', ''))} · virtualization: {esc(host.get('virtualization', ''))}</p>"
           f"<p><code>{esc(command)}</code>{esc(mb_result.took(res))}</p>"]
    if emulated:
        out.append("<p class='warn'>Measured under software emulation. Compare arms of this run with each other; quote none of the times.</p>")
    bad = [(w, e) for g, w, e in res.get("checks", []) if not g]
    if bad:
        out.append("<h3>What this host does to the numbers</h3><ul>" + "".join(f"<li>{esc(w)}{': ' + esc(e) if e else ''}</li>" for w, e in bad) + "</ul>")
    groups = {}
    out.append("<p>" + " · ".join(f"<a href='#{esc(n)}'>{esc(n)}</a>" for n in res["scenarios"]) + "</p>")
    near = mb_result.beside(res)
    if near:
        out.append("<h3>Beside each other, worst first</h3><ul>" + "".join(f"<li>{prose(text)}</li>" for _, text in near) + "</ul>")
    for name, sc in res["scenarios"].items():
        cut = f"<p class='dim'>cut short, its share of the time was over: {esc(mb_result.cut(sc))}</p>" if mb_result.cut(sc) else ""
        out.append(f"<h2 id='{esc(name)}'>{esc(name)}</h2><p>{prose(sc['what'])}</p><p class='dim'>from: {prose(sc['start'])}; to: {prose(sc['stop'])}</p>{cut}")
        if sc["host"].get("kernel") != host.get("kernel"):
            out.append(f"<p class='dim'>measured outside of the appliance: {esc(sc['host'].get('cpu'))}, Linux {esc(sc['host'].get('kernel'))}</p>")
        out.append(table(name, sc) + distribution(sc["arms"], sc["unit"]) + phases(sc))
        m = re.fullmatch(r"(.*)-(\d+)", name)
        if m:
            groups.setdefault(m.group(1), []).append((int(m.group(2)), sc))
    for name, group in groups.items():
        out.append(scaling(name, group, group[0][1]["unit"]))
    out.append("<p class='dim' style='margin-top:40px'>The first sample of each arm in each pass is dropped; arms alternate. Noise: the larger "
               "of half the 95% interval of the median and of the distance between the medians of the run's passes.</p></body></html>")
    return "\n".join(out)
