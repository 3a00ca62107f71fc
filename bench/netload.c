/* SPDX-License-Identifier: Apache-2.0
 *
 * netload: both ends of the network's bench. `netload serve ADDRESS` answers on that address: TCP 9000, UDP echo 9001, DNS 5353 and, on
 * 127.0.0.1, DNS 53. `netload run ADDRESS RESOLVER` measures in a guest. As process 1 of a machine under QEMU the program takes the addresses of
 * QEMU's user network first; the kernel gives it ADDRESS as the variable `netload`. Static, so that the guest needs nothing else.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TCP_PORT 9000
#define UDP_PORT 9001
#define BULK     (16u << 20)
#define SMALL    65536u
#define REQUESTS 20
#define CONNECTS 50
#define ECHOES   200
#define NAMES    50

static char block[65536];

static struct sockaddr_in at(const char *address, int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	inet_pton(AF_INET, address, &a.sin_addr);
	return a;
}

static int opened(
	int type, const char *address, int port, int (*fn)(int, const struct sockaddr *, socklen_t))
{
	struct sockaddr_in a = at(address, port);
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 30},
		sizeof(struct timeval));
	if (fn(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
		return fd;
	close(fd);
	return -1;
}

static int all_out(int fd, uint32_t n)
{
	while (n) {
		ssize_t k = send(fd, block, n < sizeof(block) ? n : sizeof(block), MSG_NOSIGNAL);

		if (k <= 0)
			return -1;
		n -= (uint32_t)k;
	}
	return 0;
}

static int all_in(int fd, uint32_t n)
{
	while (n) {
		ssize_t k = recv(fd, block, n < sizeof(block) ? n : sizeof(block), 0);

		if (k <= 0)
			return -1;
		n -= (uint32_t)k;
	}
	return 0;
}

/* ---- the server */

/* A request is 'd' and a number of bytes, which the server sends; or 'u' and a number of bytes, which follow and are answered with one byte. One client at a time. */
static void serve_tcp(const char *address)
{
	int l = opened(SOCK_STREAM, address, TCP_PORT, bind);

	if (l < 0 || listen(l, 100) < 0)
		exit(1);
	for (;;) {
		struct {
			char op, pad[3];
			uint32_t n;
		} r;
		int fd = accept(l, NULL, NULL);

		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 30},
			sizeof(struct timeval));
		if (recv(fd, &r, sizeof(r), MSG_WAITALL) == sizeof(r)) {
			if (r.op == 'd')
				all_out(fd, r.n);
			else if (all_in(fd, r.n) == 0)
				all_out(fd, 1);
		}
		close(fd);
	}
}

static void serve_udp(const char *address, int port, int dns)
{
	static const char answer[] = "\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x08\x08\x08\x08";
	int fd = opened(SOCK_DGRAM, address, port, bind);
	struct sockaddr_in who;
	char p[2048];

	if (fd < 0)
		exit(1);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0}, sizeof(struct timeval));
	for (;;) {
		socklen_t len = sizeof(who);
		ssize_t n = recvfrom(
			fd, p, sizeof(p) - sizeof(answer), 0, (struct sockaddr *)&who, &len);

		if (n > 12 && dns) { /* the question, without what follows it, and one address */
			size_t end = 12 + strnlen(p + 12, (size_t)n - 12) + 5;

			if (end > (size_t)n)
				continue;
			memcpy(p + 2, "\x81\x80\0\1\0\1\0\0\0\0", 10);
			memcpy(p + end, answer, sizeof(answer) - 1);
			n = (ssize_t)(end + sizeof(answer) - 1);
		}
		if (n > 0)
			sendto(fd, p, (size_t)n, 0, (struct sockaddr *)&who, len);
	}
}

static int serve(const char *address)
{
	if (fork() == 0)
		serve_udp(address, UDP_PORT, 0);
	if (fork() == 0)
		serve_udp(address, 5353, 1);
	if (fork() == 0)
		serve_udp("127.0.0.1", 53, 1);
	serve_tcp(address);
	return 1;
}

