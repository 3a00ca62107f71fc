/* SPDX-License-Identifier: Apache-2.0
 *
 * netguest.c: the network of a sandbox without a machine: a real mayfly-broker and a real mayfly-net, and as the guest this host's kernel in
 * a network namespace of its own, behind a tap device that has the same virtio header. It plays the daemon (policy, channel, counters) and
 * the monitor (frames). Needs root and /dev/net/tun; exit code 77 when they are missing.
 *
 *   netguest [OPTION...] -- COMMAND      runs COMMAND in there; its exit code is ours, the counters go to standard error
 *     --bin DIR              where mayfly-net and mayfly-broker are
 *     --allow T[,PORT]       a rule; also --deny. The first one makes a policy, whose default is deny, with --open allow.
 *     --operator-allow T     the operator's rule; also --operator-deny
 *     --resolver ADDR,PORT   instead of those of resolv.conf
 *     --then COMMAND         a shell command on the host, run while COMMAND runs; then the policy becomes the rules after it
 *     --limit N=VALUE        enum net_limit
 *     --jail UID             both programs in their jails (net UID, broker UID + 1)
 *     --guests N             as many, each with a mayfly-net of its own, at one broker; COMMAND has its number in GUEST
 *     --wrap PROGRAM         mayfly-net and mayfly-broker are started as PROGRAM mayfly-...
 */
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "lib/fdpass.h"
#include "lib/netrule.h"
#include "lib/proto_net.h"

#define RULES  64
#define GUESTS 1000

static struct {
	const char *bin, *wrap, *then, *resolver;
	const char *limit[NET_L_COUNT];
	unsigned long jail, guests;
	bool open;
	struct rule {
		bool allow, operator_, after;
		const char *target;
	} rule[RULES];
	unsigned int nrules;
	char **command;
} o = {.bin = "build/bin", .guests = 1};

static int control;

_noreturn_ static void fail(const char *what)
{
	fprintf(stderr, "netguest: %s: %s\n", what, strerror(errno));
	exit(errno == EPERM || errno == ENOENT ? 77 : 1);
}

static int take_option(const char *name, const char *value)
{
	static const struct {
		const char *name;
		bool allow, operator_;
	} rules[] = {{"--allow", true, false}, {"--deny", false, false},
		{"--operator-allow", true, true}, {"--operator-deny", false, true}};

	for (size_t i = 0; i < ARRAY_LEN(rules); i++)
		if (!strcmp(name, rules[i].name) && o.nrules < RULES) {
			o.rule[o.nrules++] = (struct rule){
				rules[i].allow, rules[i].operator_, o.then != NULL, value};
			return 0;
		}
	if (!strcmp(name, "--bin"))
		o.bin = value;
	else if (!strcmp(name, "--resolver"))
		o.resolver = value;
	else if (!strcmp(name, "--then"))
		o.then = value;
	else if (!strcmp(name, "--wrap"))
		o.wrap = value;
	else if (!strcmp(name, "--jail"))
		o.jail = strtoul(value, NULL, 10);
	else if (!strcmp(name, "--guests"))
		o.guests = MIN(MAX(strtoul(value, NULL, 10), 1ul), (unsigned long)GUESTS);
	else if (!strcmp(name, "--limit") && value[0] >= '0' && value[0] < '0' + NET_L_COUNT &&
		 value[1] == '=')
		o.limit[value[0] - '0'] = value + 2;
	else
		return -1;
	return 0;
}

static bool options(int argc, char **argv)
{
	int i = 1;

	for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
		if (!strcmp(argv[i], "--open"))
			o.open = true;
		else if (i + 1 == argc || take_option(argv[i], argv[i + 1]) < 0)
			return false;
		else
			i++;
	}
	o.command = argv + i + 1;
	return i + 1 < argc;
}

