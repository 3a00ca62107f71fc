// SPDX-License-Identifier: Apache-2.0
// Two sandboxes share a claim, with the official JavaScript SDK; the claim is deleted with the last of them.
// With MAYFLY_HOST_FOLDER also a folder of the host.
//
//   npm install @alibaba-group/opensandbox
//   eval "$(mayfly env)" && node docs/examples/volumes.mjs
import { ConnectionConfig, Sandbox } from "@alibaba-group/opensandbox";

const pvc = { claimName: `javascript-${process.pid}`, deleteOnSandboxTermination: true };
const create = (...volumes) =>
  Sandbox.create({
    connectionConfig: new ConnectionConfig({ requestTimeoutSeconds: 300 }),
    image: process.env.MAYFLY_IMAGE ?? "base",
    volumes,
  });
const box = (more = {}) => create({ name: "data", pvc, mountPath: "/data", ...more });

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

// Read-write as a whole, and read-only from a folder in it.
const folder = process.env.MAYFLY_HOST_FOLDER;
if (folder) {
  const host = { path: folder };
  const b = await create({ name: "all", host, mountPath: "/all" }, { name: "train", host, mountPath: "/train", subPath: "datasets/train", readOnly: true });
  try {
    const run = await b.commands.run("cat /all/marker.txt /train/marker.txt; ls /train");
    console.log("host:", run.logs.stdout.map((m) => m.text).join(" ").trim().replace(/\s+/g, " "));
    await b.files.writeFiles([{ path: "/all/written", data: "by javascript" }]);
    const refused = await b.commands.run("echo no >/train/new");
    console.log("host refused:", refused.error != null && refused.logs.stderr[0].text.includes("Read-only"));
  } finally {
    await b.kill();
    await b.close();
  }
}
