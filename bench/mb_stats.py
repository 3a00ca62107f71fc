# SPDX-License-Identifier: Apache-2.0
"""Numbers of a set of samples: percentiles, and how far they would move if the run were made again."""
import random


def percentile(sorted_values, p):
    """Nearest rank: a value that was really measured."""
    if not sorted_values:
        return None
    k = max(0, min(len(sorted_values) - 1, int(-(-p * len(sorted_values) // 100)) - 1))
    return sorted_values[k]


def summary(values):
    v = sorted(values)
    return {"n": len(v), "p50_us": percentile(v, 50), "p95_us": percentile(v, 95), "p99_us": percentile(v, 99),
            "max_us": v[-1] if v else None, "min_us": v[0] if v else None}


def median_interval(values, rounds=400, seed=1):
    """95% interval of the median, by resampling: what the noise of this run does to it."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (None, None)
    rng = random.Random(seed)
    n = len(values)
    meds = sorted(percentile(sorted(rng.choices(values, k=n)), 50) for _ in range(rounds))
    return meds[int(rounds * 0.025)], meds[int(rounds * 0.975) - 1]


def by_part(values, parts):
    out = {}
    for v, p in zip(values, parts):
        out.setdefault(p, []).append(v)
    return [sorted(vs) for _, vs in sorted(out.items())]


def drift(values, parts):
    """The distance between the medians of the run's passes: what the machine did between them, which resampling one pass cannot show."""
    meds = [percentile(vs, 50) for vs in by_part(values, parts)]
    return max(meds) - min(meds) if len(meds) > 1 else 0.0


def noise(values, parts):
    """The stated noise of a median: the larger of half its 95% interval by resampling and the drift between the passes."""
    if len(values) < 2:
        return None
    lo, hi = median_interval(values)
    return max((hi - lo) / 2, drift(values, parts))


def difference(a, pa, b, pb, moved=0.0):
    """(median(b) - median(a), what it must exceed). That is the noise of two independent runs together with the machine's change between them
    (`moved`, relative), and at least 2% and 5 of the unit."""
    ma, mb = percentile(sorted(a), 50), percentile(sorted(b), 50)
    na, nb, nm = noise(a, pa) or 0.0, noise(b, pb) or 0.0, moved * max(ma, mb)
    return mb - ma, max((na * na + nb * nb + nm * nm) ** 0.5, 0.02 * ma, 5.0)


def pairs(a, b):
    """Differences b - a of samples taken next to each other, by (pass, round): {key: value} each."""
    return sorted(b[k] - a[k] for k in a.keys() & b.keys())


def sign_interval(differences, error=0.01):
    """(lo, hi) of the median difference, by the order of the pairs alone (the sign test turned round): exact, whatever the samples' distribution and
    whatever the machine did to both of a pair; wrong in at most `error` of runs. None: too few pairs to say anything."""
    d, n = sorted(differences), len(differences)
    k, tail, term = 0, 0.0, 0.5 ** n
    while tail + term <= error / 2:  # P(Binomial(n, 1/2) <= k)
        tail += term
        term *= (n - k) / (k + 1)
        k += 1
    return (d[k - 1], d[n - k]) if k else None


def short(v):
    return f"{v:,.0f}" if v >= 100 else f"{v:.1f}" if v >= 10 else f"{v:.2f}"


def human(us):
    if us is None:
        return "-"
    if us < 1000:
        return f"{us:.0f} us"
    if us < 1e6:
        return f"{us / 1000:.2f} ms" if us < 1e5 else f"{us / 1000:.1f} ms"
    return f"{us / 1e6:.2f} s"
