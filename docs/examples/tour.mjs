// SPDX-License-Identifier: Apache-2.0
// Everything a sandbox does, once, with the official JavaScript SDK; each step checks what came back.
//
//   npm install @alibaba-group/opensandbox
//   eval "$(mayfly env)" && node docs/examples/tour.mjs
import assert from "node:assert/strict";
import { ConnectionConfig, Sandbox, SandboxManager } from "@alibaba-group/opensandbox";

const config = (more = {}) => new ConnectionConfig({ requestTimeoutSeconds: 120, ...more }); // OPEN_SANDBOX_DOMAIN and OPEN_SANDBOX_API_KEY
const tag = `javascript-${process.pid}`;
const pause = (ms) => new Promise((r) => setTimeout(r, ms));
// this generation of the SDK gets each line without its ending
const text = (run) => run.logs.stdout.map((m) => m.text).join("\n");

function ok(holds, what) {
  assert(holds, what);
  console.log("ok:", what);
}

async function refused(call, status, what) {
  try {
    await call();
  } catch (e) {
    ok(e.statusCode === status && e.requestId, what);
    return;
  }
  assert.fail(`${what}: nothing was refused`);
}

async function commands(box) {
  const seen = [];
  let r = await box.commands.run("echo out; echo err >&2; exit 3", {}, { onStdout: (m) => seen.push(m.text), onStderr: (m) => seen.push(m.text) });
  ok(seen.sort().join() === "err,out" && r.exitCode === 3, "a failing command, its output handed over as it comes");
  r = await box.commands.run("echo $A; pwd; id -u", { envs: { A: "b" }, workingDirectory: "/usr", uid: 65534 });
  ok(text(r) === "b\n/usr\n65534" && r.exitCode === 0, "environment, directory and user of a command");
  r = await box.commands.run("echo begun; sleep 100", { timeoutSeconds: 1 });
  ok(r.error?.value === "-1" && text(r) === "begun", "a timeout ends it");
  const types = [];
  for await (const e of box.commands.runStream("echo streamed")) types.push(e.type);
  ok(types[0] === "init" && types.includes("stdout") && types.at(-1) === "execution_complete", "events one by one");

  const bg = await box.commands.run("echo working; sleep 100", { background: true });
  ok((await box.commands.getCommandStatus(bg.id)).running, "a command in the background");
  let logs;
  while (!(logs = await box.commands.getBackgroundCommandLogs(bg.id)).content.includes("working")) await pause(50);
  ok((await box.commands.getBackgroundCommandLogs(bg.id, logs.cursor)).content === "", "its logs, and where to go on reading");
  await box.commands.interrupt(bg.id);
  let status;
  while ((status = await box.commands.getCommandStatus(bg.id)).running) await pause(50);
  ok(status.exitCode !== 0, "interrupted");

  // a command in the foreground is interrupted from elsewhere
  let id, interrupt;
  const begun = new Promise((r) => (interrupt = r));
  const end = box.commands.run("echo begun; sleep 100", {}, { onInit: (i) => (id = i.id), onStdout: () => interrupt() });
  await begun;
  await box.commands.interrupt(id);
  const run = await end;
  ok(run.error && !run.complete, "a command in the foreground, interrupted from elsewhere");
}

async function sessions(box) {
  const s = await box.commands.createSession({ workingDirectory: "/tmp" });
  await box.commands.runInSession(s, "cd /usr; export KEPT=yes");
  ok(text(await box.commands.runInSession(s, "pwd; echo $KEPT")) === "/usr\nyes", "a session keeps directory and environment");
  ok((await box.commands.runInSession(s, "exit 7")).exitCode === 7, "and survives an exit");
  await box.commands.deleteSession(s);
  await refused(() => box.commands.runInSession(s, "pwd"), 500, "a deleted session is gone");
}

async function files(box) {
  const f = box.files, bytes = Uint8Array.from({ length: 256 }, (_, i) => i);
  await f.createDirectories([{ path: "/tmp/t", mode: 755 }]);
  await f.writeFiles([{ path: "/tmp/t/a.txt", data: "one two one\n", mode: 644 }, { path: "/tmp/t/sub/b.bin", data: bytes, mode: 600 }]);
  ok((await f.readFile("/tmp/t/a.txt")) === "one two one\n" && Buffer.compare(await f.readBytes("/tmp/t/sub/b.bin"), bytes) === 0, "files are written and read");
  const parts = [];
  for await (const p of f.readBytesStream("/tmp/t/sub/b.bin")) parts.push(p);
  ok((await f.readFile("/tmp/t/a.txt", { range: "bytes=4-6" })) === "two" && Buffer.concat(parts).length === 256, "in parts, and as a stream");
  ok((await f.replaceContentsDetailed([{ path: "/tmp/t/a.txt", oldContent: "one", newContent: "1" }]))[0].replacedCount === 2, "replaced");
  await f.moveFiles([{ src: "/tmp/t/a.txt", dest: "/tmp/t/new/c.txt" }]);
  await f.setPermissions([{ path: "/tmp/t/new/c.txt", mode: 640, owner: "nobody", group: "nogroup" }]);
  const i = (await f.getFileInfo(["/tmp/t/new/c.txt"]))["/tmp/t/new/c.txt"];
  ok(i.mode === 640 && i.owner === "nobody" && i.size === 8, "moved, with another owner");
  ok((await f.search({ path: "/tmp/t", pattern: "*.txt" })).map((e) => e.path).join() === "/tmp/t/new/c.txt", "found");
  ok((await f.listDirectory({ path: "/tmp/t", depth: 2 })).length === 4, "listed");
  await f.deleteFiles(["/tmp/t/new/c.txt"]);
  await refused(() => f.readFile("/tmp/t/new/c.txt"), 404, "a deleted file is gone");
  await f.deleteDirectories(["/tmp/t"]);
}