/* PROGRAM with the descriptors as 3 and 4 (-1: none). */
static pid_t start(const char *program, int three, int four, unsigned long uid)
{
	char path[256], number[16];
	char *argv[6] = {0};
	int n = 0;
	pid_t pid = fork();

	if (pid)
		return pid;
	snprintf(path, sizeof(path), "%s/%s", o.bin, program);
	snprintf(number, sizeof(number), "%lu", uid);
	if (o.wrap)
		argv[n++] = (char *)(uintptr_t)o.wrap;
	argv[n++] = path;
	if (uid) {
		argv[n++] = (char *)(uintptr_t) "--jail";
		argv[n++] = number;
	}
	three = fcntl(three, F_DUPFD, 10);
	four = four >= 0 ? fcntl(four, F_DUPFD, 10) : -1;
	dup2(three, 3);
	if (four >= 0)
		dup2(four, 4);
	execv(argv[0], argv);
	fail(argv[0]);
}

static int ask(struct buf *b, int fd, uint8_t *answer, size_t cap, ssize_t *len)
{
	struct net_hdr h;
	size_t nfds = 0;

	if (fdpass_send(control, b->p, b->len, &fd, fd >= 0) < 0)
		fail("broker");
	do { /* past events */
		nfds = 0;
		*len = fdpass_recv(control, answer, cap, NULL, &nfds);
		if (*len < (ssize_t)sizeof(h))
			fail("broker: answer");
		memcpy(&h, answer, sizeof(h));
	} while (!h.id);
	if (h.status < 0)
		fprintf(stderr, "netguest: broker: %.*s\n", (int)(*len - 20),
			(const char *)answer + 20);
	buf_fini(b);
	return h.status;
}

static void request(struct buf *b, uint16_t type)
{
	struct net_hdr h = {.magic = NET_MAGIC, .type = type, .id = 1};

	buf_init(b, NET_MSG_MAX);
	buf_put(b, &h, sizeof(h));
}

static void put_rules(struct buf *b, bool operator_, bool after)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < o.nrules; i++)
		n += o.rule[i].operator_ == operator_ && o.rule[i].after == after;
	buf_u32(b, n);
	for (unsigned int i = 0; i < o.nrules; i++) {
		char target[300];
		char *comma;
		uint16_t port = 0;

		if (o.rule[i].operator_ != operator_ || o.rule[i].after != after)
			continue;
		snprintf(target, sizeof(target), "%s", o.rule[i].target);
		comma = strchr(target, ',');
		if (comma) {
			port = (uint16_t)strtoul(comma + 1, NULL, 10);
			*comma = 0;
		}
		net_rule_put(b, o.rule[i].allow, target, &port, port ? 1 : 0);
	}
}

static int set_policy(uint32_t id, bool after)
{
	bool given = o.open || after;
	uint8_t answer[1024];
	ssize_t len;
	struct buf b;

	for (unsigned int i = 0; i < o.nrules; i++)
		given |= !o.rule[i].operator_;
	request(&b, NET_POLICY);
	buf_u32(&b, id);
	buf_u8(&b, NET_PART_FIRST);
	buf_u8(&b, given);
	buf_u8(&b, o.open);
	put_rules(&b, false, after);
	return ask(&b, -1, answer, sizeof(answer), &len);
}

static int set_up(void)
{
	uint8_t answer[1024];
	struct net_addr a;
	ssize_t len;
	struct buf b;
	char *comma;

	request(&b, NET_OPERATOR);
	buf_u8(&b, NET_PART_FIRST);
	put_rules(&b, true, false);
	buf_u32(&b, 0);
	if (ask(&b, -1, answer, sizeof(answer), &len) < 0)
		return -1;
	comma = o.resolver ? strchr(o.resolver, ',') : NULL;
	if (comma) {
		*comma = 0;
		if (!net_addr_parse(o.resolver, &a))
			return -1;
		request(&b, NET_RESOLVERS);
		buf_u32(&b, 1);
		buf_put(&b, a.b, 16);
		buf_u16(&b, (uint16_t)strtoul(comma + 1, NULL, 10));
		if (ask(&b, -1, answer, sizeof(answer), &len) < 0)
			return -1;
	} else {
		_cleanup_close_ int fd = open("/etc/resolv.conf", O_RDONLY | O_CLOEXEC);

		request(&b, NET_RESOLVERS);
		buf_u32(&b, 0);
		if (ask(&b, fd, answer, sizeof(answer), &len) < 0)
			return -1;
	}
	return 0;
}

