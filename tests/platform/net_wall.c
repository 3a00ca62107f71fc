/* SPDX-License-Identifier: Apache-2.0
 *
 * net_wall: a mayfly-net that was taken over. It is in its jail, with a connected UDP socket and a TCP socket that a broker gave, and tries to
 * reach any place but those: each try is a process of its own, because most end it. The server that it must not reach listens on this
 * host. Needs root (77: skipped).
 */
#include "lib/test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "lib/proto_net.h"
#include "net/stack/seal.h"
#include "tests/platform/inside.h"

#define JAIL_UID     312347
#define DIES         (128 + SIGSYS)
#define ANY_ERRNO(r) ((r) < 0 ? errno : 0)

/* as mayfly-net has them: 3 is a UDP socket here, 4 a TCP socket */
static struct sockaddr_in target;
#define TO (const struct sockaddr *)&target, sizeof(target)

static int try_socket(void)
{
	return ANY_ERRNO(socket(AF_INET, SOCK_STREAM, 0));
}
static int try_socket_unix(void)
{
	return ANY_ERRNO(socket(AF_UNIX, SOCK_STREAM, 0));
}
static int try_socket_raw(void)
{
	return ANY_ERRNO(socket(AF_PACKET, SOCK_RAW, 0));
}
static int try_connect_udp(void)
{
	return ANY_ERRNO(connect(NET_FD_BROKER, TO));
}
static int try_connect_tcp(void)
{
	return ANY_ERRNO(connect(NET_FD_FRAMES, TO));
}
static int try_disconnect(void)
{
	struct sockaddr none = {.sa_family = AF_UNSPEC};

	return ANY_ERRNO(connect(NET_FD_BROKER, &none, sizeof(none)));
}
static int try_sendto(void)
{
	return ANY_ERRNO(sendto(NET_FD_BROKER, "x", 1, 0, TO));
}
static int try_fast_open(void)
{
	return ANY_ERRNO(sendto(NET_FD_FRAMES, "x", 1, MSG_FASTOPEN, TO));
}
static int try_sendmsg(void)
{
	char x = 'x';
	struct iovec v = {&x, 1};
	struct msghdr m = {
		.msg_name = &target, .msg_namelen = sizeof(target), .msg_iov = &v, .msg_iovlen = 1};

	return ANY_ERRNO(sendmsg(NET_FD_BROKER, &m, 0));
}
static int try_sendmmsg(void)
{
	char x = 'x';
	struct iovec v = {&x, 1};
	struct mmsghdr m = {.msg_hdr = {.msg_name = &target,
				    .msg_namelen = sizeof(target),
				    .msg_iov = &v,
				    .msg_iovlen = 1}};

	return ANY_ERRNO(sendmmsg(NET_FD_BROKER, &m, 1, 0));
}
static int try_bind(void)
{
	struct sockaddr_in any = {.sin_family = AF_INET};

	return ANY_ERRNO(bind(NET_FD_BROKER, (struct sockaddr *)&any, sizeof(any)));
}
static int try_listen(void)
{
	return ANY_ERRNO(listen(NET_FD_FRAMES, 1));
}
static int try_accept(void)
{
	return ANY_ERRNO(accept(NET_FD_FRAMES, NULL, NULL));
}
static int try_setsockopt(void)
{
	/* a loose source route over another host */
	static const uint8_t route[] = {131, 7, 4, 127, 0, 0, 1, 0};

	return ANY_ERRNO(setsockopt(NET_FD_BROKER, IPPROTO_IP, IP_OPTIONS, route, sizeof(route)));
}
static int try_pair_inet(void)
{
	int sv[2];

	return ANY_ERRNO(socketpair(AF_INET, SOCK_STREAM, 0, sv));
}
static int try_uring(void)
{
	struct io_uring_params p = {0};

	return ANY_ERRNO(syscall(SYS_io_uring_setup, 4, &p));
}
static int try_open(void)
{
	return ANY_ERRNO(open("/", O_RDONLY));
}
static int try_exec(void)
{
	return ANY_ERRNO(execl("/bin/true", "true", (char *)NULL));
}
static int try_fork(void)
{
	return ANY_ERRNO(fork());
}
static int try_setns(void)
{
	return ANY_ERRNO(setns(NET_FD_BROKER, CLONE_NEWNET));
}
static int try_pidfd_getfd(void)
{
	return ANY_ERRNO(syscall(SYS_pidfd_getfd, 1, 3, 0));
}
static int try_ioctl(void)
{
	return ANY_ERRNO(ioctl(NET_FD_BROKER, FIONREAD, &target));
}
static int try_executable_memory(void)
{
	return ANY_ERRNO(syscall(SYS_mmap, NULL, 4096, 7, 0x22, -1, 0));
}
/* what it may: send to where the socket is connected, and read */
static int may_send(void)
{
	return send(NET_FD_BROKER, "good", 4, 0) == 4 ? 0 : errno;
}
static int may_write(void)
{
	return write(NET_FD_BROKER, "good", 4) == 4 ? 0 : errno;
}

