/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_doctor.c: `mayfly doctor`: one line for each thing that matters, with what to do about it. Tries
 * things rather than looking for them.
 */
#include "cli/cli.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <linux/landlock.h>

#include "cli/assets.h"
#include "cli/client.h"
#include "cli/kvm_probe.h"
#include "cli/run.h"
#include "lib/host_limits.h"

#define LIMITS_FOR 1000u

struct finding {
	enum { GOOD, SO_SO, BAD } how;
	char what[200], todo[200];
};

static void look_kvm(struct finding *f)
{
	struct kvm_verdict v;

	kvm_probe(&v);
	f->how = v.usable ? GOOD : SO_SO;
	snprintf(f->what, sizeof(f->what), "%s (%s)", v.usable ? "usable" : "not usable", v.reason);
	if (!v.usable)
		snprintf(f->todo, sizeof(f->todo),
			"make up runs the daemon in an emulated machine (the same, slower); or use "
			"a host with nested virtualization");
}

static void look_kernel(struct finding *f)
{
	struct utsname u;
	unsigned major = 0, minor = 0;

	uname(&u);
	sscanf(u.release, "%u.%u", &major, &minor);
	f->how = major > 6 || (major == 6 && minor >= 1) ? GOOD : BAD;
	snprintf(f->what, sizeof(f->what), "Linux %.100s", u.release);
	if (f->how == BAD)
		snprintf(f->todo, sizeof(f->todo), "a kernel from 6.1 on");
}

#define FLAWS "/sys/devices/system/cpu/vulnerabilities"

/* The flaws of the processor that the kernel reports as not mitigated. */
static void look_flaws(struct finding *f)
{
	DIR *d = opendir(FLAWS);
	size_t n = 0, looked = 0;

	for (const struct dirent *de; d && (de = readdir(d));) {
		char path[300], text[200];

		snprintf(path, sizeof(path), FLAWS "/%s", de->d_name);
		if (de->d_name[0] == '.' || file_read(path, text, sizeof(text)) < 0)
			continue;
		looked++;
		if (!strncmp(text, "Vulnerable", 10) && n + 40 < sizeof(f->what))
			n += (size_t)snprintf(f->what + n, sizeof(f->what) - n, "%s%.30s",
				n ? ", " : "not mitigated: ", de->d_name);
	}
	if (d)
		closedir(d);
	f->how = looked && !n ? GOOD : SO_SO;
	if (!n)
		snprintf(f->what, sizeof(f->what),
			looked ? "all that the kernel knows are mitigated"
			       : "the kernel does not say");
	else
		snprintf(f->todo, sizeof(f->todo),
			"boot without mitigations=off, with the newest microcode: a guest may read "
			"memory of another");
}

static void look_smt(struct finding *f)
{
	char text[16] = "";
	bool on = file_read("/sys/devices/system/cpu/smt/active", text, sizeof(text)) == 0 &&
		  *text == '1';

	f->how = on ? SO_SO : GOOD;
	snprintf(f->what, sizeof(f->what),
		on ? "two threads share a core" : "no two threads share a core");
	if (on)
		snprintf(f->todo, sizeof(f->todo),
			"mayfly-priv --core-scheduling, or boot with nosmt: a sandbox can observe "
			"the one beside it");
}

static void look_ksm(struct finding *f)
{
	char text[16] = "";
	bool on = file_read("/sys/kernel/mm/ksm/run", text, sizeof(text)) == 0 && *text == '1';

	f->how = on ? SO_SO : GOOD;
	snprintf(f->what, sizeof(f->what),
		on ? "equal pages of processes that ask for it are merged"
		   : "pages are not merged");
	if (on)
		snprintf(f->todo, sizeof(f->todo),
			"echo 2 > /sys/kernel/mm/ksm/run (monitors never ask for it, other "
			"programs may)");
}

