/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c: a reader for the part of TOML that a configuration needs: tables, strings, integers, booleans, arrays of strings. mayflyd, at
 * the start and at each reload. The table keys[] lists all keys but those of [server.keys.NAME], [server.api_keys] and
 * [storage]. Any other key is an error with its line.
 */
#include "api/core/config.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "api/core/hardening.h"
#include "lib/netrule.h"

#define CONFIG_BYTES_MAX 65536

enum kind { K_STR, K_INT, K_BOOL };

#define AT(f)  offsetof(struct config, f)
#define STR(f) K_STR, AT(f), (int64_t)sizeof(((struct config *)0)->f), 0
static const struct key {
	const char *table, *name;
	enum kind kind;
	size_t off;
	int64_t min, max; /* K_STR: min is the size of the field */
	const char *dflt, *help;
} keys[] = {
	{"server", "host", STR(host), "127.0.0.1",
		"Address to listen on. Any address but loopback requires a key. Empty: listen on "
		"the socket only"},
	{"server", "port", K_INT, AT(port), 0, 65535, "8080",
		"Port to listen on. 0: any free port"},
	{"server", "socket", STR(socket), "",
		"Unix socket to listen on as well, a path below run_dir. Callers are known by "
		"their user id"},
	{"server", "api_key", STR(api_key), "",
		"The operator's API key. More keys, each with a namespace: [server.keys.NAME]"},
	{"server", "eip", STR(eip), "",
		"HOST[:PORT] under which clients reach this server. Endpoints in answers use it"},
	{"server", "max_sandbox_timeout_seconds", K_INT, AT(max_sandbox_timeout_seconds), 0,
		1ll << 40, "0", "Longest timeout that a client may ask for a sandbox. 0: no limit"},
	{"server", "max_connections", K_INT, AT(max_connections), 16, 65536, "8192",
		"Client connections open at a time"},
	{"server", "max_connections_per_address", K_INT, AT(max_connections_per_address), 0, 65536,
		"2048",
		"Of these, connections from one address that have not shown a key yet. 0: no "
		"limit, for a server behind a proxy"},
	{"server", "header_timeout_seconds", K_INT, AT(header_timeout_seconds), 1, 3600, "30",
		"Time for the headers of a request to arrive"},
	{"server", "body_timeout_seconds", K_INT, AT(body_timeout_seconds), 1, 3600, "60",
		"Time for the body of a request. For a streamed body: time for each piece"},
	{"server", "idle_timeout_seconds", K_INT, AT(idle_timeout_seconds), 1, 3600, "75",
		"Time that a connection may be idle between requests. The SDKs keep theirs for 30 "
		"seconds"},
	{"server", "write_timeout_seconds", K_INT, AT(write_timeout_seconds), 1, 86400, "600",
		"A client that reads nothing of its answer for this long is disconnected"},
	{"server", "backend_timeout_seconds", K_INT, AT(backend_timeout_seconds), 1, 86400, "180",
		"Time for a server in a sandbox to begin its answer to a proxied request"},
	{"server", "line_endings", STR(line_endings), "auto",
		"Line endings in text events: auto (by the generation of the client), keep, or "
		"strip"},
	{"server", "log_level", STR(log_level), "info", "error, warn, info, debug or trace"},
	{"server", "log_json", K_BOOL, AT(log_json), 0, 0, "false",
		"Write each log line as a JSON object"},
	{"runtime", "state_dir", STR(state_dir), "/var/lib/mayfly",
		"Folder for records, images, snapshots and disks"},
	{"runtime", "run_dir", STR(run_dir), "/run/mayfly",
		"Folder for the sockets of running sandboxes"},
	{"runtime", "bin_dir", STR(bin_dir), "",
		"Folder of mayfly-vmm when mayflyd runs without mayfly-priv. Empty: the folder of "
		"mayflyd"},
	{"runtime", "kernel", STR(kernel), "", "Guest kernel. Empty: guest-vmlinux in state_dir"},
	{"runtime", "initrd", STR(initrd), "",
		"Initramfs with the agent. Empty: guest-initrd in state_dir"},
	{"runtime", "no_jail", K_BOOL, AT(no_jail), 0, 0, "false",
		"Run monitors without a jail, like --no-jail. For debugging only"},
	{"runtime", "weaker_jail", K_BOOL, AT(weaker_jail), 0, 0, "false",
		"Start on a host without Landlock or cgroup limits. `mayfly doctor` names what is "
		"missing"},
	{"runtime", "templates", K_BOOL, AT(templates), 0, 0, "true",
		"Restore sandboxes from image templates. false: boot each sandbox"},
	{"runtime", "template_max", K_INT, AT(template_max), 0, 10000, "64",
		"Number of image templates to keep, and of user templates"},
	{"runtime", "template_retry_seconds", K_INT, AT(template_retry_seconds), 1, 86400, "30",
		"Wait at least this long after a failed image template before the next try"},
	{"runtime", "template_mib", K_INT, AT(template_mib), 64, 1ll << 30, "20480",
		"Disk space for image templates, in MiB"},
	{"runtime", "blank_pool", K_INT, AT(blank_pool), 0, 256, "2",
		"Blank monitors to keep ready for each size class in use"},
	{"runtime", "create_timeout_seconds", K_INT, AT(create_timeout_seconds), 1, 86400, "600",
		"Deadline of a whole create, image pull included"},
	{"runtime", "step_timeout_seconds", K_INT, AT(step_timeout_seconds), 1, 86400, "60",
		"Deadline of one step of a create: starting a monitor, loading a snapshot, the "
		"first answer of a restored guest"},
	{"runtime", "resume_timeout_seconds", K_INT, AT(resume_timeout_seconds), 1, 86400, "25",
		"Deadline of a whole resume. The official clients give up after 30 seconds"},
	{"runtime", "pending_after_seconds", K_INT, AT(pending_after_seconds), 1, 3600, "20",
		"A create or pause that takes longer is answered now and goes on: the create as "
		"Pending, the pause as Pausing"},
	{"runtime", "share_memory", K_BOOL, AT(share_memory), 0, 0, "true",
		"Sandboxes of all namespaces share the pages of templates and images. false: each "
		"key has its own, and no namespace can measure what another one touched"},
	{"limits", "max_sandboxes", K_INT, AT(max_sandboxes), 1, 65536, "1000",
		"Sandboxes that run or are paused"},
	{"limits", "max_ended", K_INT, AT(max_ended), 1, 1ll << 20, "1000",
		"Records of ended sandboxes to keep for each key. The oldest are deleted first"},
	{"limits", "ended_keep_seconds", K_INT, AT(ended_keep_seconds), 1, 1ll << 31, "86400",
		"How long to keep the record of an ended sandbox"},
	{"limits", "memory_mib", K_INT, AT(memory_mib), 0, 1ll << 30, "0",
		"Memory of all running sandboxes together, in MiB. 0: the memory of the host. A "
		"larger value overcommits: guests rarely touch all of their memory, but if they "
		"do, the kernel kills some of them"},
	{"limits", "cpu_overcommit", K_INT, AT(cpu_overcommit), 1, 65536, "16",
		"vCPUs of running sandboxes for each CPU of the host"},
	{"limits", "max_vcpus", K_INT, AT(max_vcpus), 1, 16, "16", "Most vCPUs of one sandbox"},
	{"limits", "max_memory_mib", K_INT, AT(max_memory_mib), 128, 16384, "16384",
		"Most memory of one sandbox, in MiB"},
	{"limits", "disk_mib", K_INT, AT(disk_mib), 64, 1ll << 22, "10240",
		"Size of the disk of each sandbox, in MiB"},
	{"limits", "sandbox_disk_mib", K_INT, AT(sandbox_disk_mib), 0, 1ll << 30, "0",
		"Space that the files of one sandbox's disk may take, in MiB. Writes beyond it "
		"wait. The file system counts where it has project quotas. Elsewhere the monitor "
		"counts its newest layer. 0: twice disk_mib"},
	{"limits", "disk_reserve_mib", K_INT, AT(disk_reserve_mib), 0, 1ll << 30, "512",
		"Free space to keep in state_dir, in MiB. With less, no sandbox is created. With "
		"less than half of it, the sandbox that writes most is paused in memory. 0: "
		"neither"},
	{"limits", "disk_mib_per_second", K_INT, AT(disk_mib_per_second), 0, 1 << 20, "0",
		"MiB per second that one sandbox may read from its disk, and as much that it may "
		"write. 0: no limit"},
	{"limits", "disk_operations_per_second", K_INT, AT(disk_operations_per_second), 0, 1 << 30,
		"0", "Disk reads per second of one sandbox, and as many writes. 0: no limit"},
	{"limits", "budget_mib", K_INT, AT(budget_mib), 16, 1ll << 20, "256",
		"Memory of the server for what clients and guests make it hold, in MiB: requests, "
		"unread answers, records"},
	{"limits", "budget_key_mib", K_INT, AT(budget_key_mib), 4, 1ll << 20, "96",
		"Of budget_mib, the share of one API key that is not an operator's"},
	{"limits", "budget_sandbox_mib", K_INT, AT(budget_sandbox_mib), 1, 1ll << 20, "24",
		"Of budget_mib, the share of requests to one sandbox and its agent"},
	{"limits", "own_api_connections", K_INT, AT(own_api_connections), 0, 64, "8",
		"Connections of programs in one sandbox to its own execution API at "
		"127.0.0.1:44772. 0: closed"},
	{"network", "enabled", K_BOOL, AT(network_enabled), 0, 0, "true",
		"Sandboxes reach the internet as far as their policies allow"},
	{"network", "allow", STR(network_allow), "",
		"Targets that every sandbox may reach, whatever its policy, also on private "
		"networks: names, *.names, addresses and prefixes, separated by blanks"},
	{"network", "deny", STR(network_deny), "",
		"Targets that no sandbox may reach, written like allow. deny wins over allow"},
	{"network", "resolvers", STR(network_resolvers), "",
		"DNS servers of all sandboxes: up to three ADDRESS or ADDRESS:PORT, separated by "
		"blanks. Empty: those of the host's /etc/resolv.conf"},
	{"network", "max_connections", K_INT, AT(network_connections), 1, 16384, "1024",
		"Open connections of one sandbox"},
	{"network", "connection_rate", K_INT, AT(network_connection_rate), 1, 1000000, "1000",
		"New connections per second of one sandbox"},
	{"network", "query_rate", K_INT, AT(network_query_rate), 1, 1000000, "500",
		"DNS queries per second of one sandbox"},
	{"network", "max_mbit", K_INT, AT(network_mbit), 0, 1000000, "0",
		"Mbit per second of one sandbox in each direction. 0: no limit"},
	{"network", "max_packets", K_INT, AT(network_packets), 0, 1ll << 40, "0",
		"Packets per second of one sandbox in each direction. 0: no limit"},
	{"isolation", "allowed", STR(isolation_allowed), "/workspace /mnt /media /data",
		"Folders in a sandbox below which isolated sessions may bind and write, separated "
		"by blanks"},
	{"hardening", "cap_drop", K_BOOL, AT(harden_caps), 0, 0, "false",
		"Take all capabilities but keep_capabilities from commands and entrypoints"},
	{"hardening", "keep_capabilities", STR(harden_keep),
		"chown dac_override fowner fsetid kill setgid setuid net_bind_service sys_chroot "
		"setfcap",
		"Capabilities that cap_drop keeps, separated by blanks"},
	{"hardening", "seccomp", K_BOOL, AT(harden_seccomp), 0, 0, "false",
		"Refuse system calls for namespaces, mounts, device nodes, modules, bpf, perf, "
		"io_uring and keys"},
	{"hardening", "no_new_privs", K_BOOL, AT(harden_no_new_privs), 0, 0, "false",
		"Set-id programs such as sudo give no privileges"},
	{"hardening", "required", K_BOOL, AT(harden_required), 0, 0, "true",
		"Fail the create of a sandbox if a configured layer cannot be set"},
	{"landlock", "enabled", K_BOOL, AT(landlock), 0, 0, "false",
		"Limit commands and entrypoints to the files below these paths of the sandbox"},
	{"landlock", "read", STR(landlock_read), "/",
		"Paths to read and execute, separated by blanks"},
	{"landlock", "write", STR(landlock_write),
		"/tmp /var/tmp /run /dev /proc /workspace /home /root",
		"Paths to read, execute and write, separated by blanks"},
	{"ingress", "mode", STR(ingress_mode), "direct",
		"gateway: endpoints lead to a listener of their own, which serves nothing but "
		"ports of sandboxes. direct: endpoints lead to this server"},
	{"ingress", "host", STR(ingress_host), "127.0.0.1", "Address that the gateway listens on"},
	{"ingress", "port", K_INT, AT(ingress_port), 0, 65535, "8090",
		"Port of the gateway. 0: any free port"},
	{"ingress", "max_connections", K_INT, AT(ingress_max_connections), 16, 65536, "4096",
		"Client connections of the gateway open at a time"},
	{"ingress", "max_connections_per_address", K_INT, AT(ingress_max_connections_per_address),
		0, 65536, "256",
		"Of these, connections from one address. 0: no limit. Required with behind_proxy"},
	{"ingress", "behind_proxy", K_BOOL, AT(ingress_behind_proxy), 0, 0, "false",
		"Only a proxy of yours reaches the gateway: believe its X-Forwarded-For and "
		"X-Forwarded-Proto. Needs max_connections_per_address = 0"},
	{"ingress.gateway", "address", STR(ingress_address), "*.localhost:8090",
		"Address by which clients reach the gateway. Endpoints in answers use it. It "
		"begins with \"*.\" for the route mode wildcard"},
	{"ingress.gateway.route", "mode", STR(ingress_route), "wildcard",
		"How a request names its sandbox and port. wildcard: ID-PORT.DOMAIN; uri: "
		"/ID/PORT/; header: OpenSandbox-Ingress-To"},
	{"ingress.secure_access", "keys", STR(ingress_keys), "",
		"Keys that sign routes: \"a=BASE64,b=BASE64\", 16 to 64 bytes each. Empty: those "
		"of the environment variable OPENSANDBOX_SECURE_ACCESS_KEYS"},
	{"ingress.secure_access", "active_key", STR(ingress_active_key), "",
		"The key that signs new routes. Empty: the first one"},
	{"renew_intent", "enabled", K_BOOL, AT(renew_enabled), 0, 0, "true",
		"Renew a sandbox when a client reaches it through the proxy"},
	{"renew_intent", "min_interval_seconds", K_INT, AT(renew_min_interval_seconds), 0, 86400,
		"60", "Renew at most once in this time"},
	{"idle", "enabled", K_BOOL, AT(idle_enabled), 0, 0, "true",
		"Clients may ask for lifecycle.idlePolicy: pause or delete idle sandboxes, and "
		"wake them on a request"},
	{"idle", "min_timeout_seconds", K_INT, AT(idle_min_timeout_seconds), 1, 86400, "30",
		"Shortest idle timeout that a client may ask for"},
	{"idle", "activity_ttl_seconds", K_INT, AT(idle_activity_ttl_seconds), 1, 86400, "1800",
		"Longest idle timeout that a client may ask for"},
	{"idle", "disk_after_seconds", K_INT, AT(idle_disk_after_seconds), 0, 86400, "600",
		"Time that an idle sandbox is paused in memory before it is paused to disk. 0: to "
		"disk at once"},
	{"runs", "timeout_seconds", K_INT, AT(runs_timeout_seconds), 1, 86400, "30",
		"Time of one attempt of a run (POST /v1/mayfly/runs) that names none"},
	{"runs", "max_timeout_seconds", K_INT, AT(runs_max_timeout_seconds), 1, 86400, "3600",
		"Longest time of one attempt that a client may ask for"},
	{"runs", "max_attempts", K_INT, AT(runs_max_attempts), 1, 10, "2",
		"Attempts of a run that names none"},
	{"runs", "max_running", K_INT, AT(runs_max_running), 1, 10000, "64",
		"Runs of one key in progress at a time"},
	{"runs", "keep", K_INT, AT(runs_keep), 1, 100000, "1000",
		"Answers to keep for each key. The oldest are deleted first"},
	{"runs", "keep_seconds", K_INT, AT(runs_keep_seconds), 1, 1ll << 31, "86400",
		"How long to keep an answer: the same run_id gets it again"},
	{"images", "default_registry", STR(default_registry), "docker.io",
		"Registry of image names without a registry"},
	{"images", "private_registries", STR(private_registries), "",
		"Registries that may have loopback or private addresses: HOST or HOST:PORT, "
		"separated by blanks"},
	{"images", "aliases", STR(image_aliases), "",
		"Names that stand for other images: PATTERN=NAME, separated by blanks. A pattern "
		"may end in '*': \"opensandbox/code-interpreter:*=code-interpreter-python\""},
	{"images", "shared_store", K_BOOL, AT(shared_store), 0, 0, "false",
		"Every key may use every image in the store, also private images that another key "
		"pulled with its own credentials"},
	{"images", "insecure_registries", K_BOOL, AT(insecure_registries), 0, 0, "false",
		"Allow plain HTTP and private addresses for all registries"},
	{"debug", "faults", K_BOOL, AT(faults), 0, 0, "false",
		"For tests: the file run_dir/fault says where the server kills itself. Refused "
		"without --faults"},
};

