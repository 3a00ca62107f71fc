/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c: see config.h. mayfly-vmm, before anything else. Its input is the developer's or the
 * daemon's own.
 */
#include "vmm/config.h"

#include <stdio.h>
#include <string.h>

enum kind { FLAG, COUNT, TEXT, SIZE, NUMBER, DISK, FILE_ };
#define TAKES_NOTHING(o) ((o)->kind == FLAG || (o)->kind == COUNT)

static const struct option {
	const char *name;
	enum kind kind;
	uint16_t at;
	bool local; /* this option selects developer mode */
	const char *help;
} options[] = {
	{"config", FILE_, 0, true,
		"FILE: lines of `name = value` with the names below; # comments"},
	{"name", TEXT, offsetof(struct config, name), false, "NAME: shown in log lines"},
	{"kernel", TEXT, offsetof(struct config, kernel), true, "FILE: uncompressed vmlinux"},
	{"initrd", TEXT, offsetof(struct config, initrd), true, "FILE: initramfs"},
	{"cmdline", TEXT, offsetof(struct config, cmdline), false,
		"TEXT: added to the kernel's command line"},
	{"memory", SIZE, offsetof(struct config, memory_bytes), false, "SIZE: 128M to 16G (256M)"},
	{"vcpus", NUMBER, offsetof(struct config, vcpus), false, "N: 1 to 16 (1)"},
	{"cpu", TEXT, offsetof(struct config, cpu), false,
		"TEMPLATE: host, x86-64-v2, x86-64-v3 (host)"},
	{"disk", DISK, 0, true,
		"BASE[,DATA,BITMAP]: a disk; read-only without DATA and BITMAP; up to 8"},
	{"vsock", TEXT, offsetof(struct config, vsock), true,
		"PATH: Unix socket for host-to-guest streams"},
	{"serial", FLAG, offsetof(struct config, serial), false,
		"add a serial port: the kernel prints there, and input goes there, not to hvc0"},
	{"snapshot", TEXT, offsetof(struct config, snapshot), true,
		"DIR: write a snapshot and exit when the guest says it is ready, or on SIGUSR2"},
	{"stay", FLAG, offsetof(struct config, stay), true,
		"with --snapshot: the VM runs on after the snapshot"},
	{"restore", TEXT, offsetof(struct config, restore), true, "DIR: restore this snapshot"},
	{"jail", NUMBER, offsetof(struct config, jail_uid), false,
		"UID: enter the jail as this user"},
	{"no-jail", COUNT, offsetof(struct config, no_jail), false,
		"no jail and no system-call filter, for debugging; root must give it twice"},
	{"json-log", FLAG, offsetof(struct config, json_log), false, "log lines as JSON"},
	{"trace", FLAG, offsetof(struct config, trace), false, "log everything"},
	{"help", FLAG, offsetof(struct config, help), false, "this text"},
};
static_assert(sizeof(struct config) <= UINT16_MAX, "at reaches every field");

void config_usage(void)
{
	printf("mayfly-vmm: runs one virtual machine. Without --config, --kernel or --restore it "
	       "takes its requests from descriptor %d.\n",
		VMM_FD_CONTROL);
	for (size_t i = 0; i < ARRAY_LEN(options); i++)
		printf("  --%-10s %s\n", options[i].name, options[i].help);
}

static int parse_number(const char *s, bool units, uint64_t *v)
{
	char *end;

	if (*s < '0' || *s > '9')
		return -EINVAL;
	errno = 0;
	*v = strtoull(s, &end, 0);
	if (errno)
		return -EINVAL;
	if (units && *end) {
		int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : -1;

		if (shift < 0 || *v > UINT64_MAX >> shift)
			return -EINVAL;
		*v <<= shift;
		end++;
	}
	return *end ? -EINVAL : 0;
}

static int config_file(struct config *c, const char *path, struct err *e);

