/* SPDX-License-Identifier: Apache-2.0
 *
 * create_request.h: a checked create request, and an answer that refuses one. The parser is api/lifecycle/spec.c;
 * the other rooms need the data only. mayflyd's loop.
 */
#pragma once

#include "lib/base.h"

struct cJSON;

/* an answer that refuses: status, code, message */
struct refusal {
	int status;
	const char *code;
	char msg[400];
};
/* returns -EINVAL, for `return refuse(...)` */
int refuse(struct refusal *x, int status, const char *code, const char *fmt, ...) _printf_(4, 5);

enum source { SRC_IMAGE, SRC_SNAPSHOT, SRC_TEMPLATE, SRC_FORK };

struct spec {
	enum source source;
	char *image, *snapshot_id, *template_id;
	char *deny_webhook;              /* a URL that api/network/webhook.h takes; NULL: none */
	char *pool;                      /* its machine came from this pool; NULL: from none */
	char *auth_user, *auth_password; /* never stored */
	bool has_timeout, has_entrypoint, has_env, secure_access;
	uint64_t timeout_s;
	uint32_t cpu_millis, vcpus;
	uint64_t memory_bytes;
	/* owned; NULL if absent */
	struct cJSON *env, *metadata, *entrypoint, *extensions, *platform, *lifecycle;
	struct cJSON *idle;           /* lifecycle.idlePolicy */
	struct cJSON *network_policy; /* as api/network/egress_policy.h keeps it */
	struct cJSON *volumes;        /* as api/volumes/volume_request.h keeps them */
	uint32_t renew_s;             /* access.renew.extend.seconds; 0 = none */
};

void spec_fini(struct spec *s);
/* Wipes the credentials for the image's registry. They are not needed once the image is there. */
void spec_forget_credentials(struct spec *s);