struct rd {
	const char *p, *end;
	unsigned int line;
	char table[96];
	struct access_key *key; /* of the table [server.keys.NAME] */
	struct err *e;
};

static int bad(struct rd *r, const char *what)
{
	return err_plain(r->e, EINVAL, "line %u: %s", r->line, what);
}

static void blanks(struct rd *r)
{
	while (r->p < r->end && (*r->p == ' ' || *r->p == '\t'))
		r->p++;
}

static int end_of_line(struct rd *r)
{
	blanks(r);
	if (r->p < r->end && *r->p == '#')
		while (r->p < r->end && *r->p != '\n')
			r->p++;
	if (r->p < r->end && *r->p == '\r')
		r->p++;
	if (r->p == r->end)
		return 0;
	if (*r->p != '\n')
		return bad(r, "something follows the value");
	r->p++;
	r->line++;
	return 0;
}

static bool bare_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == '-';
}

static int bare(struct rd *r, char *to, size_t cap, bool dots)
{
	size_t n = 0;

	while (r->p < r->end && (bare_char(*r->p) || (dots && *r->p == '.'))) {
		if (n + 1 >= cap)
			return bad(r, "this name is too long");
		to[n++] = *r->p++;
	}
	to[n] = 0;
	return n ? 0 : bad(r, "a name is missing");
}

