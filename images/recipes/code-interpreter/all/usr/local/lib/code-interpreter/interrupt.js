// SPDX-License-Identifier: Apache-2.0
//
// interrupt.js: a thread beside the kernel. A loop that runs after an `await` blocks the kernel's own handler of SIGINT. So this thread hears of the signal by a
// child in the same process group, and ends what the kernel executes if its handler has not answered soon.
"use strict";
const { spawn } = require("child_process");
const { Session } = require("inspector");
const { parentPort, workerData: state } = require("worker_threads");
const ANSWER_MS = 300;
// `state` is what the kernel says: the number of the cell that runs, or 0.

// Does the kernel execute code of a cell right now? The answer is made on its thread, in the middle of the loop. A kernel that only was slow has its own handler, and
// one that compiles must not be ended: it could not compile again.
const IN_CELL = `(() => {
	const limit = Error.stackTraceLimit;
	Error.stackTraceLimit = Infinity;
	const stack = new Error().stack;
	Error.stackTraceLimit = limit;
	return stack.includes("evalmachine.<anonymous>") && !stack.includes("typescript-for-tslab");
})()`;

function end(cell) {
	if (Atomics.load(state, 0) !== cell) return; // the cell has ended: the kernel heard of the signal
	const session = new Session();
	session.connectToMainThread();
	session.post("Runtime.evaluate", { expression: IN_CELL, returnByValue: true }, (e, answer) => {
		if (e || answer.result.value !== true || Atomics.load(state, 0) !== cell) {
			session.disconnect();
			return;
		}
		session.post("Runtime.terminateExecution", () => {
			session.disconnect();
			parentPort.postMessage(cell);
		});
	});
}

/** The child ends with the signal, or with the kernel, whose end it sees on its standard input. */
function listen() {
	spawn("cat", [], { stdio: ["pipe", "ignore", "ignore"] }).on("exit", (code, signal) => {
		if (signal !== "SIGINT") return;
		setTimeout(end, ANSWER_MS, Atomics.load(state, 0));
		listen();
	});
}

listen();
