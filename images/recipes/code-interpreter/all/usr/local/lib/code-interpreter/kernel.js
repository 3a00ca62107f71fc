// SPDX-License-Identifier: Apache-2.0
//
// kernel.js CONNECTION_FILE javascript|typescript: the kernel of tslab, with five differences. What ends a cell is its error (name, text, stack) and no text on
// standard error. The cell after one that failed is run: tslab refuses every cell for 200 ms, in which a client sends the next one. And a file that changes in
// the working directory does not end the kernel's work. An interrupt ends every loop (interrupt.js). A kernel that a template holds seeds its random generators
// again, before the first cell that runs in another machine.
"use strict";
const fs = require("fs");
const util = require("util");
const { Worker } = require("worker_threads");
const ts = require("@tslab/typescript-for-tslab");
const executor = require("tslab/dist/executor.js");
const jupyter = require("tslab/dist/jupyter.js");
const { startKernel } = require("tslab/dist/main.js");
const { emptyPool } = require("./reseed.js");

// The compiler watches folders, and asks for a second timer when a file in one changes. tslab knows one timer and fails at the next cell. The second timer's work
// is also done by the first one's, when the next cell is compiled. package-lock.json pins the version whose function is named here.
const NEVER = {};
const replaced = {
	setTimeout: (original) => (callback, ...rest) => (callback.name === "invalidateResolutionsOfFailedLookup" ? NEVER : original(callback, ...rest)),
	clearTimeout: (original) => (timer) => (timer === NEVER ? undefined : original(timer)),
};
for (const [name, wrap] of Object.entries(replaced)) {
	const own = ts.sys[name];
	// tslab sets its own on an object that inherits from this one
	Object.defineProperty(ts.sys, name, {
		get: () => own,
		set(f) {
			Object.defineProperty(this, name, { value: wrap(f) });
		},
	});
}

const createExecutor = executor.createExecutor;
const Handler = jupyter.JupyterHandlerImpl;
let said = []; // what tslab would have written to standard error in this cell

executor.createExecutor = (dir, converters, out) => createExecutor(dir, converters, { log: out.log, error: (...args) => said.push(args) });

/** The stack without what is ours. */
function stackOf(e) {
	const lines = (typeof e.stack === "string" ? e.stack : `${e.name}: ${e.message}`).split("\n");
	const end = lines.findIndex((l) => /^ +at .*(node:vm:|\/tslab\/dist\/|sigintHandlersWrap)/.test(l));
	return end < 0 ? lines : lines.slice(0, end);
}

/** console.error() of tslab has one argument that was thrown, or a format and the place and text of a diagnostic. */
function failureOf(calls) {
	const thrown = calls.length === 1 && calls[0].length === 1;
	const e = thrown ? calls[0][0] : undefined;
	if (thrown && util.types.isNativeError(e)) {
		if (e.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED" || e.message === "Interrupted asynchronously")
			return { ename: "InterruptedError", evalue: "the cell was interrupted", traceback: ["InterruptedError: the cell was interrupted"] };
		return { ename: String(e.name || "Error"), evalue: String(e.message || e), traceback: stackOf(e) };
	}
	if (thrown) {
		const text = typeof e === "string" ? e : util.inspect(e);
		return { ename: "Error", evalue: text, traceback: [`thrown: ${text}`] };
	}
	const lines = calls.map((c) => util.format(...c));
	return { ename: "CompileError", evalue: lines[0] || "the cell failed", traceback: lines.length ? lines : ["the cell failed"] };
}

// ---- random numbers

const PREPARE = "// code-interpreter: prepare"; // what `warm` sends: it compiles something, and is not counted as a cell
const MACHINE_ID = process.env.CODE_INTERPRETER_MACHINE_ID || "/etc/machine-id";
let pollOpenssl; // new entropy for the primary generator of this process, and so for those of all its threads

function machine() {
	try {
		return fs.readFileSync(MACHINE_ID, "utf8").trim();
	} catch {
		return "";
	}
}

function reseed() {
	emptyPool();
	pollOpenssl = pollOpenssl || require(`@koromix/koffi-linux-${process.arch}`).load(null).func("int RAND_poll()");
	if (pollOpenssl() !== 1) throw new Error("RAND_poll() failed");
}

let here = machine();
/** Before a cell. No cell may run with numbers that another sandbox draws as well. */
function seedForThisMachine() {
	const now = machine();
	if (now === here) return;
	try {
		if (now === "") throw new Error(`cannot read ${MACHINE_ID}`);
		reseed();
		here = now;
	} catch (e) {
		fs.writeSync(2, `code-interpreter: cannot seed the random generators again: ${e}\n`);
		process.exit(70);
	}
}

// ---- cells

const ANSWER_MS = 300; // for tslab's own handler
const state = new Int32Array(new SharedArrayBuffer(4)); // the number of the cell that runs, or 0
let cells = 0;
let stop = () => {}; // ends the cell that runs now

jupyter.JupyterHandlerImpl = class extends Handler {
	/** The compiler and all that a cell needs are in memory then. */
	async prepare() {
		reseed();
		if (!(await this.executor.execute("void 0"))) throw new Error("a cell cannot be compiled");
		return { status: "ok", execution_count: this.execCount, payload: [], user_expressions: {} };
	}

	async handleExecute(req, writeStream, writeDisplayData) {
		if (req.code === PREPARE) return this.prepare();
		seedForThisMachine();
		let ok = false;
		const stopped = new Promise((_, reject) => {
			stop = () => reject(new Error("Interrupted asynchronously"));
		});
		const task = async () => {
			try {
				const count = await this.handleExecuteImpl(req, writeStream, writeDisplayData);
				ok = true;
				return count;
			} catch (e) {
				if (e && typeof e.count === "number") return e; // the cell failed, and was counted
				throw e;
			}
		};
		said = [];
		Atomics.store(state, 0, ++cells);
		try {
			const { count } = await Promise.race([this.execQueue.add(task), stopped]);
			if (!ok) return { status: "error", execution_count: count, ...failureOf(said) };
			for (const args of said) console.error(...args); // warnings
			return { status: "ok", execution_count: count, payload: [], user_expressions: {} };
		} catch (e) {
			this.execQueue.reset();
			return { status: "error", execution_count: this.execCount, ...failureOf([[e]]) };
		} finally {
			Atomics.store(state, 0, 0);
		}
	}
};

startKernel({ configPath: process.argv[2], enableFindLocal: false, jsKernel: process.argv[3] === "javascript" });

const interrupts = new Worker(require.resolve("./interrupt.js"), { workerData: state });
interrupts.unref();
// Between the end of a cell's first piece of code and the moment at which tslab listens, nobody but this one hears of an interrupt.
process.on("SIGINT", () => {
	const cell = Atomics.load(state, 0);
	setTimeout(() => cell && cell === Atomics.load(state, 0) && stop(), ANSWER_MS);
});
// what was executed has been ended, and nothing of it can say so
interrupts.on("message", (cell) => cell === Atomics.load(state, 0) && stop());