static int escape(struct rd *r, char *c)
{
	static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
	const char *at = r->p < r->end && *r->p ? strchr(from, *r->p) : NULL;

	if (!at)
		return bad(r, "unknown escape: use \\b, \\t, \\n, \\f, \\r, \\\" or \\\\");
	*c = to[at - from];
	r->p++;
	return 0;
}

static int string(struct rd *r, char *to, size_t cap)
{
	char quote = r->p < r->end ? *r->p : 0;
	size_t n = 0;

	if (quote != '"' && quote != '\'')
		return bad(r, "a string in quotes is expected");
	for (r->p++; r->p < r->end && *r->p != quote;) {
		char c = *r->p++;

		if ((unsigned char)c < ' ' && c != '\t')
			return bad(r, "a string ends on its line, and has no control characters");
		if (c == '\\' && quote == '"' && escape(r, &c) < 0)
			return -EINVAL;
		if (n + 1 >= cap)
			return bad(r, "this string is too long");
		to[n++] = c;
	}
	if (r->p == r->end)
		return bad(r, "the string has no closing quote");
	r->p++;
	to[n] = 0;
	return 0;
}

static int integer(struct rd *r, int64_t *v)
{
	bool neg = r->p < r->end && *r->p == '-';
	int64_t n = 0;
	size_t digits = 0;

	if (neg)
		r->p++;
	for (; r->p < r->end && ((*r->p >= '0' && *r->p <= '9') || (*r->p == '_' && digits));
		r->p++) {
		if (*r->p == '_')
			continue;
		if (digits++ == 18)
			return bad(r, "this number is too long");
		n = n * 10 + (*r->p - '0');
	}
	if (!digits)
		return bad(r, "a whole number is expected");
	*v = neg ? -n : n;
	return 0;
}

