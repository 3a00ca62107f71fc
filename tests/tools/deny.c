/* SPDX-License-Identifier: Apache-2.0
 *
 * deny.c: an older or stricter kernel on demand: runs a command whose system calls, and those of
 * all it starts, fail as asked. deny CALL=ERRNO... -- COMMAND; CALL is a name, ioctl:NUMBER for one
 * request of it, or NAME:NUMBER for one first argument of another call. ERRNO is a number or one of
 * the names below.
 */
#include <errno.h>
#include <seccomp.h>
#include <stdio.h>
#include <string.h>

#include "lib/base.h"

static const struct {
	const char *name;
	int number;
} names[] = {{"EPERM", EPERM}, {"ENOSYS", ENOSYS}, {"ENOTTY", ENOTTY}, {"EOPNOTSUPP", EOPNOTSUPP},
	{"ENOMEM", ENOMEM}, {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EAFNOSUPPORT", EAFNOSUPPORT}};

static int number_of(const char *s)
{
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (!strcmp(names[i].name, s))
			return names[i].number;
	return (int)strtol(s, NULL, 0);
}

static int deny(scmp_filter_ctx f, char *what)
{
	char *eq = strchr(what, '='), *request;
	int nr, err = eq ? number_of(eq + 1) : 0;

	if (err <= 0)
		return -EINVAL;
	*eq = 0;
	request = strchr(what, ':');
	if (request)
		*request++ = 0;
	nr = seccomp_syscall_resolve_name(what);
	if (nr == __NR_SCMP_ERROR)
		return -EINVAL;
	if (!request)
		return seccomp_rule_add(f, SCMP_ACT_ERRNO((uint32_t)err), nr, 0);
	return seccomp_rule_add(f, SCMP_ACT_ERRNO((uint32_t)err), nr, 1,
		SCMP_CMP(strcmp(what, "ioctl") == 0 ? 1 : 0, SCMP_CMP_MASKED_EQ, 0xffffffffu,
			strtoul(request, NULL, 0)));
}

int main(int argc, char **argv)
{
	scmp_filter_ctx f = seccomp_init(SCMP_ACT_ALLOW);
	int i = 1;

	for (; f && i < argc && strcmp(argv[i], "--") != 0; i++) {
		int rc = deny(f, argv[i]);

		if (rc < 0) {
			fprintf(stderr, "deny: %s: %s\n", argv[i], strerror(-rc));
			return 125;
		}
	}
	if (!f || ++i >= argc || seccomp_load(f) < 0) {
		fprintf(stderr, "deny CALL=ERRNO... -- COMMAND\n");
		return 125;
	}
	execvp(argv[i], argv + i);
	perror(argv[i]);
	return 125;
}