static int set(struct config *c, const struct option *o, const char *v, struct err *e)
{
	char *at = (char *)c + o->at;
	uint64_t n = 0;

	c->local |= o->local;
	switch (o->kind) {
	case FLAG:
		*(bool *)(void *)at = true;
		return 0;
	case COUNT:
		++*(unsigned int *)(void *)at;
		return 0;
	case TEXT:
		*(const char **)(void *)at = v;
		return 0;
	case DISK:
		if (c->ndisks == VMM_MAX_DISKS)
			return err_plain(e, E2BIG, "more than %u disks", VMM_MAX_DISKS);
		c->disk[c->ndisks++] = v;
		return 0;
	case FILE_:
		return config_file(c, v, e);
	case SIZE:
	case NUMBER:
		break;
	}
	if (parse_number(v, o->kind == SIZE, &n) < 0 || (o->kind == NUMBER && n > UINT32_MAX))
		return err_plain(e, EINVAL, "%s: \"%s\" is not a %s", o->name, v,
			o->kind == SIZE ? "size (256M, 2G)" : "number");
	if (o->kind == SIZE)
		*(uint64_t *)(void *)at = n;
	else
		*(uint32_t *)(void *)at = (uint32_t)n;
	c->jail |= o->at == offsetof(struct config, jail_uid);
	return 0;
}

static const struct option *find(const char *name, size_t n)
{
	for (size_t i = 0; i < ARRAY_LEN(options); i++)
		if (strlen(options[i].name) == n && !memcmp(options[i].name, name, n))
			return &options[i];
	return NULL;
}

static char *trim(char *s)
{
	size_t n;

	s += strspn(s, " \t");
	n = strlen(s);
	while (n && strchr(" \t\r\n", s[n - 1]))
		s[--n] = 0;
	return s;
}

/* The strings of a configuration file. They are never freed. */
static struct text {
	struct text *next;
	char s[];
} * kept;

static const char *keep(const char *s)
{
	size_t n = strlen(s) + 1;
	struct text *t = malloc(sizeof(*t) + n);

	if (!t)
		return NULL;
	memcpy(t->s, s, n);
	t->next = kept;
	kept = t;
	return t->s;
}

static int config_line(struct config *c, char *line, struct err *e)
{
	char *name = trim(line), *eq = strchr(name, '=');
	const struct option *o;
	const char *value;

	if (!*name || *name == '#')
		return 0;
	if (eq)
		*eq = 0;
	name = trim(name);
	o = find(name, strlen(name));
	if (!o || o->kind == FILE_)
		return err_plain(e, EINVAL, "\"%s\" is not an option", name);
	if (!TAKES_NOTHING(o) && !eq)
		return err_plain(e, EINVAL, "%s: needs a value", name);
	value = eq ? keep(trim(eq + 1)) : NULL;
	if (eq && !value)
		return err_set(e, ENOMEM, "%s", name);
	return set(c, o, value, e);
}

/* 1: a line, 0: there are no more. */
static int read_line(FILE *f, char *line, size_t cap, struct err *e)
{
	size_t n = 0;
	int ch;

	errno = 0;
	while ((ch = getc(f)) != EOF && ch != '\n') {
		if (!ch)
			return err_plain(e, EINVAL, "a byte of value 0");
		if (n == cap - 2)
			return err_plain(e, EINVAL, "longer than %zu bytes", cap - 2);
		line[n++] = (char)ch;
	}
	line[n] = 0;
	if (ferror(f))
		return err_set(e, errno ? errno : EIO, "read");
	return n > 0 || ch == '\n';
}

static int config_file(struct config *c, const char *path, struct err *e)
{
	FILE *f = fopen(path, "re");
	char line[4096];
	int rc = 1, at = 0;

	if (!f)
		return err_set(e, errno, "open %s", path);
	while (rc > 0) {
		at++;
		rc = read_line(f, line, sizeof(line), e);
		if (rc > 0)
			rc = config_line(c, line, e) < 0 ? -e->code : 1;
	}
	fclose(f);
	return rc < 0 ? err_wrap(e, "%s:%d", path, at) : 0;
}

int config_parse(struct config *c, int argc, char **argv, struct err *e)
{
	*c = (struct config){.cmdline = "", .cpu = "", .memory_bytes = MIB(256), .vcpus = 1};
	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *eq = strchr(a, '=');
		const struct option *o = NULL;
		int rc;

		if (!strncmp(a, "--", 2))
			o = find(a + 2, eq ? (size_t)(eq - a - 2) : strlen(a + 2));
		if (!o)
			return err_plain(
				e, EINVAL, "\"%s\" is not an option; --help lists them", a);
		if (!TAKES_NOTHING(o) && !eq && ++i == argc)
			return err_plain(e, EINVAL, "%s: needs a value", a);
		rc = set(c, o, TAKES_NOTHING(o) ? NULL : eq ? eq + 1 : argv[i], e);
		if (rc < 0)
			return rc;
	}
	return 0;
}