static int boolean(struct rd *r, bool *v)
{
	size_t left = (size_t)(r->end - r->p);

	if (left >= 4 && !memcmp(r->p, "true", 4)) {
		*v = true;
		r->p += 4;
	} else if (left >= 5 && !memcmp(r->p, "false", 5)) {
		*v = false;
		r->p += 5;
	} else {
		return bad(r, "true or false is expected");
	}
	return 0;
}

static int value(struct rd *r, struct config *c, const struct key *k)
{
	char *at = (char *)c + k->off, text[sizeof(c->image_aliases)]; /* the longest */
	int64_t v = 0;
	int rc;

	switch (k->kind) {
	case K_STR:
		rc = string(r, text, MIN(sizeof(text), (size_t)k->min));
		if (!rc)
			str_copy(at, (size_t)k->min, text); /* string() has checked the length */
		return rc;
	case K_BOOL:
		return boolean(r, (bool *)(void *)at);
	case K_INT:
		rc = integer(r, &v);
		if (rc < 0)
			return rc;
		if (v < k->min || v > k->max)
			return err_plain(r->e, EINVAL, "line %u: %s must be from %lld to %lld",
				r->line, k->name, (long long)k->min, (long long)k->max);
		memcpy(at, &v, sizeof(v));
		return 0;
	}
	return -EINVAL;
}

