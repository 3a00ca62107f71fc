/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: mayfly-image, one process per job. Started by mayfly-priv as `mayfly-image --jail UID [--jail-net]`, by the command line as
 * `mayfly-image --job [--net]`. It reads hostile bytes all its life: before the first of them it has given up what it does not need.
 */
#include "images/job/job.h"
#include "images/job/seal.h"
#include "lib/log.h"
#include "lib/opt.h"

#include <curl/curl.h>
#include <locale.h>
#include <string.h>
#include <sys/stat.h>

static int usage(void)
{
	log_error("mayfly-image is started by mayflyd and by `mayfly image`: use `mayfly image`");
	return 2;
}

int main(int argc, char **argv)
{
	uint64_t uid = UINT64_MAX; /* the option was not given */
	bool net = false, job = false;
	const struct opt opts[] = {
		{"job", 0, OPT_FLAG, &job, NULL, "started by the command line"},
		{"net", 0, OPT_FLAG, &net, NULL, "the job pulls"},
		{"jail-net", 0, OPT_FLAG, &net, NULL, "the same, in a jail"},
		{"jail", 0, OPT_UINT, &uid, "UID", "the user to become"},
	};
	struct err e = {0};
	int rest;

	log_init("mayfly-image", 2, false);
	if (opt_parse(opts, ARRAY_LEN(opts), argc, argv, &rest, &e) < 0 || rest < argc ||
		uid == 0 || (uid >= UINT32_MAX && uid != UINT64_MAX))
		return usage();
	if (uid == UINT64_MAX && !job)
		return usage();
	if (uid == UINT64_MAX)
		uid = 0; /* no jail */
	/* libarchive hands names over in the locale's encoding: only UTF-8 has all of them */
	if (!setlocale(LC_CTYPE, "C.UTF-8"))
		log_warn("no UTF-8 locale: names beyond ASCII will be refused");
	if (net && curl_global_init(CURL_GLOBAL_DEFAULT) != 0)
		return 1;
	if (job_sandbox((uid_t)uid, net, &e) < 0) {
		log_error("%s", e.msg);
		return 1;
	}
	umask(0022); /* the daemon runs as another user, and reads what the job made */
	return job_main();
}
