# SPDX-License-Identifier: Apache-2.0
"""The egress API of a sandbox: policies as clients send, change and read them (protocol, section 3), with a monitor without a machine. What a policy
does to connections is tried in test_net.py and test_net_guest.py."""
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from conftest import MAYFLY
from hostdaemon import HostDaemon

ALLOW = {"action": "allow", "target": "good.example"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    d = HostDaemon(tmp_path_factory.mktemp("egress"))
    d.start({"runtime": {"templates": False}})
    yield d
    d.clean()


def call(d, method, path, body=None, **headers):
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    r = urllib.request.Request(d.url + path, data, d.headers | headers, method=method)
    try:
        with urllib.request.urlopen(r, timeout=30) as a:
            text = a.read().decode()
            return a.status, json.loads(text) if a.headers["Content-Type"] == "application/json" else text
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


@pytest.fixture
def box(daemon):
    return daemon.create(timeout=600)


def rules(d, box):
    status, a = call(d, "GET", f"/v1/sandboxes/{box}/networkpolicy")
    assert status == 200
    return a["policy"]["defaultAction"], [(r["action"], r.get("target"), r.get("ports")) for r in a["policy"]["egress"]]


def test_without_a_policy_all_is_allowed(daemon, box):
    assert call(daemon, "GET", f"/{box}/18080/policy") == (200, {"status": "ok", "mode": "allow_all", "enforcementMode": "dns+nft",
                                                                  "policy": {"defaultAction": "allow", "egress": []}})
    assert call(daemon, "GET", f"/{box}/18080/healthz") == (200, "ok")
    assert "headers" not in call(daemon, "GET", f"/v1/sandboxes/{box}/endpoints/18080")[1]


def test_a_policy_of_create_has_a_token(daemon):
    box = daemon.create(timeout=600, networkPolicy={"egress": [ALLOW, {"target": "10.0.0.0/8"}]})
    endpoint = call(daemon, "GET", f"/v1/sandboxes/{box}/endpoints/18080")[1]
    token = endpoint["headers"]["OPENSANDBOX-EGRESS-AUTH"]
    assert call(daemon, "GET", f"/v1/sandboxes/{box}/endpoints/18080?use_server_proxy=true")[1]["headers"] == endpoint["headers"]
    assert "headers" not in call(daemon, "GET", f"/v1/sandboxes/{box}/endpoints/8080")[1]
    for headers in ({}, {"OPENSANDBOX-EGRESS-AUTH": "x"}, {"OPENSANDBOX-EGRESS-AUTH": token[:-1] + "x"}):
        assert call(daemon, "GET", f"/{box}/18080/policy", **headers) == (401, "unauthorized")
        assert call(daemon, "PUT", f"/{box}/18080/policy", {}, **headers) == (401, "unauthorized")
    status, a = call(daemon, "GET", f"/{box}/18080/policy", **{"OPENSANDBOX-EGRESS-AUTH": token})
    assert (status, a["mode"]) == (200, "enforcing")
    assert rules(daemon, box) == ("deny", [("allow", "good.example", None), ("deny", "10.0.0.0/8", None)])


def test_an_id_alone_changes_nothing(daemon, tmp_path):
    """A sandbox without a token: port 18080 says that all is allowed, and wants a key for more."""
    d = HostDaemon(tmp_path)
    d.start({"runtime": {"templates": False}, "server": {"api_key": "k" * 32}})
    try:
        d.headers = {"OPEN-SANDBOX-API-KEY": "k" * 32}
        box, none = d.create(timeout=600), {"OPEN-SANDBOX-API-KEY": ""}
        for path in (f"/{box}/18080/policy", f"/v1/sandboxes/{box}/proxy/18080/policy"):
            assert call(d, "GET", path, **none)[1]["mode"] == "allow_all"
            for method, body in (("PUT", {}), ("POST", {}), ("PATCH", [ALLOW]), ("DELETE", ["a.example"])):
                assert call(d, method, path, body, **none)[0] == 401
            assert call(d, "PATCH", path, [ALLOW], **{"OPEN-SANDBOX-API-KEY": "wrong"})[0] == 401
        assert rules(d, box) == ("allow", [])
        assert call(d, "PUT", f"/v1/sandboxes/{box}/networkpolicy", {"egress": [ALLOW]})[0] == 200
        assert call(d, "GET", f"/{box}/18080/policy", **none)[0] == 401
        assert call(d, "PATCH", f"/{box}/18080/policy", [{"action": "allow", "target": "b.example"}])[0] == 200
        assert [r[1] for r in rules(d, box)[1]] == ["b.example", "good.example"]
    finally:
        d.clean()


def test_put_replaces_and_resets(daemon, box):
    path = f"/{box}/18080/policy"
    for method in ("POST", "PUT"):
        assert call(daemon, method, path, {"defaultAction": "allow", "egress": [ALLOW]})[1] == {"status": "ok", "mode": "enforcing", "enforcementMode": "dns+nft"}
        for empty in (b"", b"null", b"{}", b" \n"):
            assert call(daemon, method, path, empty)[1] == {"status": "ok", "mode": "deny_all", "enforcementMode": "dns+nft", "reason": "policy reset to default deny-all"}
        assert rules(daemon, box) == ("deny", [])
    call(daemon, "PUT", path, {"defaultAction": "allow"})
    assert call(daemon, "GET", path)[1]["mode"] == "allow_all"


def test_patch_puts_rules_before_the_others(daemon, box):
    path = f"/v1/sandboxes/{box}/networkpolicy"
    call(daemon, "PUT", path, {"egress": [ALLOW, {"action": "deny", "target": "x.example"}]})
    assert call(daemon, "PATCH", path, [{"action": "deny", "target": "GOOD.example"}, {"action": "allow", "target": "y.example"}, {"action": "deny", "target": "y.example"}])[0] == 200
    assert rules(daemon, box) == ("deny", [("deny", "GOOD.example", None), ("allow", "y.example", None), ("deny", "x.example", None)])
    # a rule with ports is another rule than the one without
    call(daemon, "PATCH", path, [{"action": "allow", "target": "192.0.2.0/24", "ports": [443, 80]}, {"action": "allow", "target": "192.0.2.0/24"}, {"action": "deny", "ports": [25]}])
    assert rules(daemon, box)[1][:3] == [("allow", "192.0.2.0/24", [80, 443]), ("allow", "192.0.2.0/24", None), ("deny", None, [25])]
    assert call(daemon, "DELETE", path, ["192.0.2.0/24", ""])[0] == 200
    assert [r[1] for r in rules(daemon, box)[1]] == ["GOOD.example", "y.example", "x.example"]
    assert call(daemon, "DELETE", path, ["never.example"])[1]["reason"] == "no matching targets found"


@pytest.mark.parametrize("body,says", [
    (b"{", "JSON"), (b'{"egress":[]} x', "JSON"), (b"[]", "object"), ({"egress": {}}, "list"), ({"defaultAction": "maybe"}, "defaultAction"), ({"egress": [1]}, "rule 1"),
    ({"egress": [ALLOW, {"action": "permit", "target": "a.example"}]}, "rule 2"), ({"egress": [{"action": "allow", "target": ""}]}, "target"),
    ({"egress": [{"action": "allow"}]}, "rule 1"), ({"egress": [{"action": "allow", "target": "1.2.3.4/99"}]}, "1.2.3.4/99"), ({"egress": [{"action": "allow", "target": "a b"}]}, "a b"),
    ({"egress": [{"action": "allow", "target": "\u00e9.example"}]}, "rule 1"), ({"egress": [{"action": "allow", "target": "a.example", "ports": [80]}]}, "a.example"),
    ({"egress": [{"action": "allow", "target": "1.2.3.4", "ports": [0]}]}, "port"), ({"egress": [{"action": "allow", "target": "1.2.3.4", "ports": [80, 80]}]}, "twice"),
    ({"egress": [{"action": "allow", "target": "1.2.3.4", "ports": ["80"]}]}, "port"), ({"egress": [{"action": "allow", "target": "x" * 5000}]}, "too long")])
def test_bad_policies_are_refused_with_the_rule(daemon, box, body, says):
    before = rules(daemon, box)
    status, text = call(daemon, "PUT", f"/{box}/18080/policy", body)
    assert status == 400 and says in text, text
    status, text = call(daemon, "PUT", f"/v1/sandboxes/{box}/networkpolicy", body)
    assert status == 400 and json.loads(text)["code"] == "SANDBOX::INVALID_PARAMETER" and says in json.loads(text)["message"]
    assert rules(daemon, box) == before


def test_many_rules(daemon, box):
    path = f"/{box}/18080/policy"
    many = [{"action": "allow", "target": f"n{i}.example"} for i in range(10000)]
    assert call(daemon, "PUT", path, {"egress": many})[0] == 413
    assert call(daemon, "PUT", path, {"egress": many[:4096]})[0] == 200
    assert call(daemon, "PATCH", path, many[5000:5001])[0] == 413
    assert call(daemon, "PATCH", path, many[7:8])[0] == 200
    assert len(rules(daemon, box)[1]) == 4096
    for empty in (b"", [], {}):
        assert call(daemon, "PATCH", path, empty)[0] == 400
        assert call(daemon, "DELETE", path, empty)[0] == 400


def test_a_policy_survives_the_daemon(daemon):
    box = daemon.create(timeout=600, networkPolicy={"egress": [ALLOW]})
    call(daemon, "PATCH", f"/v1/sandboxes/{box}/networkpolicy", [{"action": "allow", "target": "later.example"}])
    token = call(daemon, "GET", f"/v1/sandboxes/{box}/endpoints/18080")[1]["headers"]["OPENSANDBOX-EGRESS-AUTH"]
    daemon.end()
    daemon.again()
    assert [r[1] for r in rules(daemon, box)[1]] == ["later.example", "good.example"]
    assert call(daemon, "GET", f"/{box}/18080/policy", **{"OPENSANDBOX-EGRESS-AUTH": token})[0] == 200


def test_a_policy_is_bounded_in_work_and_memory(daemon, box):
    """4,096 rules and hundreds of thousands of targets to remove, or a million ports: refused, and nobody waits for it."""
    path = f"/v1/sandboxes/{box}/networkpolicy"
    many = [{"action": "deny", "target": f"n{i}.example"} for i in range(4096)]
    assert call(daemon, "PUT", path, {"egress": many})[0] == 200
    begun = time.monotonic()
    assert call(daemon, "DELETE", path, ["a"] * 200000)[0] == 413
    assert time.monotonic() - begun < 10  # it was minutes
    ports = [{"action": "deny", "target": f"10.0.{i}.0/24", "ports": list(range(1, 257))} for i in range(33)]
    status, text = call(daemon, "PUT", path, {"egress": ports})
    assert status == 413 and "ports together" in str(text)
    assert call(daemon, "PUT", path, {"egress": ports[:20]})[0] == 200
    assert call(daemon, "PATCH", path, [r | {"target": r["target"].replace("10.0", "10.1")} for r in ports[:20]])[0] == 413


def test_a_snapshot_brings_its_policy(daemon):
    box = daemon.create(timeout=600, networkPolicy={"egress": [ALLOW]})
    snap = call(daemon, "POST", f"/v1/sandboxes/{box}/snapshots", {})[1]["id"]
    end = time.monotonic() + 30
    while call(daemon, "GET", f"/v1/snapshots/{snap}")[1]["status"]["state"] != "Ready":
        assert time.monotonic() < end
        time.sleep(0.05)
    made = {"snapshotId": snap, "resourceLimits": {"memory": "256Mi"}}
    status, copy = call(daemon, "POST", "/v1/sandboxes", made)
    assert status == 202 and rules(daemon, copy["id"]) == ("deny", [("allow", "good.example", None)])
    # its own token, and nobody without it changes what the snapshot brought
    tokens = [call(daemon, "GET", f"/v1/sandboxes/{b}/endpoints/18080")[1]["headers"]["OPENSANDBOX-EGRESS-AUTH"] for b in (box, copy["id"])]
    assert len(set(tokens)) == 2
    assert call(daemon, "PUT", f"/{copy['id']}/18080/policy", {"defaultAction": "allow"})[0] == 401
    assert rules(daemon, copy["id"])[0] == "deny"
    status, copy = call(daemon, "POST", "/v1/sandboxes", made | {"networkPolicy": {"defaultAction": "allow"}})
    assert status == 202 and rules(daemon, copy["id"]) == ("allow", [])


def test_forks_and_a_paused_sandbox_have_the_policy(daemon):
    """As it was changed last. Each child has a token of its own."""
    box = daemon.create(timeout=600, networkPolicy={"egress": [ALLOW]})
    changed = ("deny", [("deny", "later.example", None), ("allow", "good.example", None)])
    assert call(daemon, "PATCH", f"/v1/sandboxes/{box}/networkpolicy", [{"action": "deny", "target": "later.example"}])[0] == 200
    status, answer = call(daemon, "POST", f"/v1/sandboxes/{box}/fork", {"count": 2})
    assert status == 202, answer
    ids = [box, *(i["sandbox"]["id"] for i in answer["items"])]
    tokens = {call(daemon, "GET", f"/v1/sandboxes/{b}/endpoints/18080")[1]["headers"]["OPENSANDBOX-EGRESS-AUTH"] for b in ids}
    assert len(tokens) == 3
    for b in ids:
        assert rules(daemon, b) == changed and call(daemon, "PUT", f"/{b}/18080/policy", {"defaultAction": "allow"})[0] == 401
    # a child's policy is its own
    assert call(daemon, "PUT", f"/v1/sandboxes/{ids[1]}/networkpolicy", {"defaultAction": "allow"})[0] == 200
    assert [rules(daemon, b)[0] for b in ids] == ["deny", "allow", "deny"]
    assert call(daemon, "POST", f"/v1/sandboxes/{box}/pause")[0] == 202
    daemon.until(box, "Paused")
    assert rules(daemon, box) == changed
    assert call(daemon, "POST", f"/v1/sandboxes/{box}/resume")[0] == 202
    daemon.until(box, "Running")
    assert rules(daemon, box) == changed


def test_the_command_line(daemon):
    env = os.environ | {"OPEN_SANDBOX_DOMAIN": daemon.url.removeprefix("http://"), "OPEN_SANDBOX_API_KEY": daemon.headers.get("OPEN-SANDBOX-API-KEY", "")}

    def cli(*args):
        r = subprocess.run([MAYFLY, *args], env=env, capture_output=True, text=True, timeout=60)
        return r.returncode, r.stdout, r.stderr

    code, box, err = cli("create", "--allow", "a.example", "--deny", "10.0.0.0/8", "tiny")
    box = box.strip()
    assert code == 0, err
    assert rules(daemon, box) == ("deny", [("deny", "10.0.0.0/8", None), ("allow", "a.example", None)])
    assert cli("egress", "allow", box, "b.example", "*.c.example")[0] == 0
    assert cli("egress", "rm", box, "a.example")[0] == 0
    assert rules(daemon, box) == ("deny", [("allow", "b.example", None), ("allow", "*.c.example", None), ("deny", "10.0.0.0/8", None)])
    out = cli("egress", "show", box)[1]
    assert out.startswith("enforcing, default deny\n") and "b.example" in out
    assert json.loads(cli("egress", "show", "--json", box)[1])["seen"] == {"counters": {}, "denied": []}
    assert json.loads(cli("inspect", box)[1])["network"] == {"counters": {}, "denied": []}
    for empty in (("rm", ""), ("egress", "show", ""), ("exec", "", "--", "true")):
        code, _, err = cli(*empty)
        assert code in (1, 125) and "is empty" in err, (empty, err)
    code, _, err = cli("egress", "allow", box, "no such/rule")
    assert code == 1 and "no such/rule" in err
    assert cli("egress", "set", box, "open")[0] == 0 and rules(daemon, box) == ("allow", [])
    assert cli("egress", "set", box, "sideways")[0] == 2
    for args in (("--network", "half"), ("--network", "none", "--allow", "x.example")):
        assert cli("create", *args, "tiny")[0] == 1
    for args, want in ((("--network", "none"), ("deny", [])), (("--network", "open", "--deny", "x.example"), ("allow", [("deny", "x.example", None)]))):
        assert rules(daemon, cli("create", *args, "tiny")[1].strip()) == want


def test_the_operators_lists_are_reread_when_the_file_changes(tmp_path):
    """Without a signal. A file that is wrong changes nothing, and what else it says waits for SIGHUP."""
    d = HostDaemon(tmp_path)
    d.start({"network": {"deny": "a.evil.example"}, "runtime": {"templates": False}})

    def said(text, seconds=60):
        end = time.monotonic() + seconds
        while text not in d.log():
            assert time.monotonic() < end, d.log()[-2000:]
            time.sleep(0.2)

    try:
        d.config({"network": {"deny": "a.evil.example b.evil.example"}, "limits": {"max_sandboxes": 1}, "runtime": {"templates": False}})
        said("network.deny has changed in the file and holds now")
        assert "network.allow has changed" not in d.log()
        assert [d.create(), d.create()]  # the limit of one sandbox does not hold yet
        d.config({"network": {"max_connections": "many"}, "runtime": {"templates": False}})
        said("the lists of the network stay as they are")
        d.config({"network": {"allow": "10.1.2.3"}, "runtime": {"templates": False}})
        said("network.allow has changed in the file and holds now")
    finally:
        d.clean()


def test_limits_and_variables_of_one_sandbox(daemon):
    """Limits in extensions are checked when the sandbox is made. The reference's egress variables are taken, and do not reach the sandbox."""
    ok = {"mayfly.network.connections": "10", "mayfly.network.mbit": "5"}
    assert call(daemon, "GET", f"/v1/sandboxes/{daemon.create(timeout=600, extensions=ok)}")[0] == 200
    base = {"image": {"uri": "tiny"}, "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "entrypoint": ["x"], "timeout": 600}
    for bad in ("0", "-1", "1.5", "", "many", "01", "1" * 12):
        status, text = call(daemon, "POST", "/v1/sandboxes", base | {"extensions": {"mayfly.network.packets": bad}})
        assert status == 400 and "mayfly.network.packets" in text, text
    for env, status in (({"OPENSANDBOX_EGRESS_LOG_LEVEL": "debug", "OPENSANDBOX_EGRESS_DENY_WEBHOOK": "http://x.example/"}, 202), ({"OPENSANDBOX_EGRESS_RULES": "[]"}, 400),
                        ({"OPENSANDBOX_EGRESS_DENY_WEBHOOK": "https://x.example/"}, 400), ({"OPENSANDBOX_EGRESS_DENY_WEBHOOK": "http://x.example/\r\nA: b"}, 400),
                        ({"OPENSANDBOX_EGRESS_TOKEN": "x"}, 400), ({"OPENSANDBOX_EGRESS_": "x"}, 400)):
        for policy in ({}, {"networkPolicy": {"egress": [ALLOW]}}):
            assert call(daemon, "POST", "/v1/sandboxes", base | policy | {"env": env})[0] == status, env


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """A daemon that wants a key, as SDKs meet it."""
    d = HostDaemon(tmp_path_factory.mktemp("keyed"))
    d.start({"runtime": {"templates": False}, "server": {"api_key": "k" * 32}})
    d.headers = {"OPEN-SANDBOX-API-KEY": "k" * 32}
    yield d
    d.clean()


@pytest.mark.parametrize("proxy", [False, True], ids=["direct", "through the server"])
def test_the_python_sdk(keyed, proxy):
    from opensandbox import SandboxSync
    from opensandbox.config import ConnectionConfigSync
    from opensandbox.models.sandboxes import NetworkPolicy, NetworkRule

    config = ConnectionConfigSync(domain=keyed.url.removeprefix("http://"), api_key="k" * 32, use_server_proxy=proxy, request_timeout=datetime.timedelta(seconds=60))
    box = SandboxSync.create("tiny", connection_config=config, network_policy=NetworkPolicy(egress=[NetworkRule(action="allow", target="good.example")]),
                             timeout=datetime.timedelta(minutes=5))
    try:
        p = box.get_egress_policy()
        assert p.default_action == "deny" and [(r.action, r.target) for r in p.egress] == [("allow", "good.example")]
        box.patch_egress_rules([NetworkRule(action="deny", target="GOOD.example"), NetworkRule(action="allow", target="*.pypi.example")])
        assert [(r.action, r.target) for r in box.get_egress_policy().egress] == [("deny", "GOOD.example"), ("allow", "*.pypi.example")]
        box.delete_egress_rules(["good.example", "never.example"])
        assert [(r.action, r.target) for r in box.get_egress_policy().egress] == [("allow", "*.pypi.example")]
        # another client, by the id
        again = SandboxSync.connect(box.id, connection_config=config)
        again.patch_egress_rules([NetworkRule(action="allow", target="10.0.0.0/8")])
        assert rules(keyed, box.id) == ("deny", [("allow", "10.0.0.0/8", None), ("allow", "*.pypi.example", None)])
        again.close()
    finally:
        box.kill()
        box.close()


def test_osb(keyed):
    box = keyed.create(timeout=600, networkPolicy={"egress": [ALLOW]})
    env = os.environ | {"OPEN_SANDBOX_DOMAIN": keyed.url.removeprefix("http://"), "OPEN_SANDBOX_API_KEY": "k" * 32}

    def osb(*args):
        r = subprocess.run([pathlib.Path(sys.executable).parent / "osb", "egress", *args, "-o", "json"], env=env, capture_output=True, text=True, timeout=120)
        assert r.returncode == 0, r.stdout + r.stderr
        return r.stdout

    assert "good.example" in osb("get", box)
    osb("patch", box, "--rule", "deny=good.example", "--rule", "allow=*.osb.example")
    assert rules(keyed, box) == ("deny", [("deny", "good.example", None), ("allow", "*.osb.example", None)])
    assert "*.osb.example" in osb("get", box)


JAVASCRIPT = """
import { ConnectionConfig, Sandbox } from "@alibaba-group/opensandbox";
const [domain, apiKey, proxy] = process.argv.slice(2);
const connectionConfig = new ConnectionConfig({ domain, apiKey, useServerProxy: proxy === "proxy", requestTimeoutSeconds: 60 });
const box = await Sandbox.create({ connectionConfig, image: "tiny", timeoutSeconds: 300, networkPolicy: { egress: [{ action: "allow", target: "good.example" }] } });
const say = async () => { const p = await box.getEgressPolicy(); console.log(p.defaultAction, JSON.stringify(p.egress.map((r) => r.action + " " + r.target))); };
try {
  await say();
  await box.patchEgressRules([{ action: "deny", target: "GOOD.example" }, { action: "allow", target: "*.npm.example" }]);
  await say();
  await box.deleteEgressRules(["good.example", "never.example"]);
  await say();
} finally {
  await box.kill();
  await box.close?.();
}
"""


@pytest.mark.parametrize("way", ["direct", "proxy"])
def test_the_javascript_sdk(keyed, tmp_path, way):
    modules = pathlib.Path(sys.executable).parent.parent / "node" / "node_modules"
    if not shutil.which("node") or not modules.exists():
        pytest.skip("node or the JavaScript SDK is missing: make deps")
    (tmp_path / "node_modules").symlink_to(modules.resolve())
    (tmp_path / "policy.mjs").write_text(JAVASCRIPT)
    r = subprocess.run(["node", "policy.mjs", keyed.url.removeprefix("http://"), "k" * 32, way], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert r.stdout.splitlines() == ['deny ["allow good.example"]', 'deny ["deny GOOD.example","allow *.npm.example"]', 'deny ["allow *.npm.example"]'], r.stdout + r.stderr


JAVA = r"""
import com.alibaba.opensandbox.sandbox.Sandbox;
import com.alibaba.opensandbox.sandbox.config.ConnectionConfig;
import okhttp3.*;

public class Policy {
    static OkHttpClient http;

    static String call(String method, String url, String body) throws Exception {
        RequestBody b = body == null ? null : RequestBody.create(body, MediaType.get("application/json"));
        try (Response r = http.newCall(new Request.Builder().url(url).method(method, b).build()).execute()) {
            return r.code() + " " + r.body().string();
        }
    }

    public static void main(String[] args) throws Exception {
        ConnectionConfig config = ConnectionConfig.builder().domain(args[0]).apiKey(args[1]).build();
        Sandbox box = Sandbox.builder().connectionConfig(config).image("tiny").entrypoint(java.util.List.of("tail", "-f", "/dev/null"))
            .resource(java.util.Map.of("memory", "256Mi")).build();
        http = box.httpClientProvider().getAuthenticatedClient();
        String id = box.getId().toString(), server = "http://" + args[0] + "/v1/sandboxes/" + id;
        for (String policy : new String[]{"http://" + box.getEndpoint(18080).getEndpoint() + "/policy", server + "/proxy/18080/policy", server + "/networkpolicy"}) {
            System.out.println(call("PUT", policy, "{\"egress\":[{\"action\":\"allow\",\"target\":\"good.example\"}]}"));
            System.out.println(call("PATCH", policy, "[{\"action\":\"allow\",\"target\":\"*.maven.example\"}]"));
            System.out.println(call("DELETE", policy, "[\"good.example\"]"));
            System.out.println(call("GET", policy, null));
        }
        box.kill();
        System.exit(0);
    }
}
"""


def test_the_java_sdk(keyed, tmp_path):
    """The newest package has no calls for policies: a program makes them with the SDK's own HTTP client, at the endpoint that the SDK says."""
    jars = pathlib.Path(sys.executable).parent.parent / "java"
    if not shutil.which("java") or not jars.exists():
        pytest.skip("java or the Java SDK is missing: make deps")
    (tmp_path / "Policy.java").write_text(JAVA)
    r = subprocess.run(["java", "-cp", f"{jars}/*", tmp_path / "Policy.java", keyed.url.removeprefix("http://"), "k" * 32], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stdout + r.stderr
    lines = [line.split(" ", 1) for line in r.stdout.splitlines() if line.startswith(("2", "4", "5"))]
    assert [code for code, _ in lines] == ["200"] * 12, r.stdout
    for i in range(3):
        said = [json.loads(text) for _, text in lines[4 * i:4 * i + 4]]
        assert [a["mode"] for a in said] == ["enforcing"] * 4
        assert said[3]["policy"] == {"defaultAction": "deny", "egress": [{"action": "allow", "target": "*.maven.example"}]}