/* ---- keys */

#define KEYS_TABLE "server.keys."

static int key_new(struct rd *r, struct config *c, const char *name)
{
	if (c->nkeys == CONFIG_KEYS_MAX)
		return bad(r, "too many keys");
	if (!principal_name_ok(name))
		return bad(r, "the name of a key has 1 to 63 characters");
	for (unsigned int i = 0; i < c->nkeys; i++)
		if (!strcmp(c->keys[i].who.name, name))
			return bad(r, "two keys have this name");
	r->key = &c->keys[c->nkeys++];
	*r->key = (struct access_key){.who.role = ROLE_USER, .uid = -1};
	snprintf(r->key->who.name, sizeof(r->key->who.name), "%s", name);
	snprintf(r->key->who.namespace, sizeof(r->key->who.namespace), "%s", name);
	return 0;
}

static void key_is_operator(struct access_key *k)
{
	k->who.role = ROLE_OPERATOR;
	snprintf(k->who.namespace, sizeof(k->who.namespace), "%s", OPERATOR_NAMESPACE);
}

/* [server.api_keys] name = "key" */
static int api_key(struct rd *r, struct config *c, const char *name)
{
	if (key_new(r, c, name) < 0 || string(r, r->key->key, sizeof(r->key->key)) < 0)
		return -EINVAL;
	key_is_operator(r->key);
	return r->key->key[0] ? 0 : bad(r, "an empty key");
}

static int key_role(struct rd *r)
{
	char text[32];

	if (string(r, text, sizeof(text)) < 0)
		return -EINVAL;
	for (int role = ROLE_USER; role < ROLE_COUNT; role++) {
		if (strcmp(text, role_names[role]) != 0)
			continue;
		r->key->who.role = (enum role)role;
		if (role == ROLE_OPERATOR)
			key_is_operator(r->key);
		return 0;
	}
	return bad(r, "a role is user, peer or operator");
}

static int key_namespace(struct rd *r)
{
	char text[64];

	if (string(r, text, sizeof(text)) < 0)
		return -EINVAL;
	if (!principal_name_ok(text))
		return bad(r, "a namespace is of letters, digits, '-', '_' and '.'");
	memcpy(r->key->who.namespace, text, sizeof(text));
	return 0;
}

static int key_text(struct rd *r)
{
	if (string(r, r->key->key, sizeof(r->key->key)) < 0)
		return -EINVAL;
	return r->key->key[0] ? 0 : bad(r, "an empty key");
}

static int key_uid(struct rd *r)
{
	if (integer(r, &r->key->uid) < 0)
		return -EINVAL;
	return r->key->uid >= 0 && r->key->uid < UINT32_MAX
		       ? 0
		       : bad(r, "a user id is a number from 0 to 4294967294");
}

/* A row of [server.keys.NAME] */
static int key_field(struct rd *r, const char *name)
{
	static const struct {
		const char *name;
		int (*read)(struct rd *r);
	} fields[] = {{"key", key_text}, {"namespace", key_namespace}, {"role", key_role},
		{"uid", key_uid}};

	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		if (!strcmp(fields[i].name, name))
			return fields[i].read(r);
	return err_plain(r->e, EINVAL, "line %u: unknown key %s in [%s]", r->line, name, r->table);
}

