/* SPDX-License-Identifier: Apache-2.0
 *
 * The input of a run (POST /v1/mayfly/runs) with its schemas, and what a task printed against the schema of its output. The first byte chooses; of a
 * schema and a value the schema comes first, and a NUL ends it.
 */
#include <cjson/cJSON.h>
#include <string.h>

#include "api/core/config.h"
#include "api/fleet/schema.h"
#include "api/fleet/worker_task.h"
#include "lib/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void schema_and_value(const uint8_t *p, size_t n)
{
	_cleanup_json_ cJSON *schema = NULL, *value = NULL;
	const uint8_t *end = memchr(p, 0, n);
	struct err e = {0};
	size_t len = end ? (size_t)(end - p) : n;
	int rc;

	if (json_read(&schema, p, len, JSON_OBJECT | JSON_ARRAY, NULL) < 0 ||
		schema_check(schema, "schema", &e) < 0 || !end)
		return;
	if (json_read(&value, end + 1, n - len - 1, JSON_OBJECT | JSON_ARRAY, NULL) < 0)
		return;
	rc = schema_match(schema, value, "value", &e);
	ASSERT(rc == 0 || ((rc == -EINVAL || rc == -E2BIG) && *e.msg));
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static struct config c;
	struct worker_task t;
	struct err e = {0};

	if (!n)
		return 0;
	if (!c.runs_max_attempts)
		conf_defaults(&c);
	if (p[0] & 1) {
		schema_and_value(p + 1, n - 1);
		return 0;
	}
	if (worker_task_read(&t, p + 1, n - 1, &c, &e) == 0) {
		/* what was accepted keeps its promises */
		ASSERT(*t.run_id && *t.task && t.context && t.create && t.argc >= 1);
		ASSERT(t.argc == 1 || !t.shell);
		ASSERT(t.timeout_s >= 1 && t.attempts >= 1 && t.attempts <= WORKER_ATTEMPT_MAX);
		ASSERT(strlen(t.task) <= WORKER_TEXT_MAX && strlen(t.context) <= WORKER_TEXT_MAX);
	} else {
		ASSERT(*e.msg);
	}
	worker_task_fini(&t);
	return 0;
}
