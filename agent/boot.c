/* SPDX-License-Identifier: Apache-2.0
 *
 * boot.c: the beginning and the end of PID 1 of the guest, before the loop and after it. A hostile
 * image can harm only itself here: nothing of it is executed, and a missing mount point costs only
 * that mount.
 *
 * The root disk is moved over the initramfs and entered, as every init of an initramfs does it:
 * /proc/1/root, mountinfo and pivot_root then look to the image's programs as on any machine. The
 * agent's own program file stays in the initramfs below, out of the image's reach.
 */
#include "agent/boot.h"

#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "agent/net.h"
#include "agent/text.h"

struct mount_row {
	const char *type, *dir;
	unsigned long flags;
	const char *data;
};

/* in the initramfs, then moved along */
static const struct mount_row early[] = {
	{"proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL},
	{"sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL},
	{"devtmpfs", "/dev", MS_NOSUID, "mode=0755"},
};

/* on the root that stays. Browsers want a large shm: it costs only what is used */
static const struct mount_row late[] = {
	{"devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"},
	{"tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777,size=75%"},
	{"mqueue", "/dev/mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL},
	{"tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=0755,size=50%"},
	{"cgroup2", "/sys/fs/cgroup", MS_NOSUID | MS_NODEV | MS_NOEXEC, "nsdelegate"},
};

static int do_mount(const struct mount_row *m)
{
	mkdir(m->dir, 0755);
	if (mount(m->type, m->dir, m->type, m->flags, m->data) == 0 || errno == EBUSY)
		return 0;
	log_warn("mounting %s on %s: %s", m->type, m->dir, strerror(errno));
	return -errno;
}

/* The virtio disk whose serial is "root", else the first one; false: there is none. */
static bool find_root(char dev[64])
{
	static const char first[] = "vda";
	bool found = false;
	DIR *d = opendir("/sys/block");

	for (struct dirent *e; d && (e = readdir(d));) {
		char path[300], *serial;

		if (e->d_name[0] == '.' || strlen(e->d_name) > 32)
			continue;
		snprintf(path, sizeof(path), "/sys/block/%s/serial", e->d_name);
		serial = text_load(path, 64, NULL);
		if ((serial && !strncmp(serial, "root", 4) &&
			    (serial[4] == 0 || serial[4] == '\n')) ||
			(!found && !strcmp(e->d_name, first))) {
			found = true;
			snprintf(dev, 64, "/dev/%.32s", e->d_name);
		}
		if (serial && !strncmp(serial, "root", 4)) {
			free(serial);
			break;
		}
		free(serial);
	}
	if (d)
		closedir(d);
	return found;
}

static void enter_root(void)
{
	char dev[64];

	if (!find_root(dev)) {
		log_info("no root disk: on the initramfs");
		return;
	}
	mkdir("/newroot", 0755);
	/* commit seldom: what must last is synced, and every commit writes into the sandbox's own
	 * layer */
	if (mount(dev, "/newroot", "ext4", MS_NOATIME, "commit=30,discard,errors=remount-ro") < 0 &&
		mount(dev, "/newroot", "ext4", MS_NOATIME, NULL) < 0 &&
		mount(dev, "/newroot", "ext4", MS_NOATIME | MS_RDONLY, "noload") < 0) {
		log_error("mounting %s: %s", dev, strerror(errno));
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(early); i++) {
		char to[64];

		snprintf(to, sizeof(to), "/newroot%s", early[i].dir);
		mkdir(to, 0755);
		if (mount(early[i].dir, to, NULL, MS_MOVE, NULL) < 0)
			log_warn("moving %s: %s", early[i].dir, strerror(errno));
	}
	if (chdir("/newroot") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
		chdir("/") < 0)
		boot_dead("cannot enter the root disk");
}

/* Usual names that the image's programs expect in /dev. */
static void link_dev(void)
{
	static const char *const links[][2] = {{"/proc/self/fd", "/dev/fd"},
		{"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"},
		{"/proc/self/fd/2", "/dev/stderr"}, {"pts/ptmx", "/dev/ptmx"}};

	for (size_t i = 0; i < ARRAY_LEN(links); i++) {
		unlink(links[i][1]);
		if (symlink(links[i][0], links[i][1]) < 0)
			log_warn("%s: %s", links[i][1], strerror(errno));
	}
}

static void make_tmp(void)
{
	struct stat st;

	/* only where the image has none */
	if (lstat("/tmp", &st) < 0 && mkdir("/tmp", 01777) == 0)
		chmod("/tmp", 01777);
	mkdir("/var", 0755);
	if (lstat("/var/tmp", &st) < 0 && mkdir("/var/tmp", 01777) == 0)
		chmod("/var/tmp", 01777);
}

static void loopback_up(void)
{
	_cleanup_close_ int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq r = {.ifr_name = "lo"};

	if (s < 0 || ioctl(s, SIOCGIFFLAGS, &r) < 0)
		return;
	r.ifr_flags |= IFF_UP | IFF_RUNNING;
	if (ioctl(s, SIOCSIFFLAGS, &r) < 0)
		log_warn("loopback: %s", strerror(errno));
}

static void open_std_fds(void)
{
	int fd;

	while ((fd = open("/dev/null", O_RDWR | O_NOCTTY)) >= 0 && fd <= 2)
		;
	if (fd > 2)
		close(fd);
}

/* Log lines go to the kernel's log, which the console shows when there is one. */
static void log_to_kernel(void)
{
	int fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC | O_NOCTTY);

	if (fd >= 0)
		log_init("mayfly-agent", fd, false);
}

void boot_init(struct agent_opts *o)
{
	struct rlimit files = {.rlim_cur = 1048576, .rlim_max = 1048576};

	for (size_t i = 0; i < ARRAY_LEN(early); i++)
		do_mount(&early[i]);
	open_std_fds();
	log_to_kernel();
	umask(022);
	enter_root();
	for (size_t i = 0; i < ARRAY_LEN(late); i++)
		do_mount(&late[i]);
	link_dev();
	make_tmp();
	mkdir("/run/mayfly", 0755);
	mkdir("/run/lock", 01777);
	mkdir("/opt", 0755);
	mkdir("/opt/opensandbox", 0755);
	loopback_up();
	net_up();
	text_poke("/proc/self/oom_score_adj", "-1000");
	setrlimit(RLIMIT_NOFILE, &files);
	/* ctrl-alt-del has no keyboard here, and must not reboot behind our back */
	reboot(RB_DISABLE_CAD);
	o->init = true;
	o->run_dir = "/run/mayfly";
	o->state_dir = "/var/lib/mayfly-sessions";
	o->cgroup_dir = "/sys/fs/cgroup";
}

/* With reboot=t on the kernel's command line this is a triple fault, which the monitor sees at
 * once. */
static void boot_reset(void)
{
	reboot(RB_AUTOBOOT);
	for (;;)
		pause();
}

void boot_power_off(void)
{
	/* The root is not unmounted, because a mount that remains may keep it busy. The read-only
	 * remount makes it clean. */
	static const char *const dirs[] = {"/etc/machine-id", "/dev/shm", "/run", "/tmp"};

	sync();
	for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
		umount2(dirs[i], MNT_DETACH);
	if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
		text_poke("/proc/sysrq-trigger", "u");
	sync();
	boot_reset();
	for (;;)
		;
}

void boot_dead(const char *why)
{
	log_error("%s: the guest ends", why);
	sync();
	boot_reset();
	for (;;)
		;
}