static int path_list(struct rd *r, struct config *c)
{
	if (r->p == r->end || *r->p != '[')
		return bad(r, "a list in [ ] is expected");
	r->p++;
	for (;;) {
		while (r->p < r->end && strchr(" \t\r\n", *r->p))
			r->line += *r->p++ == '\n';
		if (r->p < r->end && *r->p == ']')
			break;
		if (c->nallowed_host_paths == CONFIG_PATHS_MAX)
			return bad(r, "too many paths");
		if (string(r, c->allowed_host_paths[c->nallowed_host_paths],
			    sizeof(c->allowed_host_paths[0])) < 0)
			return -EINVAL;
		c->nallowed_host_paths++;
		blanks(r);
		if (r->p < r->end && *r->p == ',')
			r->p++;
		else if (r->p == r->end || *r->p != ']')
			return bad(r, "a comma or ] is expected");
	}
	r->p++;
	return 0;
}

static int assignment(struct rd *r, struct config *c)
{
	char name[64];

	if (bare(r, name, sizeof(name), false) < 0)
		return -EINVAL;
	blanks(r);
	if (r->p == r->end || *r->p != '=')
		return bad(r, "'=' is missing");
	r->p++;
	blanks(r);
	if (!strcmp(r->table, "server.api_keys"))
		return api_key(r, c, name);
	if (!strncmp(r->table, KEYS_TABLE, strlen(KEYS_TABLE)))
		return key_field(r, name);
	if (!strcmp(r->table, "storage") && !strcmp(name, "allowed_host_paths"))
		return path_list(r, c);
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (!strcmp(keys[i].table, r->table) && !strcmp(keys[i].name, name))
			return value(r, c, &keys[i]);
	if (!strcmp(r->table, "server") && !strcmp(name, "insecure"))
		return bad(r, "server.insecure is gone: a daemon that others can reach needs a "
			      "key. Set server.api_key, or listen on loopback");
	return err_plain(r->e, EINVAL, "line %u: unknown key %s in [%s]", r->line, name, r->table);
}

static int table_head(struct rd *r, struct config *c)
{
	bool known;

	r->p++;
	if (bare(r, r->table, sizeof(r->table), true) < 0)
		return -EINVAL;
	if (r->p == r->end || *r->p != ']')
		return bad(r, "']' is missing");
	r->p++;
	if (!strncmp(r->table, KEYS_TABLE, strlen(KEYS_TABLE)))
		return key_new(r, c, r->table + strlen(KEYS_TABLE));
	known = !strcmp(r->table, "server.api_keys") || !strcmp(r->table, "storage");
	for (size_t i = 0; i < ARRAY_LEN(keys) && !known; i++)
		known = !strcmp(keys[i].table, r->table);
	return known ? 0
		     : err_plain(r->e, EINVAL, "line %u: unknown table [%s]", r->line, r->table);
}

int conf_parse(struct config *c, const char *text, size_t n, struct err *e)
{
	struct rd r = {.p = text, .end = text + n, .line = 1, .e = e};

	if (n > CONFIG_BYTES_MAX || (n && memchr(text, 0, n)))
		return err_plain(e, EINVAL, "not a configuration file");
	while (r.p < r.end) {
		int rc = 0;

		blanks(&r);
		if (r.p < r.end && *r.p == '[')
			rc = table_head(&r, c);
		else if (r.p < r.end && bare_char(*r.p))
			rc = assignment(&r, c);
		if (rc < 0 || end_of_line(&r) < 0)
			return -EINVAL;
	}
	return 0;
}

void conf_defaults(struct config *c)
{
	memset(c, 0, sizeof(*c));
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		char *at = (char *)c + keys[i].off;
		int64_t v = strtoll(keys[i].dflt, NULL, 10);

		if (keys[i].kind == K_STR)
			str_copy(at, (size_t)keys[i].min, keys[i].dflt);
		else if (keys[i].kind == K_BOOL)
			*(bool *)(void *)at = keys[i].dflt[0] == 't';
		else
			memcpy(at, &v, sizeof(v));
	}
}

int conf_read(struct config *c, int fd, struct err *e)
{
	static char text[CONFIG_BYTES_MAX + 1];
	size_t n = 0;
	ssize_t k = 0;

	while (n < sizeof(text) && (k = read(fd, text + n, sizeof(text) - n)) > 0)
		n += (size_t)k;
	/* A failed read (the path is a folder) must not count as an empty file: that is all defaults, and no key. */
	if (n < sizeof(text) && k < 0)
		return err_set(e, errno, "read");
	return conf_parse(c, text, n, e);
}

int conf_load(struct config *c, const char *path, struct err *e)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return err_set(e, errno, "open %s", path);
	return conf_read(c, fd, e) < 0 ? err_wrap(e, "%s", path) : 0;
}

