// SPDX-License-Identifier: Apache-2.0
// A sandbox with the official JavaScript SDK: commands, files, events as they come.
//
//   npm install @alibaba-group/opensandbox
//   eval "$(mayfly env)" && node docs/examples/quickstart.mjs
import { ConnectionConfig, Sandbox } from "@alibaba-group/opensandbox";

const sandbox = await Sandbox.create({
  connectionConfig: new ConnectionConfig({}), // OPEN_SANDBOX_DOMAIN and OPEN_SANDBOX_API_KEY
  image: process.env.MAYFLY_IMAGE ?? "base",
  timeoutSeconds: 600,
  resource: { cpu: "1", memory: "512Mi" },
});
try {
  // events are handed over as the command prints
  const run = await sandbox.commands.run("echo one; echo two >&2; exit 3", {}, {
    onStdout: (m) => console.log("stdout:", m.text.trim()),
    onStderr: (m) => console.log("stderr:", m.text.trim()),
  });
  console.log("exit code:", run.exitCode ?? run.error?.value);

  await sandbox.files.writeFiles([{ path: "/tmp/greeting.txt", data: "hello from a file\n", mode: 644 }]);
  console.log((await sandbox.files.readFile("/tmp/greeting.txt")).trim());

  const m = await sandbox.getMetrics();
  console.log(`${m.cpuCount} CPU, ${Math.round(m.memoryTotalMiB)} MiB`);
} finally {
  await sandbox.kill();
  await sandbox.close();
}
