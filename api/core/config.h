/* SPDX-License-Identifier: Apache-2.0
 *
 * config.h: the daemon's configuration: one TOML file, the reference server's key names where they mean the same. mayflyd. The file is
 * the administrator's: mistakes get a line number and a reason, unknown keys are refused.
 */
#pragma once

#include "api/core/principal.h"
#include "lib/err.h"

#define CONFIG_KEYS_MAX  32
#define CONFIG_PATHS_MAX 16

/* [server.keys.NAME]; also a row of [server.api_keys], which is an operator */
struct access_key {
	struct principal who;
	char key[256]; /* "": known by its user id only */
	int64_t uid;   /* on the Unix socket; -1: none */
};

struct config {
	/* [server] */
	char host[64], socket[108], eip[128], log_level[16], api_key[256];
	int64_t port, max_sandbox_timeout_seconds, max_connections, header_timeout_seconds,
		body_timeout_seconds, idle_timeout_seconds, backend_timeout_seconds;
	int64_t max_connections_per_address, write_timeout_seconds;
	bool log_json;
	char line_endings[8];
	struct access_key keys[CONFIG_KEYS_MAX];
	unsigned int nkeys;
	/* [runtime] */
	char state_dir[256], run_dir[96], bin_dir[256], kernel[256], initrd[256];
	bool no_jail, weaker_jail, templates, share_memory;
	int64_t create_timeout_seconds, step_timeout_seconds, resume_timeout_seconds,
		pending_after_seconds;
	int64_t blank_pool, template_max, template_retry_seconds, template_mib;
	/* [limits] */
	int64_t max_sandboxes, max_ended, ended_keep_seconds, memory_mib, cpu_overcommit, disk_mib,
		disk_reserve_mib, sandbox_disk_mib, disk_mib_per_second, disk_operations_per_second,
		max_vcpus, max_memory_mib, budget_mib, budget_key_mib, budget_sandbox_mib,
		own_api_connections;
	/* [network] */
	bool network_enabled;
	char network_allow[1024], network_deny[1024], network_resolvers[256];
	int64_t network_connections, network_connection_rate, network_query_rate, network_mbit,
		network_packets;
	/* [storage] */
	char allowed_host_paths[CONFIG_PATHS_MAX][256];
	unsigned int nallowed_host_paths;
	/* [isolation] */
	char isolation_allowed[512];
	/* [ingress], [ingress.gateway], [ingress.gateway.route], [ingress.secure_access] */
	char ingress_mode[16], ingress_host[64], ingress_address[192], ingress_route[16];
	char ingress_keys[1024], ingress_active_key[8];
	int64_t ingress_port, ingress_max_connections, ingress_max_connections_per_address;
	bool ingress_behind_proxy;
	/* [hardening], [landlock] */
	bool harden_caps, harden_seccomp, harden_no_new_privs, harden_required, landlock;
	char harden_keep[512], landlock_read[512], landlock_write[512];
	/* [renew_intent] */
	bool renew_enabled;
	int64_t renew_min_interval_seconds;
	/* [idle] */
	bool idle_enabled;
	int64_t idle_min_timeout_seconds, idle_activity_ttl_seconds, idle_disk_after_seconds;
	/* [runs] */
	int64_t runs_timeout_seconds, runs_max_timeout_seconds, runs_max_attempts, runs_max_running,
		runs_keep, runs_keep_seconds;
	/* [images] */
	char default_registry[128];
	char private_registries[1024], image_aliases[4096];
	bool insecure_registries, shared_store;
	/* [debug] */
	bool faults;
};

void conf_defaults(struct config *c);
/* text: the n bytes of the file. They are parsed as if they were hostile. 0 or -EINVAL; e names the line. */
int conf_parse(struct config *c, const char *text, size_t n, struct err *e);
int conf_load(struct config *c, const char *path, struct err *e);
int conf_read(struct config *c, int fd, struct err *e);
/* Copies from next to now the keys that may change while the daemon serves. Calls kept, which may be
 * NULL, for each other key that differs. */
void conf_take(struct config *now, const struct config *next,
	void (*kept)(void *arg, const char *table, const char *name), void *arg);
/* Finds well-formed values that are wrong, or that cannot work together. */
int conf_check(const struct config *c, struct err *e);
/* Is there an API key? Without one the daemon listens on loopback addresses only. */
bool conf_has_key(const struct config *c);
/* Do endpoints lead to the ingress gateway? */
bool conf_has_gateway(const struct config *c);
/* Are there keys that are not operators'? Then requests to sandboxes through this server's proxy need a key, too. */
bool conf_has_tenants(const struct config *c);
/* The text of a complete file with comments and this key, for init-config. The caller frees it. */
char *conf_example(const char *api_key);