static bool only_at_start(const char *table, const char *name)
{
	static const struct {
		const char *table, *name;
	} keys_at_start[] = {
		{"server", "host"},
		{"server", "port"},
		{"server", "socket"},
		{"server", "max_connections"},
		{"server", "max_connections_per_address"},
		{"server", "header_timeout_seconds"},
		{"server", "body_timeout_seconds"},
		{"server", "idle_timeout_seconds"},
		{"server", "write_timeout_seconds"},
		{"server", "log_json"},
		{"runtime", "state_dir"},
		{"runtime", "run_dir"},
		{"runtime", "bin_dir"},
		{"runtime", "kernel"},
		{"runtime", "initrd"},
		{"runtime", "no_jail"},
		{"runtime", "weaker_jail"},
		/* an image template was taken with the network device, or without it */
		{"network", "enabled"},
		{"ingress", "mode"},
		{"ingress", "host"},
		{"ingress", "port"},
		{"ingress", "max_connections"},
		{"ingress", "max_connections_per_address"},
		{"debug", "faults"},
	};

	for (size_t i = 0; i < ARRAY_LEN(keys_at_start); i++)
		if (!strcmp(keys_at_start[i].table, table) && !strcmp(keys_at_start[i].name, name))
			return true;
	return false;
}

void conf_take(struct config *now, const struct config *next,
	void (*kept)(void *arg, const char *table, const char *name), void *arg)
{
	static const size_t sizes[] = {[K_INT] = sizeof(int64_t), [K_BOOL] = sizeof(bool)};

	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		char *to = (char *)now + keys[i].off;
		const char *from = (const char *)next + keys[i].off;
		size_t n = keys[i].kind == K_STR ? (size_t)keys[i].min : sizes[keys[i].kind];

		if (keys[i].kind == K_STR ? !strcmp(to, from) : !memcmp(to, from, n))
			continue;
		if (!only_at_start(keys[i].table, keys[i].name))
			memcpy(to, from, n);
		else if (kept)
			kept(arg, keys[i].table, keys[i].name);
	}
	memcpy(now->keys, next->keys, sizeof(now->keys));
	now->nkeys = next->nkeys;
	memcpy(now->allowed_host_paths, next->allowed_host_paths, sizeof(now->allowed_host_paths));
	now->nallowed_host_paths = next->nallowed_host_paths;
}

static bool is_loopback(const char *host)
{
	return !*host || !strncmp(host, "127.", 4) || !strcmp(host, "::1") ||
	       !strcmp(host, "localhost");
}

bool conf_has_key(const struct config *c)
{
	bool any = c->api_key[0];

	for (unsigned int i = 0; i < c->nkeys; i++)
		any = any || c->keys[i].key[0];
	return any;
}

bool conf_has_tenants(const struct config *c)
{
	for (unsigned int i = 0; i < c->nkeys; i++)
		if (c->keys[i].who.role != ROLE_OPERATOR)
			return true;
	return false;
}

static bool key_is_used_before(const struct config *c, unsigned int n)
{
	if (!c->keys[n].key[0])
		return false;
	for (unsigned int i = 0; i < n; i++)
		if (!strcmp(c->keys[i].key, c->keys[n].key))
			return true;
	return !strcmp(c->api_key, c->keys[n].key);
}

static int keys_check(const struct config *c, struct err *e)
{
	for (unsigned int i = 0; i < c->nkeys; i++) {
		const struct access_key *k = &c->keys[i];
		bool theirs = !strcmp(k->who.namespace, OPERATOR_NAMESPACE);

		if (!k->key[0] && k->uid < 0)
			return err_plain(e, EINVAL, "server.keys.%s: set key, or uid", k->who.name);
		if (theirs != (k->who.role == ROLE_OPERATOR))
			return err_plain(e, EINVAL,
				"server.keys.%s: operators, and nobody else, are in the namespace "
				"\"" OPERATOR_NAMESPACE "\". Set another namespace or role",
				k->who.name);
		if (key_is_used_before(c, i))
			return err_plain(e, EINVAL, "server.keys.%s: another name has the same key",
				k->who.name);
	}
	return 0;
}

bool conf_has_gateway(const struct config *c)
{
	return !strcmp(c->ingress_mode, "gateway");
}

static bool is_one_of(const char *word, const char *const *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(word, words[i]))
			return true;
	return false;
}

