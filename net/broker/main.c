/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: mayfly-broker. Started as `mayfly-broker [--jail UID]` with the control socket as descriptor 3 (lib/proto_net.h).
 * The loop and the netlink socket are made before the seal. The first foreign byte is read after it.
 */
#include "net/broker/broker.h"

#include <string.h>
#include <sys/resource.h>

#include "lib/log.h"
#include "net/broker/seal.h"

#define DESCRIPTORS 65536u
#define RESERVED    64u /* loop, netlink, control, the resolvers' file; descriptors in messages */

static int usage(void)
{
	log_error("mayfly-broker is started by mayflyd: mayfly-broker [--jail UID], descriptor 3 "
		  "the control socket");
	return 2;
}

/* As many descriptors as the host lets us have, before the jail makes that final. */
static unsigned int raise_descriptors(void)
{
	struct rlimit r = {.rlim_cur = DESCRIPTORS, .rlim_max = DESCRIPTORS};

	if (setrlimit(RLIMIT_NOFILE, &r) == 0 || getrlimit(RLIMIT_NOFILE, &r) < 0)
		return DESCRIPTORS;
	r.rlim_cur = r.rlim_max = MIN(r.rlim_max, DESCRIPTORS);
	setrlimit(RLIMIT_NOFILE, &r);
	return (unsigned int)r.rlim_cur;
}

int main(int argc, char **argv)
{
	unsigned long uid = 0;
	unsigned int nofile;
	struct broker *b;
	struct loop *l;
	struct err e = {0};
	int rc;

	log_init("mayfly-broker", 2, false);
	for (int i = 1; i < argc; i++) {
		char *end = NULL;

		if (strcmp(argv[i], "--jail") != 0 || i + 1 == argc)
			return usage();
		uid = strtoul(argv[++i], &end, 10);
		if (*end || uid == 0 || uid >= UINT32_MAX)
			return usage();
	}
	if (fd_set_nonblock(BROKER_FD_CONTROL, true) < 0)
		return usage();
	nofile = raise_descriptors();
	if (broker_jail((uid_t)uid, nofile, &e) < 0) {
		log_error("%s", e.msg);
		return 1;
	}
	l = loop_create();
	b = l ? broker_create(l, BROKER_FD_CONTROL,
			nofile > 2 * RESERVED ? nofile - RESERVED : nofile / 2, &e)
	      : NULL;
	if (!b || broker_seal(&e) < 0) {
		log_error("%s", l ? e.msg : "no memory for the loop");
		return 1;
	}
	rc = loop_run(l);
	broker_destroy(b);
	loop_destroy(l);
	return rc;
}
