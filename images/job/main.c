/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: mayfly-image, one process per job. Started by mayfly-priv as `mayfly-image --jail UID [--jail-net]`, by the command line as
 * `mayfly-image --job [--net]`. It reads hostile bytes all its life: before the first of them it has given up what it does not need.
 */
#include "images/job/job.h"
#include "images/job/seal.h"
#include "lib/log.h"

#include <curl/curl.h>
#include <locale.h>
#include <string.h>
#include <sys/stat.h>

static int usage(void)
{
	log_error("mayfly-image is started by mayflyd and by `mayfly image`; see there");
	return 2;
}

int main(int argc, char **argv)
{
	unsigned long uid = 0;
	bool net = false, job = false;
	struct err e = {0};

	log_init("mayfly-image", 2, false);
	for (int i = 1; i < argc; i++) {
		char *end = NULL;

		if (strcmp(argv[i], "--job") == 0) {
			job = true;
		} else if (strcmp(argv[i], "--net") == 0 || strcmp(argv[i], "--jail-net") == 0) {
			net = true;
		} else if (strcmp(argv[i], "--jail") == 0 && i + 1 < argc) {
			uid = strtoul(argv[++i], &end, 10);
			if (*end || uid == 0 || uid >= UINT32_MAX)
				return usage();
			job = true;
		} else {
			return usage();
		}
	}
	if (!job)
		return usage();
	/* libarchive hands names over in the locale's encoding: UTF-8, or they could not all be
	 * said */
	if (!setlocale(LC_CTYPE, "C.UTF-8"))
		log_warn("no UTF-8 locale: names beyond ASCII will be refused");
	if (net && curl_global_init(CURL_GLOBAL_DEFAULT) != 0)
		return 1;
	if (job_sandbox(uid, net, &e) < 0) {
		log_error("%s", e.msg);
		return 1;
	}
	umask(0022); /* whoever wanted the job has another user, and reads what it made */
	return job_main();
}
