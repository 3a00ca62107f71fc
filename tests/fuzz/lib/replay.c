/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.c: main() of a fuzz target without libFuzzer: feeds it each file named, and nothing at all
 * once. Test code.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int main(int argc, char **argv)
{
	LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
	for (int i = 1; i < argc; i++) {
		_cleanup_close_ int fd = open(argv[i], O_RDONLY | O_CLOEXEC);
		_cleanup_free_ uint8_t *p = NULL;
		struct stat st;

		if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
			!(p = malloc((size_t)st.st_size + !st.st_size)) ||
			read_full(fd, p, (size_t)st.st_size) < 0) {
			fprintf(stderr, "%s: %s\n", argv[i], strerror(errno));
			return 1;
		}
		fprintf(stderr, "%s\n", argv[i]); /* the last one named is the one that broke it */
		LLVMFuzzerTestOneInput(p, (size_t)st.st_size);
	}
	printf("%d inputs\n", argc);
	return 0;
}
