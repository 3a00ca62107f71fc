/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.c: the jail of mayfly-broker. It has the host's network, which is its purpose, and an empty root. It opens no file and listens
 * nowhere: openat, bind and listen are not in the list. The one socket where it accepts is the daemon's.
 */
#include "net/broker/seal.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "lib/proto_net.h"

#define DYING      "only on the way to an abort"
#define OTHER_LIBC "glibc before 2.33 and from 2.39 on, musl: their fstat is this call"
#define NO_VDSO    "hosts whose clock source the vDSO cannot read (hpet, acpi_pm), which then calls"
#define GROWS      "a list beyond 128 KiB, for which malloc() asks the kernel again"

static const struct jail_rule rules[] = {
	JAIL_CALL(pread64, "host.c: resolv.conf"),
	JAIL_CALL(accept4, "broker.c: the next daemon"),
	JAIL_CALL(write, "log"),
	JAIL_CALL(close, "all descriptors"),
	JAIL_CALL(epoll_wait, "lib/loop"),
	JAIL_CALL(epoll_ctl, "lib/loop"),
	JAIL_CALL(sendmsg, "answers with descriptors"),
	JAIL_CALL(recvmsg, "messages with descriptors"),
	JAIL_CALL(sendto, "resolve.c: questions; host.c: netlink"),
	JAIL_CALL(recvfrom, "resolve.c: answers; host.c: netlink"),
	JAIL_CALL_EQ(socket, 0, AF_INET, "flows.c, resolve.c"),
	JAIL_CALL_EQ(socket, 0, AF_INET6, "flows.c, resolve.c"),
	JAIL_CALL_EQ(socket, 0, AF_NETLINK, "host.c: the host's addresses after a change"),
	JAIL_CALL(connect, "flows.c, resolve.c"),
	JAIL_CALL(shutdown, "flows.c: a flow that is not allowed any more"),
	JAIL_CALL_EQ(setsockopt, 1, IPPROTO_TCP, "flows.c: TCP_NODELAY"),
	JAIL_CALL_EQ(setsockopt, 1, SOL_SOCKET, "flows.c: SO_OOBINLINE, sizes of buffers"),
	JAIL_CALL_EQ(getsockopt, 1, IPPROTO_TCP, "flows.c: bytes of a flow"),
	JAIL_CALL_EQ(fcntl, 1, F_GETFL, "O_NONBLOCK"),
	JAIL_CALL_EQ(fcntl, 1, F_SETFL, "O_NONBLOCK"),
	JAIL_CALL(fstat, "host.c: resolv.conf", .unseen = OTHER_LIBC),
	JAIL_CALL(newfstatat, "host.c: resolv.conf"),
	JAIL_CALL_MASK(mmap, 2, PROT_EXEC, 0, "heap", .unseen = GROWS),
	JAIL_CALL(munmap, "heap"),
	JAIL_CALL(mremap, "heap", .unseen = GROWS),
	JAIL_CALL(madvise, "heap", .unseen = GROWS),
	JAIL_CALL(brk, "heap", .unseen = GROWS),
	JAIL_CALL(getrandom, "ids of questions"),
	JAIL_CALL(clock_gettime, "where the vDSO cannot", .unseen = NO_VDSO),
	JAIL_CALL(restart_syscall, "epoll_wait, after a stop", .unseen = "a debugger or SIGSTOP"),
	JAIL_CALL(rt_sigprocmask, "abort", .unseen = DYING),
	JAIL_CALL(getpid, "abort", .unseen = DYING),
	JAIL_CALL(gettid, "abort", .unseen = DYING),
	JAIL_CALL(tgkill, "abort", .unseen = DYING),
	JAIL_CALL(exit_group, "the end"),
};
static_assert(ARRAY_LEN(rules) <= BROKER_RULES_MAX, "the list fits");

size_t broker_rules(struct jail_rule to[static BROKER_RULES_MAX])
{
	memcpy(to, rules, sizeof(rules));
	return ARRAY_LEN(rules);
}

int broker_jail(uid_t uid, unsigned int nofile, struct err *e)
{
	struct jail_conf c = {.uid = uid,
		.nfds = BROKER_FD_END,
		.keep_net = true,
		.nofile = nofile,
		.allow_weaker = true};
	uint32_t missing = 0;
	int proc = -1;

	if (uid)
		return jail_enter(&c, &proc, &missing, e);
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? err_set(e, errno, "no new privileges")
							  : 0;
}

int broker_seal(struct err *e)
{
	return jail_seccomp(rules, ARRAY_LEN(rules), JAIL_KILL, e);
}