async function endpoints(box) {
  await box.files.writeFiles([{ path: "/srv/index.html", data: "<h1>a sandbox</h1>\n" }]);
  await box.commands.run("python3 -m http.server 8000 --directory /srv", { background: true });
  await box.commands.run("until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do sleep 0.1; done");
  const page = async (b) => (await fetch((await b.getEndpointUrl(8000)) + "/index.html")).text();
  ok((await page(box)).includes("a sandbox"), "a web server inside");
  const proxied = await Sandbox.connect({ sandboxId: box.id, connectionConfig: config({ useServerProxy: true }) });
  ok((await proxied.getEndpointUrl(8000)).includes("/proxy/8000") && (await page(proxied)).includes("a sandbox"), "the same through the server's proxy");
  ok(text(await proxied.commands.run("echo through")) === "through", "commands, too");
  await proxied.close();
}

// Pause and resume, and a copy of the machine as it was: its files, and what runs in it.
async function points(box) {
  const looks = (b) => b.commands.run("kill -0 $(cat /root/pid) && cat /root/kept");
  await box.commands.run("echo kept > /root/kept; (i=0; while :; do i=$((i+1)); echo $i > /root/count; sleep 0.1; done) >/dev/null 2>&1 & echo $! > /root/pid");
  await box.pause();
  const resumed = await box.resume({ readyTimeoutSeconds: 120 });
  ok(text(await looks(resumed)) === "kept", "paused, and its processes with it");  // it shares the connections of box
  await resumed.pause();
  const again = await Sandbox.resume({ sandboxId: box.id, connectionConfig: config(), readyTimeoutSeconds: 120 });
  ok(text(await looks(again)) === "kept", "the same by its id");
  await again.close();
  const m = SandboxManager.create({ connectionConfig: config() });
  let point = await m.createSnapshot(box.id, { name: tag });
  while ((point = await m.getSnapshot(point.id)).status.state === "Creating") await pause(100);
  ok(point.status.state === "Ready" && point.sandboxId === box.id, "a snapshot, while it ran");
  await box.commands.run("echo other > /root/kept");
  ok((await m.listSnapshots({ sandboxId: box.id, name: tag })).items.map((s) => s.id).join() === point.id, "the snapshot is listed");
  const copy = await Sandbox.create({ connectionConfig: config(), snapshotId: point.id, timeoutSeconds: 300, readyTimeoutSeconds: 120, resource: { cpu: "1", memory: "512Mi" } });
  try {
    ok(text(await looks(copy)) === "kept" && text(await looks(box)) === "other", "a copy goes on from there");
  } finally {
    await copy.kill();
    await copy.close();
  }
  await m.deleteSnapshot(point.id);
  await refused(() => m.getSnapshot(point.id), 404, "the snapshot is gone");
  await m.close();
}

async function manager(box) {
  const m = SandboxManager.create({ connectionConfig: config() });
  const found = await m.listSandboxInfos({ states: ["Running"], metadata: { tour: tag }, pageSize: 5 });
  ok(found.items.map((i) => i.id).join() === box.id && found.pagination.totalItems === 1, "listed by state and metadata");
  ok((await m.patchSandboxMetadata(box.id, { tour: "on", more: null })).metadata.tour === "on", "metadata changed");
  const before = (await m.getSandboxInfo(box.id)).expiresAt;
  await m.renewSandbox(box.id, 7200);
  ok((await m.getSandboxInfo(box.id)).expiresAt > before, "renewed");
  await m.pauseSandbox(box.id);
  ok((await m.getSandboxInfo(box.id)).status.state === "Paused", "paused");
  await m.resumeSandbox(box.id);
  ok((await box.commands.run("cat /srv/index.html")).exitCode === 0, "resumed as it was");
  await m.killSandbox(box.id);
  await refused(() => m.getSandboxInfo(box.id), 404, "killed");
  await m.close();
}

const box = await Sandbox.create({
  connectionConfig: config(),
  image: process.env.MAYFLY_IMAGE ?? "python",
  timeoutSeconds: 600,
  readyTimeoutSeconds: 120,
  resource: { cpu: "1", memory: "512Mi" },
  metadata: { tour: tag, more: "x" },
  env: { FROM_CREATE: "yes" },
});
try {
  ok((await box.isHealthy()) && text(await box.commands.run("echo $FROM_CREATE")) === "yes", "created, with its environment");
  await commands(box);
  await sessions(box);
  await files(box);
  const m = await box.getMetrics();
  ok(m.cpuCount === 1 && m.memoryUsedMiB > 0 && m.memoryUsedMiB <= m.memoryTotalMiB, "metrics");
  const before = (await box.getInfo()).expiresAt;
  await box.renew(3600);
  ok((await box.getInfo()).expiresAt > before, "renewed");
  await endpoints(box);
  await points(box);
  await manager(box);
} catch (e) {
  await box.kill();
  throw e;
} finally {
  await box.close();
}
