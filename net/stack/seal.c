/* SPDX-License-Identifier: Apache-2.0
 *
 * seal.c: the jail of mayfly-net: an empty network namespace, an empty root, and a list of system calls in which nothing can name an
 * address. The sockets that the broker gave are connected; this list sees to it that they stay so:
 *   no socket (but pairs of Unix sockets), connect, bind, listen, accept;
 *   no sendmsg, sendmmsg: their address cannot be seen by a filter; sendto only without one;
 *   no setsockopt: it is answered with EPERM, and libslirp goes on; no io_uring.
 * tests/platform/net_wall.c tries all of it from inside.
 */
#include "net/stack/seal.h"

#include <fcntl.h>
#include <seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "lib/proto_net.h"

#define DYING   "only on the way to an abort"
#define NO_VDSO "hosts whose clock source the vDSO cannot read (hpet, acpi_pm), which then calls"
#define GROWS   "a list beyond 128 KiB, for which malloc() asks the kernel again"

static const struct jail_rule rules[] = {
	JAIL_CALL(write, "ask.c: messages to the broker; log"),
	JAIL_CALL(writev, "link.c: packets to the monitor"),
	JAIL_CALL(recvmsg, "ask.c: answers with descriptors"),
	JAIL_CALL(recvmmsg, "link.c: packets of the monitor"),
	JAIL_CALL(recvfrom, "libslirp, datagram.c, dns.c"),
	JAIL_CALL_EQ(sendto, 4, 0, "libslirp, datagram.c, dns.c: without an address"),
	JAIL_CALL(shutdown, "libslirp: half-close; dns.c"),
	JAIL_CALL(close, "all descriptors"),
	JAIL_CALL(poll, "tcp.c: libslirp's sockets; link.c, ask.c: waiting"),
	JAIL_CALL(epoll_wait, "lib/loop"),
	JAIL_CALL(epoll_ctl, "lib/loop"),
	JAIL_CALL_EQ(fcntl, 1, F_DUPFD_CLOEXEC, "tcp.c: the placeholder"),
	JAIL_CALL_EQ(fcntl, 1, F_GETFL, "libslirp: O_NONBLOCK"),
	JAIL_CALL_EQ(fcntl, 1, F_SETFL, "libslirp: O_NONBLOCK"),
	JAIL_CALL(dup3, "tcp.c: the real socket in the placeholder's place"),
	JAIL_CALL_EQ(socketpair, 0, AF_UNIX, "dns.c: questions over TCP"),
	JAIL_CALL_EQ(getsockopt, 1, SOL_SOCKET, "libslirp: why a socket failed"),
	JAIL_CALL(getpeername, "libslirp: is it still connected"),
	JAIL_CALL(getsockname, "libslirp",
		.unseen = "called for ports forwarded to the guest: there are none"),
	{.nr = SCMP_SYS(setsockopt),
		.need = "libslirp tries; the broker has set what is needed",
		.refuse = EPERM},
	{.nr = SCMP_SYS(bind),
		.need = "libslirp binds to an address of its configuration",
		.unseen = "there is none in ours",
		.refuse = EPERM},
	JAIL_CALL_MASK(mmap, 2, PROT_EXEC, 0, "heap"),
	JAIL_CALL(munmap, "heap"),
	JAIL_CALL(mremap, "heap"),
	JAIL_CALL(madvise, "heap", .unseen = GROWS),
	JAIL_CALL(brk, "heap"),
	JAIL_CALL(clock_gettime, "where the vDSO cannot", .unseen = NO_VDSO),
	JAIL_CALL(
		futex, "glib: locks", .unseen = "there is one thread: no lock is ever waited for"),
	JAIL_CALL(restart_syscall, "poll, after a stop", .unseen = "a debugger or SIGSTOP"),
	JAIL_CALL(rt_sigprocmask, "abort", .unseen = DYING),
	JAIL_CALL(getpid, "abort", .unseen = DYING),
	JAIL_CALL(gettid, "abort", .unseen = DYING),
	JAIL_CALL(tgkill, "abort", .unseen = DYING),
	JAIL_CALL(exit_group, "the end"),
};
static_assert(ARRAY_LEN(rules) <= STACK_RULES_MAX, "the list fits");

size_t stack_rules(struct jail_rule to[static STACK_RULES_MAX])
{
	memcpy(to, rules, sizeof(rules));
	return ARRAY_LEN(rules);
}

int stack_jail(uid_t uid, struct err *e)
{
	struct jail_conf c = {.uid = uid, .nfds = NET_FD_END, .nofile = 4096, .allow_weaker = true};
	uint32_t missing = 0;
	int proc = -1;

	if (uid)
		return jail_enter(&c, &proc, &missing, e);
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? err_set(e, errno, "no new privileges")
							  : 0;
}

int stack_seal(struct err *e)
{
	return jail_seccomp(rules, ARRAY_LEN(rules), JAIL_KILL, e);
}