/* ---- the client */

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int transfer(const char *address, char op, uint32_t n)
{
	struct {
		char op, pad[3];
		uint32_t n;
	} r = {op, {0}, n};
	int fd = opened(SOCK_STREAM, address, TCP_PORT, connect), bad = fd < 0;

	bad = bad || send(fd, &r, sizeof(r), MSG_NOSIGNAL) != sizeof(r) ||
	      (op == 'd' ? all_in(fd, n) : all_out(fd, n) || all_in(fd, 1));
	close(fd);
	return bad;
}

static int connects(const char *address, int n)
{
	int bad = 0;

	while (n-- > 0) {
		int fd = opened(SOCK_STREAM, address, TCP_PORT, connect);

		bad += fd < 0;
		close(fd);
	}
	return bad;
}

static int trips(const char *address, int port, const char *p, size_t len, int n)
{
	int fd = opened(SOCK_DGRAM, address, port, connect), bad = fd < 0;
	char got[512], q[128];

	memcpy(q, p, len);
	for (int i = 0; i < n; i++) {
		q[0] = (char)i;
		bad += send(fd, q, len, 0) != (ssize_t)len ||
		       recv(fd, got, sizeof(got), 0) < (ssize_t)len;
	}
	close(fd);
	return bad;
}

static int run(const char *address, const char *resolver)
{
	static const char question[] = "\0\1\1\0\0\1\0\0\0\0\0\0\5bench\7example\0\0\1\0\1";
	double t[7];
	/* the first packet of a machine takes longer, and is not measured here */
	int bad = connects(address, 2) + trips(resolver, 53, question, sizeof(question) - 1, 2);

	t[0] = now_us();
	bad += transfer(address, 'd', BULK);
	t[1] = now_us();
	bad += transfer(address, 'u', BULK);
	t[2] = now_us();
	for (int i = 0; i < REQUESTS; i++)
		bad += transfer(address, 'd', SMALL);
	t[3] = now_us();
	bad += connects(address, CONNECTS);
	t[4] = now_us();
	bad += trips(address, UDP_PORT, block, 64, ECHOES);
	t[5] = now_us();
	bad += trips(resolver, 53, question, sizeof(question) - 1, NAMES);
	t[6] = now_us();
	printf("NET down=%.0f up=%.0f requests=%.0f connects=%.0f echoes=%.0f names=%.0f "
	       "bad=%d\nNET end\n",
		t[1] - t[0], t[2] - t[1], t[3] - t[2], t[4] - t[3], t[5] - t[4], t[6] - t[5], bad);
	fflush(stdout);
	return bad != 0;
}

/* ---- process 1, in QEMU's user network */

static void set(int s, unsigned long what, struct ifreq *r, const char *address)
{
	struct sockaddr_in a = at(address, 0);

	memcpy(&r->ifr_addr, &a, sizeof(a));
	ioctl(s, (int)what, r);
}

static void take_addresses(void)
{
	struct sockaddr_in any = at("0.0.0.0", 0), via = at("10.0.2.2", 0);
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
	struct ifreq r = {.ifr_name = "eth0"};

	set(s, SIOCSIFADDR, &r, "10.0.2.15");
	set(s, SIOCSIFNETMASK, &r, "255.255.255.0");
	r.ifr_flags = IFF_UP | IFF_RUNNING;
	ioctl(s, SIOCSIFFLAGS, &r);
	memcpy(&route.rt_dst, &any, sizeof(any));
	memcpy(&route.rt_genmask, &any, sizeof(any));
	memcpy(&route.rt_gateway, &via, sizeof(via));
	if (ioctl(s, SIOCADDRT, &route) < 0)
		printf("NET no route: %s\n", strerror(errno));
	close(s);
}

int main(int argc, char **argv)
{
	if (getpid() == 1) {
		const char *address = getenv("netload");

		take_addresses();
		run(address ? address : "10.0.2.2", "10.0.2.3");
		sleep(1); /* the console's last bytes */
		reboot(RB_AUTOBOOT);
		pause();
	}
	if (argc == 3 && !strcmp(argv[1], "serve"))
		return serve(argv[2]);
	if (argc == 4 && !strcmp(argv[1], "run"))
		return run(argv[2], argv[3]);
	fprintf(stderr, "netload serve ADDRESS | netload run ADDRESS RESOLVER\n");
	return 2;
}