static int ingress_check(const struct config *c, struct err *e)
{
	static const char *const modes[] = {"direct", "gateway"}, *const routes[] = {"wildcard",
									  "uri", "header"};
	bool wildcard = !strcmp(c->ingress_route, "wildcard");

	if (!is_one_of(c->ingress_mode, modes, ARRAY_LEN(modes)))
		return err_plain(
			e, EINVAL, "ingress.mode: %s is none of direct, gateway", c->ingress_mode);
	if (!is_one_of(c->ingress_route, routes, ARRAY_LEN(routes)))
		return err_plain(e, EINVAL,
			"ingress.gateway.route.mode: %s is none of wildcard, uri, header",
			c->ingress_route);
	if (!conf_has_gateway(c))
		return 0;
	if (wildcard != !strncmp(c->ingress_address, "*.", 2) ||
		c->ingress_address[strcspn(c->ingress_address, " /\t")])
		return err_plain(e, EINVAL,
			"ingress.gateway.address: %s must be HOST[:PORT], with \"*.\" in front if "
			"and "
			"only if the route mode is wildcard",
			c->ingress_address);
	if (!is_loopback(c->ingress_host) && !conf_has_key(c))
		return err_plain(e, EINVAL,
			"ingress.host %s is reachable from outside and there is no key: set "
			"server.api_key",
			c->ingress_host);
	/* Every connection comes from the proxy's address: all clients together would have the limit of one address. */
	if (c->ingress_behind_proxy && c->ingress_max_connections_per_address)
		return err_plain(e, EINVAL,
			"ingress.max_connections_per_address: %lld would limit the proxy, which is "
			"the "
			"only address behind ingress.behind_proxy: set it to 0, and limit "
			"addresses in the proxy",
			(long long)c->ingress_max_connections_per_address);
	return 0;
}

/* A deny target that cannot be parsed would deny nothing. */
static int network_check(const struct config *c, struct err *e)
{
	const char *const lists[] = {c->network_allow, c->network_deny};

	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		char text[sizeof(c->network_deny)], *save = NULL;

		str_copy(text, sizeof(text), lists[i]);
		for (char *w = strtok_r(text, " \t,", &save); w;
			w = strtok_r(NULL, " \t,", &save)) {
			struct net_rule r = {.allow = true};

			if (net_rule_target(w, &r, e) < 0)
				return err_wrap(e, "network.%s", i ? "deny" : "allow");
		}
	}
	return 0;
}

int conf_check(const struct config *c, struct err *e)
{
	static const char *const levels[] = {"error", "warn", "info", "debug", "trace"};
	bool level = false;

	for (size_t i = 0; i < ARRAY_LEN(levels); i++)
		level = level || !strcmp(levels[i], c->log_level);
	if (!level)
		return err_plain(e, EINVAL,
			"server.log_level: %s is none of error, warn, info, debug, trace",
			c->log_level);
	if (!is_loopback(c->host) && !conf_has_key(c))
		return err_plain(e, EINVAL,
			"server.host %s is reachable from outside and there is no key: set "
			"server.api_key",
			c->host);
	if (!*c->host && !*c->socket)
		return err_plain(
			e, EINVAL, "server.host and server.socket are empty: set one of them");
	if (*c->socket && *c->socket != '/')
		return err_plain(e, EINVAL, "server.socket must be an absolute path");
	if (keys_check(c, e) < 0)
		return -EINVAL;
	if (*c->host && conf_has_tenants(c) && !conf_has_key(c))
		return err_plain(e, EINVAL,
			"server.keys: all of them are user ids, which only the socket shows. Set "
			"server.host = \"\", or a key");
	if (c->state_dir[0] != '/' || c->run_dir[0] != '/')
		return err_plain(
			e, EINVAL, "runtime.state_dir and runtime.run_dir must be absolute paths");
	if (strcmp(c->line_endings, "auto") != 0 && strcmp(c->line_endings, "keep") != 0 &&
		strcmp(c->line_endings, "strip") != 0)
		return err_plain(e, EINVAL, "server.line_endings: %s is none of auto, keep, strip",
			c->line_endings);
	if (hardening_check(c, e) < 0 || ingress_check(c, e) < 0 || network_check(c, e) < 0)
		return -EINVAL;
	for (unsigned int i = 0; i < c->nallowed_host_paths; i++)
		if (c->allowed_host_paths[i][0] != '/')
			return err_plain(e, EINVAL,
				"storage.allowed_host_paths: %s is not absolute",
				c->allowed_host_paths[i]);
	return 0;
}

char *conf_example(const char *api_key)
{
	char *out = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&out, &n);
	const char *table = "";

	if (!f)
		return NULL;
	fputs("# Configuration of mayflyd. The values shown are the defaults, except for the "
	      "key.\n",
		f);
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		const struct key *k = &keys[i];
		bool is_key = k->off == AT(api_key);

		if (strcmp(table, k->table) != 0)
			fprintf(f, "\n[%s]\n", table = k->table);
		if (k->help[0])
			fprintf(f, "# %s\n", k->help);
		fprintf(f, k->kind == K_STR ? "%s = \"%s\"\n" : "%s = %s\n", k->name,
			is_key ? api_key : k->dflt);
	}
	fputs("\n[storage]\n# Host folders that volumes may use. Empty: none\nallowed_host_paths = "
	      "[]\n",
		f);
	fputs("\n# Each key sees the sandboxes, snapshots and templates of its namespace.\n"
	      "# role: user; operator (sees all); peer (may choose the ids of its sandboxes)\n"
	      "# [server.keys.ci]\n# key = \"a long random string\"\n# namespace = \"ci\"\n# role "
	      "= "
	      "\"user\"\n# uid = 1000    # known by its user id on server.socket\n",
		f);
	return fclose(f) ? (free(out), NULL) : out;
}