static int set_channel(uint32_t id, int chan)
{
	uint8_t answer[1024];
	ssize_t len;
	struct buf b;

	if (set_policy(id, false) < 0)
		return -1;
	request(&b, NET_CHANNEL);
	buf_u32(&b, id);
	buf_u32(&b, NET_L_COUNT);
	for (int i = 0; i < NET_L_COUNT; i++)
		buf_u64(&b, o.limit[i] ? strtoul(o.limit[i], NULL, 10) : 0);
	return ask(&b, chan, answer, sizeof(answer), &len);
}

static void counters(void)
{
	static const char *const names[NET_C_COUNT] = {"tcp_opened", "udp_opened", "icmp_opened",
		"open", "bytes_out", "bytes_in", "queries", "queries_denied", "queries_failed",
		"rebinding", "denied", "limited", "shut", "refused"};
	static uint8_t answer[NET_MSG_MAX];
	struct buf b;
	struct cur c;
	ssize_t len;
	uint32_t n;

	request(&b, NET_COUNTERS);
	buf_u32(&b, o.guests > 1 ? NET_ALL : 1);
	if (ask(&b, -1, answer, sizeof(answer), &len) < 0)
		return;
	c = cur_of(answer + sizeof(struct net_hdr), (size_t)len - sizeof(struct net_hdr));
	n = cur_u32(&c);
	for (uint32_t i = 0; i < n; i++)
		fprintf(stderr, "%s=%llu\n", i < NET_C_COUNT ? names[i] : "?",
			(unsigned long long)cur_u64(&c));
	n = cur_u32(&c);
	for (uint32_t i = 0; i < n; i++) {
		char place[NET_NAME_MAX], why[32];

		cur_str(&c, place, sizeof(place));
		cur_str(&c, why, sizeof(why));
		fprintf(stderr, "denied %s (%s) %llu\n", place, why,
			(unsigned long long)cur_u64(&c));
	}
}

/* ---- the guest's side, in its own namespaces ---- */

static void run(const char *command)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		execl("/bin/sh", "sh", "-ec", command, (char *)NULL);
		_exit(127);
	}
	if (waitpid(pid, &status, 0) < 0 || status)
		fail(command);
}

static int make_tap(void)
{
	struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
	int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK), hdr = NET_VHDR_BYTES;

	if (fd < 0)
		fail("/dev/net/tun");
	strcpy(r.ifr_name, "eth0");
	if (ioctl(fd, TUNSETIFF, &r) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &hdr) < 0 ||
		ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM) < 0)
		fail("tap");
	return fd;
}

/* What the agent does in a real guest. */
static void configure(void)
{
	run("ip link set lo up; sysctl -qw net.ipv6.conf.eth0.accept_ra=0 "
	    "net.ipv6.conf.eth0.addr_gen_mode=1 2>/dev/null || "
	    "{ echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_ra; echo 1 > "
	    "/proc/sys/net/ipv6/conf/eth0/addr_gen_mode; };"
	    "ip link set eth0 address 02:6d:66:6e:00:02 mtu 65520 up;"
	    "ip addr add 192.0.2.2/24 dev eth0; ip route add default via 192.0.2.1;"
	    "ip -6 addr add fd6d:666e::2/64 dev eth0 nodad; ip -6 route add default via "
	    "fd6d:666e::1");
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
		run("mount --bind /tmp/netguest.resolv /etc/resolv.conf");
}

