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


def difference_interval(a, b, rounds=600, seed=2):
    """95% interval of median(b) - median(a)."""
    rng = random.Random(seed)
    d = sorted(percentile(sorted(rng.choices(b, k=len(b))), 50) - percentile(sorted(rng.choices(a, k=len(a))), 50)
               for _ in range(rounds))
    return d[int(rounds * 0.025)], d[int(rounds * 0.975) - 1]


def human(us):
    if us is None:
        return "-"
    if us < 1000:
        return f"{us:.0f} us"
    if us < 1e6:
        return f"{us / 1000:.2f} ms" if us < 1e5 else f"{us / 1000:.1f} ms"
    return f"{us / 1e6:.2f} s"
