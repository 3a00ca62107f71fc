// SPDX-License-Identifier: Apache-2.0
// Fork a running sandbox with the official JavaScript SDK and one plain request. Every child goes on with the memory, the processes and
// the disk of the source.
//
//   npm install @alibaba-group/opensandbox
//   eval "$(mayfly env)" && node docs/examples/fork.mjs
import { ConnectionConfig, Sandbox } from "@alibaba-group/opensandbox";

// Items of the answer: {sandbox} or {error}. options: env, metadata, timeout (seconds), pauseSource.
async function fork(sandboxId, count, options = {}) {
  const answer = await fetch(`http://${process.env.OPEN_SANDBOX_DOMAIN}/v1/sandboxes/${sandboxId}/fork`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "OPEN-SANDBOX-API-KEY": process.env.OPEN_SANDBOX_API_KEY ?? "" },
    body: JSON.stringify({ count, ...options }),
  });
  const body = await answer.json();
  if (!answer.ok) throw new Error(`${answer.status} ${body.code}: ${body.message}`);
  return body.items;
}

const connectionConfig = new ConnectionConfig({}); // OPEN_SANDBOX_DOMAIN and OPEN_SANDBOX_API_KEY
const source = await Sandbox.create({
  connectionConfig,
  image: process.env.MAYFLY_IMAGE ?? "base",
  timeoutSeconds: 600,
  resource: { cpu: "1", memory: "256Mi" },
});
try {
  await source.files.writeFiles([{ path: "/tmp/state", data: "prepared once\n", mode: 644 }]);
  const items = await fork(source.id, 2, { env: { ROLE: "child" }, timeout: 600 });
  console.log(`${items.filter((i) => i.sandbox).length} children`);
  for (const { sandbox } of items) {
    const child = await Sandbox.connect({ connectionConfig, sandboxId: sandbox.id });
    const run = await child.commands.run("echo $ROLE: $(cat /tmp/state)");
    console.log(run.logs.stdout.map((m) => m.text.trim()).join(""));
    await child.kill();
    await child.close();
  }
} finally {
  await source.kill();
  await source.close();
}