/* What is there, up to a turn's worth. */
static bool move(int from, int to)
{
	static uint8_t p[NET_PACKET_MAX];

	for (int i = 0; i < 32; i++) {
		ssize_t n = read(from, p, sizeof(p));

		if (n < 0 && errno == EAGAIN)
			return true;
		if (n <= 0)
			return false;
		/* back-pressure, as a monitor has it; a frame that is not taken for long is lost, as on a wire */
		if (write(to, p, (size_t)n) < 0 && errno == EAGAIN &&
			poll(&(struct pollfd){.fd = to, .events = POLLOUT}, 1, 200) > 0)
			(void)!write(to, p, (size_t)n);
	}
	return true;
}

static int guest(int frames)
{
	pid_t pid;
	int tap, status = 1;

	if (unshare(CLONE_NEWNET | CLONE_NEWNS) < 0)
		fail("namespaces");
	tap = make_tap();
	configure();
	fcntl(tap, F_SETFL, O_NONBLOCK);
	fcntl(frames, F_SETFL, O_NONBLOCK);
	pid = fork();
	if (!pid) {
		execvp(o.command[0], o.command);
		fail(o.command[0]);
	}
	for (;;) {
		struct pollfd p[2] = {
			{.fd = tap, .events = POLLIN}, {.fd = frames, .events = POLLIN}};

		bool idle = poll(p, 2, 20) == 0;

		if (p[0].revents)
			move(tap, frames);
		if (p[1].revents && !move(frames, tap))
			fprintf(stderr, "netguest: mayfly-net is gone\n"),
				p[1].fd = frames = open("/dev/null", O_RDWR);
		if (idle && waitpid(pid, &status, WNOHANG) == pid)
			return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	}
}

static pid_t net[GUESTS], inside[GUESTS];

static int start_guest(unsigned int i)
{
	const int type = SOCK_SEQPACKET | SOCK_CLOEXEC;
	int chan[2], frames[2];
	char number[16];

	if (socketpair(AF_UNIX, type, 0, chan) < 0 || socketpair(AF_UNIX, type, 0, frames) < 0)
		fail("socketpair");
	if (set_channel(i + 1, chan[0]) < 0)
		return -1;
	/* the broker has the id after the first one */
	net[i] = start("mayfly-net", chan[1], frames[1], o.jail ? o.jail + i + (i > 0) : 0);
	close(chan[1]);
	close(frames[1]);
	close(chan[0]);
	inside[i] = fork();
	if (!inside[i]) {
		snprintf(number, sizeof(number), "%u", i);
		setenv("GUEST", number, 1);
		exit(guest(frames[0]));
	}
	close(frames[0]);
	return 0;
}

int main(int argc, char **argv)
{
	int ctl[2], status = 0, bad = 0;
	pid_t broker;

	if (!options(argc, argv)) {
		fprintf(stderr, "usage: see the head of tests/tools/netguest.c\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	/* whole at any time: others may be reading it */
	run("f=$(mktemp /tmp/netguest.XXXXXX); echo nameserver 192.0.2.1 > $f; chmod 644 $f; "
	    "mv $f /tmp/netguest.resolv");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ctl) < 0)
		fail("socketpair");
	control = ctl[0];
	broker = start("mayfly-broker", ctl[1], -1, o.jail ? o.jail + 1 : 0);
	if (set_up() < 0)
		return 1;
	for (unsigned int i = 0; i < o.guests; i++)
		if (start_guest(i) < 0)
			return 1;
	if (o.then) {
		run(o.then);
		for (unsigned int i = 0; i < o.guests; i++)
			set_policy(i + 1, true);
	}
	for (unsigned int i = 0; i < o.guests; i++)
		if (waitpid(inside[i], &status, 0) == inside[i] && status && !bad)
			bad = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	counters();
	close(control);
	for (unsigned int i = 0; i < o.guests; i++) {
		kill(net[i], SIGTERM);
		waitpid(net[i], NULL, 0);
	}
	waitpid(broker, NULL, 0);
	return bad;
}