static void look_cgroup(struct finding *f)
{
	char text[400];
	bool v2 = file_read("/sys/fs/cgroup/cgroup.controllers", text, sizeof(text)) == 0;

	f->how = v2 && strstr(text, "memory") && strstr(text, "cpu") && strstr(text, "pids")
			 ? GOOD
			 : SO_SO;
	/* The helper runs as root. A container may show the controllers and not let even root
	 * write there. Only root can test that. */
	if (f->how == GOOD && geteuid() == 0 &&
		access("/sys/fs/cgroup/cgroup.subtree_control", W_OK) < 0) {
		f->how = SO_SO;
		snprintf(f->what, sizeof(f->what), "v2, but not delegated: %s", strerror(errno));
		snprintf(f->todo, sizeof(f->todo),
			"a writable /sys/fs/cgroup for mayfly-priv; without it no limits can be "
			"set");
		return;
	}
	snprintf(f->what, sizeof(f->what),
		v2 ? "v2 with: %.120s" : "no cgroup v2 at /sys/fs/cgroup%.0s", v2 ? text : "");
	if (f->how != GOOD)
		snprintf(f->todo, sizeof(f->todo),
			"boot with systemd.unified_cgroup_hierarchy=1; without it no limits can be "
			"set");
}

/* For as many sandboxes as a daemon has by default. The daemon says the same for its own configuration when it starts. */
static void look_limits(struct finding *f)
{
	struct host_limit l[HOST_LIMITS];
	size_t n = host_limits_read(l, LIMITS_FOR), low = 0, at = 0;

	for (size_t i = 0; i < n; i++) {
		if (l[i].have >= l[i].want)
			continue;
		at += (size_t)snprintf(f->what + at, sizeof(f->what) - at, "%s%s %llu of %llu",
			low ? ", " : "too low: ", l[i].name, (unsigned long long)l[i].have,
			(unsigned long long)l[i].want);
		if (!low++)
			snprintf(f->todo, sizeof(f->todo), "raise %s to %llu", l[i].knob,
				(unsigned long long)l[i].want);
		if (at >= sizeof(f->what))
			break;
	}
	f->how = low ? SO_SO : GOOD;
	if (!low)
		snprintf(f->what, sizeof(f->what),
			"enough for %u sandboxes: files, mappings, processes, cgroups, epoll, "
			"ports",
			LIMITS_FOR);
}

static void look_landlock(struct finding *f)
{
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

	f->how = abi > 0 ? GOOD : SO_SO;
	if (abi > 0)
		snprintf(f->what, sizeof(f->what), "ABI %ld", abi);
	else
		snprintf(f->what, sizeof(f->what), "absent");
	if (abi <= 0)
		snprintf(f->todo, sizeof(f->todo),
			"lsm=landlock,... on the kernel's command line; one wall of the jail is "
			"missing without it");
}

static void look_memory(struct finding *f)
{
	struct sysinfo si;

	sysinfo(&si);
	f->how = (uint64_t)si.totalram * si.mem_unit >= GIB(3) ? GOOD : SO_SO;
	snprintf(f->what, sizeof(f->what), "%lu MiB, %d CPUs",
		(unsigned long)((uint64_t)si.totalram * si.mem_unit >> 20), get_nprocs());
	if (f->how != GOOD)
		snprintf(f->todo, sizeof(f->todo), "at least 3 GiB for more than a few sandboxes");
}

static void look_qemu(struct finding *f)
{
	static const char *const argv[] = {"qemu-system-x86_64", "--version", NULL};
	struct buf out;
	struct err e;
	unsigned major = 0;

	buf_init(&out, 4096);
	if (run_program(argv, &out, &e) < 0) {
		f->how = SO_SO;
		snprintf(f->what, sizeof(f->what), "absent");
		snprintf(f->todo, sizeof(f->todo),
			"apt install qemu-system-x86 (only `mayfly machine` needs it)");
	} else {
		sscanf(buf_cstr(&out), "QEMU emulator version %u", &major);
		f->how = major >= 10 ? GOOD : SO_SO;
		snprintf(f->what, sizeof(f->what), "version %u", major);
		if (major < 10)
			snprintf(f->todo, sizeof(f->todo),
				"QEMU 10 (Debian: bookworm-backports); older ones hide XSAVE from "
				"sandboxes in the machine");
	}
	buf_fini(&out);
}

static void look_guest(struct finding *f)
{
	char path[PATH_MAX];
	struct err e;

	f->how = asset_kernel("guest-vmlinux", NULL, path, &e) == 0 ? GOOD : BAD;
	snprintf(f->what, sizeof(f->what), "%.190s", f->how == GOOD ? path : e.msg);
	if (f->how == BAD)
		snprintf(f->todo, sizeof(f->todo), "make kernel");
}

