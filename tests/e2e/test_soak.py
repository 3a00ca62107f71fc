# SPDX-License-Identifier: Apache-2.0
"""Many clients create, run and kill for a minute while the daemon is killed twice: no wrong answer, nothing acknowledged lost, nothing left over.

MAYFLY_STRESS=1: 200 clients, ten minutes, ten kills. They mostly wait then: a full host answers 429 with Retry-After, and a client
tries again after that time. The appliance needs room for them (E2E_MEMORY=8G)."""
import collections
import concurrent.futures
import http.client
import json
import os
import time
import urllib.error
import urllib.request
import uuid

STRESS = bool(os.environ.get("MAYFLY_STRESS"))
CLIENTS, SECONDS, KILLS = (200, 600, 10) if STRESS else (16, 60, 2)
SANDBOX = {"image": {"uri": "tiny"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "timeout": 900}
PATIENCE_S = 600 if STRESS else 120
GONE = (urllib.error.URLError, ConnectionError, http.client.HTTPException, TimeoutError)


def ask(daemon, method, path, body=None, **headers):
    """One exchange: (status, text), or None when the daemon was not there to answer."""
    req = urllib.request.Request(daemon.url + path, method=method, data=None if body is None else json.dumps(body).encode(),
                                 headers={"OPEN-SANDBOX-API-KEY": daemon.api_key, "Content-Type": "application/json"} | headers)
    try:
        with urllib.request.urlopen(req, timeout=PATIENCE_S) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        if e.code == 429:
            time.sleep(int(e.headers["Retry-After"]))
        return e.code, e.read().decode()
    except GONE:
        return None


def until_answered(end, *args, **kw):
    while time.monotonic() < end:
        r = ask(*args, **kw)
        if r:
            return r
        time.sleep(0.2)
    raise AssertionError(f"no answer to {args[1:3]}")


def client(daemon, end, n):
    seen, wrong = collections.Counter(), []
    while time.monotonic() < end:
        limit = time.monotonic() + PATIENCE_S
        status, text = until_answered(limit, daemon, "POST", "/v1/sandboxes", SANDBOX, **{"Idempotency-Key": str(uuid.uuid4())})
        seen[status] += 1
        if status != 202:
            # the one that the kill interrupted is reported as what it is: not made
            wrong += [] if status in (429, 500, 503) else [(status, text)]
            continue
        sb = json.loads(text)["id"]
        # a daemon that dies cuts the stream: what was acknowledged is there afterwards, or is still made
        r = None
        while time.monotonic() < limit and not (r and (r[0] != 200 or "execution_complete" in r[1])):
            r = until_answered(limit, daemon, "POST", f"/{sb}/44772/command", {"command": f"echo {n}-{seen[202]}"})
        seen["ran"] += r[0] == 200
        if r[0] != 200 or f'"{n}-{seen[202]}\\n"' not in r[1]:
            wrong.append((r, until_answered(limit, daemon, "GET", f"/v1/sandboxes/{sb}")))
        status, text = until_answered(limit, daemon, "GET", f"/v1/sandboxes/{sb}")
        if status != 200:
            wrong.append(("acknowledged and lost", sb, status, text))
        status, text = until_answered(limit, daemon, "DELETE", f"/v1/sandboxes/{sb}")
        if status not in (204, 404):
            wrong.append((status, text))
    return seen, wrong


LEFT = """
echo monitors $(pgrep -c -x mayfly-vmm)
echo images $(pgrep -c -x mayfly-image)
echo cgroups $(find /sys/fs/cgroup -type d -name 's[0-9]*' | wc -l)
echo mounts $(wc -l </proc/mounts)
echo run $(find /run/mayfly | wc -l)
echo blobs $(find /var/lib/mayfly/state/blobs -type f | wc -l)
echo files $(find /var/lib/mayfly/state -type f ! -path '*/blobs/*' ! -path '*/images/*' | wc -l)
echo daemon-fds $(ls /proc/$(pgrep -x mayflyd)/fd | wc -l)
echo helper-fds $(ls /proc/$(pgrep -x -o mayfly-priv)/fd | wc -l)
"""


# what the pool's blanks, the template's working set and an idle connection may add; a leak adds one a round
SLACK = {"monitors": 4, "images": 0, "cgroups": 4, "mounts": 2, "run": 24, "blobs": 12, "files": 8, "daemon-fds": 40, "helper-fds": 12}


def left(daemon):
    """What there is of everything that a sandbox takes; the pool's blanks count, too."""
    return {k: int(v) for k, v in (line.split() for line in daemon.machine.run("sh", "-c", LEFT).stdout.splitlines())}


def rested(daemon):
    """`left` once it stands still with the pool filled."""
    limit, last, same = time.monotonic() + 120, None, 0
    while same < 3 and time.monotonic() < limit:
        now = left(daemon)
        same, last = (same + 1 if now == last else 0), now
        time.sleep(1)
    return last


def test_clients_and_kills(daemon):
    # one that made the template; then a daemon like those after each kill
    box = json.loads(until_answered(time.monotonic() + 120, daemon, "POST", "/v1/sandboxes", SANDBOX)[1])["id"]
    limit = time.monotonic() + 120
    while "Ready" not in until_answered(limit, daemon, "GET", "/v1/mayfly/templates")[1] and time.monotonic() < limit:
        time.sleep(0.5)
    assert until_answered(limit, daemon, "DELETE", f"/v1/sandboxes/{box}")[0] == 204
    daemon.kill()
    daemon.wait()
    before = rested(daemon)
    end = time.monotonic() + SECONDS
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        work = [pool.submit(client, daemon, end, n) for n in range(CLIENTS)]
        for _ in range(KILLS):
            time.sleep(SECONDS / (KILLS + 1))
            daemon.kill()
        done = [w.result() for w in work]
    seen, wrong = sum((s for s, _ in done), collections.Counter()), [w for _, ws in done for w in ws]
    print(f"{CLIENTS} clients, {SECONDS} s, {KILLS} kills, answers to create and commands that ran: {dict(seen)}")
    assert not wrong, wrong[:5]
    assert seen[202] >= CLIENTS
    # what an interrupted create left is recorded as failed, and goes with its record
    items = json.loads(until_answered(time.monotonic() + 60, daemon, "GET", "/v1/sandboxes?pageSize=200")[1])["items"]
    assert not [i for i in items if i["status"]["state"] not in ("Failed", "Terminated")], items
    for i in items:
        assert until_answered(time.monotonic() + 60, daemon, "DELETE", f"/v1/sandboxes/{i['id']}")[0] in (204, 404)
    after = rested(daemon)
    print(f"before {before}\nafter  {after}")
    assert all(after[k] <= before[k] + SLACK[k] for k in before), (before, after, daemon.machine.run("ps", "axo", "pid,args").stdout)
