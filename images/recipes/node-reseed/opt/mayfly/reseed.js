// SPDX-License-Identifier: Apache-2.0
// Loaded by every node of this image (NODE_OPTIONS). Sandboxes that are made from one template begin with the same memory, and so with the same state of
// V8's Math.random and of OpenSSL's generator. Here both stand no longer between a program and the kernel's generator, which each restore reseeds:
//   crypto   randomBytes, randomFill, randomInt, randomUUID, getRandomValues read the kernel's, every time: there is no state to share
//   Math     numbers come from a pool of the kernel's. A restore empties it: the agent writes a new generation, this process empties its pool and says
//            so in a file of its own, and the restore hook (/opt/mayfly/reseed) waits for that before the sandbox is Running
// What OpenSSL draws by itself (keys, TLS) does not come through here: docs/security.md.
'use strict';
const fs = require('fs');
const crypto = require('crypto');

const generation = process.env.MAYFLY_GENERATION_FILE || '/run/mayfly/generation';
const folder = process.env.MAYFLY_RESEED_DIR || '/dev/shm/mayfly-reseed';
const urandom = fs.openSync('/dev/urandom', 'r');

// ---- crypto

function bytesInto(view) {
	for (let at = 0; at < view.byteLength;)
		at += fs.readSync(urandom, view, at, Math.min(view.byteLength - at, 1 << 20), null);
	return view;
}
function viewOf(buf, offset = 0, size = undefined) {
	const all = buf instanceof ArrayBuffer || buf instanceof SharedArrayBuffer ? new Uint8Array(buf) : new Uint8Array(buf.buffer, buf.byteOffset, buf.byteLength);
	const unit = buf.BYTES_PER_ELEMENT || 1;
	return all.subarray(offset * unit, size === undefined ? undefined : (offset + size) * unit);
}
const old = { randomBytes: crypto.randomBytes, randomFillSync: crypto.randomFillSync, randomFill: crypto.randomFill, randomInt: crypto.randomInt, randomUUID: crypto.randomUUID };

function randomBytes(size, callback) {
	// the original checks the arguments, for the price of no bytes
	if (!Number.isInteger(size) || size < 0 || size > 2 ** 31 - 1 || (callback !== undefined && typeof callback !== 'function'))
		return old.randomBytes(size, callback);
	const out = bytesInto(Buffer.alloc(size));
	if (!callback)
		return out;
	process.nextTick(callback, null, out);
	return undefined;
}
function randomFillSync(buf, offset, size) {
	if (buf && buf.byteLength !== undefined) {
		old.randomFillSync(buf, offset, size);
		bytesInto(viewOf(buf, offset, size));
		return buf;
	}
	return old.randomFillSync(buf, offset, size);
}
function randomFill(buf, offset, size, callback) {
	const args = [offset, size, callback].filter((a) => a !== undefined), done = args.pop();
	if (typeof done !== 'function')
		return old.randomFill(buf, offset, size, callback);
	randomFillSync(buf, ...args);
	process.nextTick(done, null, buf);
	return undefined;
}
function below(range) { // without the bias of a plain remainder
	const limit = 2 ** 48 - 2 ** 48 % range, b = Buffer.alloc(6);
	for (;;) {
		const v = bytesInto(b).readUIntBE(0, 6);
		if (v < limit)
			return v % range;
	}
}
function randomInt(min, max, callback) {
	if (max === undefined || typeof max === 'function')
		[min, max, callback] = [0, min, max];
	if (!Number.isSafeInteger(min) || !Number.isSafeInteger(max) || max <= min || max - min >= 2 ** 48 ||
		(callback !== undefined && typeof callback !== 'function'))
		return old.randomInt(min, max, callback);
	const v = min + below(max - min);
	if (!callback)
		return v;
	process.nextTick(callback, null, v);
	return undefined;
}
function randomUUID(options) {
	old.randomUUID(options); // checks
	const b = bytesInto(Buffer.alloc(16));
	b[6] = b[6] & 0x0f | 0x40;
	b[8] = b[8] & 0x3f | 0x80;
	return b.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}
Object.assign(crypto, { randomBytes, randomFillSync, randomFill, randomInt, randomUUID, rng: randomBytes, pseudoRandomBytes: randomBytes });
if (crypto.webcrypto) {
	const proto = Object.getPrototypeOf(crypto.webcrypto), { getRandomValues } = proto;
	proto.getRandomValues = function (array) {
		getRandomValues.call(this, array); // checks
		bytesInto(viewOf(array));
		return array;
	};
	proto.randomUUID = function () {
		return randomUUID();
	};
	if (Object.getOwnPropertyDescriptor(crypto, 'getRandomValues')?.configurable)
		Object.defineProperty(crypto, 'getRandomValues', { configurable: true, enumerable: true, value: (a) => crypto.webcrypto.getRandomValues(a) });
}
require('module').syncBuiltinESMExports?.();

// ---- Math.random

const pool = new Uint32Array(1024);
let left = 0;
let most = 2; // one number: no state. More only in a thread that hears of restores
Math.random = function random() {
	if (left === 0) {
		bytesInto(new Uint8Array(pool.buffer, 0, most * 4));
		left = most;
	}
	left -= 2;
	return ((pool[left] >>> 5) * 2 ** 26 + (pool[left + 1] >>> 6)) / 2 ** 53;
};
function emptyPool() {
	left = 0;
	pool.fill(0);
}
module.exports = { emptyPool }; // for a program that checks the generation itself (docs/images.md)

// ---- a restore

const mine = `${folder}/${process.pid}`;
let seen = '';
function read() {
	try {
		return fs.readFileSync(generation, 'utf8').trim();
	} catch {
		return '';
	}
}
function reseeded() {
	const now = read();
	if (now === '' || now === seen) // it is being written
		return;
	seen = now;
	emptyPool();
	fs.writeFileSync(mine, now);
}
function register() {
	if (!fs.existsSync(folder))
		fs.mkdirSync(folder);
	if (fs.statSync(folder).uid === process.getuid())
		fs.chmodSync(folder, 0o1777); // whoever came first: other users have processes, too
	fs.watch(generation, { persistent: false }, reseeded);
	reseeded();
	process.on('exit', () => fs.rmSync(mine, { force: true }));
	most = pool.length;
}
if (read() !== '' && require('worker_threads').isMainThread) {
	try {
		register();
	} catch {
		// it draws each number from the kernel
	}
}