/* Records that the daemon could not read at its start (the quarantine). */
static void look_records(struct finding *f)
{
	_cleanup_answer_ struct answer a = {0};
	char *argv[] = {(char[]){"doctor"}, NULL};
	struct client_opts co = {0};
	const cJSON *items, *one;
	struct client c;
	struct err e;
	int rest, code;

	if (!client_begin(&c, &co, "doctor", NULL, 0, 1, argv, 0, &rest, &code) ||
		client_call(&c, "GET", "/v1/mayfly/quarantine", NULL, &a, &e) < 0) {
		f->how = SO_SO;
		snprintf(f->what, sizeof(f->what), "no daemon to ask: %.160s", e.msg);
		snprintf(f->todo, sizeof(f->todo),
			"make up; or OPEN_SANDBOX_DOMAIN and an operator's OPEN_SANDBOX_API_KEY");
		return;
	}
	items = cJSON_GetObjectItemCaseSensitive(a.json, "items");
	one = cJSON_GetArrayItem(items, 0);
	f->how = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(a.json, "complete")) ? GOOD : BAD;
	if (f->how == GOOD) {
		snprintf(f->what, sizeof(f->what), "the daemon could read all of them");
		return;
	}
	snprintf(f->what, sizeof(f->what),
		"%d cannot be read, so no file is removed: %.20s/%.36s: %.80s",
		cJSON_GetArraySize(items), json_text(one, "table"), json_text(one, "id"),
		json_text(one, "reason"));
	snprintf(f->todo, sizeof(f->todo),
		"restore state.db from a copy; or give each up: DELETE "
		"/v1/mayfly/quarantine/TABLE/ID, then restart the daemon");
}

static const struct {
	const char *name;
	void (*look)(struct finding *f);
} looks[] = {
	{"kernel", look_kernel},
	{"memory", look_memory},
	{"kvm", look_kvm},
	{"cgroups", look_cgroup},
	{"cpu flaws", look_flaws},
	{"threads", look_smt},
	{"ksm", look_ksm},
	{"limits", look_limits},
	{"landlock", look_landlock},
	{"qemu", look_qemu},
	{"guest kernel", look_guest},
	{"records", look_records},
};

/* All findings; or, with a name, that one: exit code 0 if it is good. */
int cmd_doctor(int argc, char **argv)
{
	static const char *const marks[] = {[GOOD] = "ok", [SO_SO] = "--", [BAD] = "NO"},
				 *const words[] = {
					 [GOOD] = "good", [SO_SO] = "limited", [BAD] = "bad"};
	int worst = GOOD, shown = 0, rest;
	cJSON *list = NULL;
	bool json;
	int rc = plain_options(argc, argv,
		"mayfly doctor [--json] [NAME]\n\nTest what mayfly needs of this host, and say "
		"what "
		"to do. With NAME, run only that test, such as kvm or limits.",
		&json, &rest);
	const char *only = rc < 0 && rest < argc ? argv[rest] : NULL;

	if (rc >= 0)
		return rc;
	if (json)
		list = cJSON_CreateArray();
	for (size_t i = 0; i < ARRAY_LEN(looks); i++) {
		struct finding f = {0};

		if (only && strcmp(only, looks[i].name) != 0)
			continue;
		looks[i].look(&f);
		if (json) {
			cJSON *o = cJSON_CreateObject();

			cJSON_AddStringToObject(o, "name", looks[i].name);
			cJSON_AddStringToObject(o, "verdict", words[f.how]);
			cJSON_AddStringToObject(o, "found", f.what);
			if (f.todo[0])
				cJSON_AddStringToObject(o, "todo", f.todo);
			cJSON_AddItemToArray(list, o);
		} else {
			printf("%s  %-13s %s\n", marks[f.how], looks[i].name, f.what);
			if (f.todo[0])
				printf("    %-13s -> %s\n", "", f.todo);
		}
		worst = MAX(worst, (int)f.how);
		shown++;
	}
	if (json && shown)
		print_json(list);
	cJSON_Delete(list);
	if (only && !shown) {
		fprintf(stderr, "mayfly: doctor has no test '%s': `mayfly doctor` lists them\n",
			only);
		return EXIT_USAGE;
	}
	return worst == BAD || (only && worst != GOOD) ? EXIT_FAILED : EXIT_OK;
}
