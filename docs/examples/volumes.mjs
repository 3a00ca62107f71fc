// SPDX-License-Identifier: Apache-2.0
// Two sandboxes share a claim, with the official JavaScript SDK; the claim goes with the last of them.
//
//   npm install @alibaba-group/opensandbox
//   eval "$(mayfly env)" && node docs/examples/volumes.mjs
import { ConnectionConfig, Sandbox } from "@alibaba-group/opensandbox";

const pvc = { claimName: `javascript-${process.pid}`, deleteOnSandboxTermination: true };
const box = (more = {}) =>
  Sandbox.create({
    connectionConfig: new ConnectionConfig({ requestTimeoutSeconds: 300 }),
    image: process.env.MAYFLY_IMAGE ?? "base",
    volumes: [{ name: "data", pvc, mountPath: "/data", ...more }],
  });

const writer = await box();
const reader = await box({ readOnly: true, subPath: "out" });
try {
  await writer.files.writeFiles([{ path: "/data/out/result", data: "42\n" }]);
  const run = await reader.commands.run("sleep 1; cat /data/result; echo no >/data/result");
  console.log("read:", run.logs.stdout[0].text.trim());
  console.log("refused:", run.logs.stderr[0].text.includes("Read-only"));
} finally {
  for (const b of [reader, writer]) {
    await b.kill();
    await b.close();
  }
}
