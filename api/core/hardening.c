/* SPDX-License-Identifier: Apache-2.0
 *
 * hardening.c: see hardening.h. The configuration is the administrator's.
 */
#include "api/core/hardening.h"

#include <string.h>
#include <strings.h>

#include "api/core/config.h"

/* by number: linux/capability.h */
static const char *const names[] = {"chown", "dac_override", "dac_read_search", "fowner", "fsetid",
	"kill", "setgid", "setuid", "setpcap", "linux_immutable", "net_bind_service",
	"net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner", "sys_module", "sys_rawio",
	"sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice",
	"sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write",
	"audit_control", "setfcap", "mac_override", "mac_admin", "syslog", "wake_alarm",
	"block_suspend", "audit_read", "perfmon", "bpf", "checkpoint_restore"};

int capabilities_parse(const char *list, uint64_t *bits, struct err *e)
{
	*bits = 0;
	for (size_t n; *list; list += n) {
		size_t i = 0;

		list += strspn(list, " ");
		if (!strncasecmp(list, "cap_", 4))
			list += 4;
		n = strcspn(list, " ");
		if (!n)
			break;
		while (i < ARRAY_LEN(names) &&
			!(strlen(names[i]) == n && !strncasecmp(names[i], list, n)))
			i++;
		if (i == ARRAY_LEN(names))
			return err_plain(e, EINVAL,
				"hardening.keep_capabilities: %.*s is not a capability", (int)n,
				list);
		*bits |= 1ull << i;
	}
	return 0;
}

/* Absolute paths, separated by blanks. */
static int paths_check(const char *key, const char *list, struct err *e)
{
	for (size_t n; *list; list += n) {
		list += strspn(list, " ");
		n = strcspn(list, " ");
		if (n && (*list != '/' || n > 255))
			return err_plain(e, EINVAL,
				"%s: %.*s is not an absolute path of at most "
				"255 bytes",
				key, (int)MIN(n, (size_t)300), list);
	}
	return 0;
}

int hardening_check(const struct config *c, struct err *e)
{
	uint64_t bits;

	if (capabilities_parse(c->harden_keep, &bits, e) < 0 ||
		paths_check("landlock.read", c->landlock_read, e) < 0 ||
		paths_check("landlock.write", c->landlock_write, e) < 0 ||
		paths_check("isolation.allowed", c->isolation_allowed, e) < 0)
		return -EINVAL;
	return 0;
}