static const struct {
	const char *name;
	int (*fn)(void);
	int wanted;
} tries[] = {
	{"socket", try_socket, DIES},
	{"socket(AF_UNIX)", try_socket_unix, DIES},
	{"socket(AF_PACKET)", try_socket_raw, DIES},
	{"connect a UDP socket again", try_connect_udp, DIES},
	{"connect a TCP socket", try_connect_tcp, DIES},
	{"disconnect", try_disconnect, DIES},
	{"sendto an address", try_sendto, DIES},
	{"TCP fast open", try_fast_open, DIES},
	{"sendmsg to an address", try_sendmsg, DIES},
	{"sendmmsg to an address", try_sendmmsg, DIES},
	{"bind", try_bind, EPERM},
	{"listen", try_listen, DIES},
	{"accept", try_accept, DIES},
	{"setsockopt: source route", try_setsockopt, EPERM},
	{"socketpair(AF_INET)", try_pair_inet, DIES},
	{"io_uring", try_uring, DIES},
	{"open", try_open, DIES},
	{"exec", try_exec, DIES},
	{"fork", try_fork, DIES},
	{"setns", try_setns, DIES},
	{"pidfd_getfd", try_pidfd_getfd, DIES},
	{"ioctl", try_ioctl, DIES},
	{"executable memory", try_executable_memory, DIES},
	{"send to its peer", may_send, 0},
	{"write to its peer", may_write, 0},
};

static int server(struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	socklen_t n = sizeof(*at);

	*at = (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (bind(fd, (struct sockaddr *)at, sizeof(*at)) < 0 ||
		getsockname(fd, (struct sockaddr *)at, &n) < 0)
		return -1;
	return fd;
}

static int inside(void *arg)
{
	int (*const *fn)(void) = arg;
	struct err e = {0};

	if (stack_jail(JAIL_UID, &e) < 0 || stack_seal(&e) < 0) {
		printf("%s\n", e.msg);
		return 98;
	}
	return (*fn)();
}

static void nothing_but_its_peers_is_reached(void)
{
	struct sockaddr_in peer_at;
	int victim = server(&target), peer = server(&peer_at), udp = socket(AF_INET, SOCK_DGRAM, 0),
	    tcp = socket(AF_INET, SOCK_STREAM, 0);
	char c[8];

	REQUIRE(victim >= 0 && peer >= 0 &&
		connect(udp, (struct sockaddr *)&peer_at, sizeof(peer_at)) == 0);
	victim = fcntl(victim, F_DUPFD_CLOEXEC, 20);
	peer = fcntl(peer, F_DUPFD_CLOEXEC, 20);
	udp = fcntl(udp, F_DUPFD, 20);
	tcp = fcntl(tcp, F_DUPFD, 20);
	REQUIRE(dup2(udp, NET_FD_BROKER) == NET_FD_BROKER &&
		dup2(tcp, NET_FD_FRAMES) == NET_FD_FRAMES);
	for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
		int rc = in_new_pid_namespace(inside, (void *)(uintptr_t)&tries[i].fn);

		if (rc != tries[i].wanted)
			printf("%s: %d, wanted %d\n", tries[i].name, rc, tries[i].wanted);
		CHECK_INT(rc, tries[i].wanted);
	}
	/* two of them came from those who may; nothing came where it must not */
	CHECK_INT(recv(peer, c, sizeof(c), 0), 4);
	CHECK_INT(recv(peer, c, sizeof(c), 0), 4);
	CHECK(recv(victim, c, sizeof(c), 0) < 0);
}

static const struct test tests[] = {
	{"nothing_but_its_peers_is_reached", nothing_but_its_peers_is_reached},
};

int main(int argc, char **argv)
{
	if (!inside_can())
		return 77;
	return test_main(argc, argv, tests, ARRAY_LEN(tests));
}
