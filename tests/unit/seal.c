/* SPDX-License-Identifier: Apache-2.0
 *
 * seal: the allow-lists beside what the test suite really called (tests/trace/calls, made by
 * tests/trace/make): every call that was made is allowed. A call that is allowed and
 * was never made has the reason in its row. Nothing hostile, nothing real is started.
 */
#include "lib/test.h"

#include <seccomp.h>
#include <stdlib.h>

#include "api/core/seal.h"
#include "fs/seal.h"
#include "images/job/seal.h"
#include "net/broker/seal.h"
#include "net/stack/seal.h"
#include "vmm/seal.h"

#define RULES_MAX       256
#define CALLS_MAX       2000
#define PROC_FD         9 /* of a monitor's list here */
#define VMM_PROC_FD_MAX 64

struct call {
	char kind[16], name[32], text[96];
	int nr;
	bool known[3];
	uint64_t arg[3];
};

static struct call calls[CALLS_MAX];
static size_t ncalls;

static bool load(void)
{
	char line[160], arg[3][24];
	FILE *f = ncalls ? NULL : fopen("tests/trace/calls", "re");

	while (f && fgets(line, sizeof(line), f) && ncalls < CALLS_MAX) {
		struct call *c = &calls[ncalls];
		int n = sscanf(
			line, "%15s %31s %23s %23s %23s", c->kind, c->name, arg[0], arg[1], arg[2]);

		if (line[0] == '#' || n < 2)
			continue;
		str_copy(c->text, sizeof(c->text), line);
		c->text[strcspn(c->text, "\n")] = 0;
		c->nr = seccomp_syscall_resolve_name(c->name);
		for (int i = 0; i + 2 < n; i++) {
			c->known[i] = strcmp(arg[i], "-") != 0;
			c->arg[i] = strtoull(arg[i], NULL, 16);
		}
		/* a monitor opens below its own /proc only, which has another number with other
		 * descriptors before it; standard input to error are none of them */
		if (strstr("device writer", c->kind) && !strcmp(c->name, "openat") &&
			c->arg[0] > 2 && c->arg[0] < VMM_PROC_FD_MAX)
			c->arg[0] = PROC_FD;
		ncalls++;
	}
	if (f)
		fclose(f);
	return ncalls > 100;
}

static bool matches(const struct jail_rule *r, const struct call *c)
{
	if (r->nr != c->nr)
		return false;
	for (unsigned int i = 0; i < r->ncmp; i++) {
		unsigned int a = r->cmp[i].arg;
		uint64_t mask = r->cmp[i].mask ? r->cmp[i].mask : UINT64_MAX;

		if (a >= 3) /* not in the file: the platform tests try those */
			continue;
		if (!c->known[a] || (c->arg[a] & mask) != r->cmp[i].value)
			return false;
	}
	return true;
}

/* used: the kinds whose calls go through this list, blank between them; their own lists may lie on
 * top of it */
static void compare(const char *list, const struct jail_rule *r, size_t n, const char *used)
{
	size_t of_kind = 0;

	for (size_t i = 0; i < ncalls; i++) {
		bool ok = false;

		if (!strstr(used, calls[i].kind))
			continue;
		of_kind++;
		/* what the C library tries first for every thread: refused by a row or by a list's
		 * default, it takes clone */
		if (!strcmp(calls[i].name, "clone3"))
			continue;
		for (size_t k = 0; !ok && k < n; k++)
			ok = matches(&r[k], &calls[i]);
		if (!ok)
			printf("%s: \"%s\" was called and is not allowed\n", list, calls[i].text);
		CHECK(ok);
	}
	CHECK(of_kind > 3);
	for (size_t k = 0; k < n; k++) {
		bool seen = false;

		for (size_t i = 0; !seen && i < ncalls; i++)
			seen = strstr(used, calls[i].kind) && matches(&r[k], &calls[i]);
		CHECK(r[k].need && r[k].need[0]);
		if (!seen && !r[k].unseen) {
			char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, r[k].nr);

			printf("%s: %s (%s%#llx) is allowed, no test calls it, and no reason is "
			       "given (need: %s)\n",
				list, name, r[k].ncmp ? "argument " : "",
				r[k].ncmp ? (unsigned long long)r[k].cmp[0].value : 0ull,
				r[k].need);
			free(name);
			CHECK(!"a reason");
		}
		if (seen && r[k].unseen)
			printf("%s: system call %d is said to be unseen, and was called: %s\n",
				list, r[k].nr, r[k].need);
		CHECK(!seen || !r[k].unseen);
	}
}

static void the_monitors_lists_are_what_it_needs(void)
{
	struct jail_rule r[VMM_RULES_MAX];

	REQUIRE(load());
	compare("device", r, vmm_seal_rules(VMM_T_DEVICE, PROC_FD, r), "device vcpu writer");
	compare("vcpu", r, vmm_seal_rules(VMM_T_VCPU, PROC_FD, r), "vcpu");
	compare("writer", r, vmm_seal_rules(VMM_T_WRITER, PROC_FD, r), "writer");
}

static void an_image_jobs_list_is_what_it_needs(void)
{
	struct jail_rule r[JOB_RULES_MAX];

	REQUIRE(load());
	compare("image job", r, job_rules(true, r), "image");
}

static void the_daemons_list_is_what_it_needs(void)
{
	struct jail_rule r[DAEMON_RULES_MAX];

	REQUIRE(load());
	compare("daemon", r, daemon_rules(r), "daemon");
}

static void the_file_servers_list_is_what_it_needs(void)
{
	struct jail_rule r[FS_RULES_MAX];

	REQUIRE(load());
	compare("files", r, fs_rules(r), "files");
}

static void the_networks_lists_are_what_they_need(void)
{
	struct jail_rule net[STACK_RULES_MAX], broker[BROKER_RULES_MAX];

	REQUIRE(load());
	compare("mayfly-net", net, stack_rules(net), "net");
	compare("broker", broker, broker_rules(broker), "broker");
}

static const struct test tests[] = {
	{"the_monitors_lists_are_what_it_needs", the_monitors_lists_are_what_it_needs},
	{"an_image_jobs_list_is_what_it_needs", an_image_jobs_list_is_what_it_needs},
	{"the_daemons_list_is_what_it_needs", the_daemons_list_is_what_it_needs},
	{"the_file_servers_list_is_what_it_needs", the_file_servers_list_is_what_it_needs},
	{"the_networks_lists_are_what_they_need", the_networks_lists_are_what_they_need},
};
TEST_MAIN(tests)
