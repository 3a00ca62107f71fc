/* SPDX-License-Identifier: Apache-2.0
 *
 * images_manifest.c: everything that arrives as JSON: indexes, manifests, configurations, image.json. The first byte says which; what is
 * accepted is used as the program would use it.
 */
#include "images/oci/image_config.h"

#include <string.h>
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void try_config(const uint8_t *p, size_t n)
{
	struct image_config c, again;
	struct digest *diff = NULL;
	uint8_t text[65536];
	struct err e;
	ssize_t k;
	int fd;

	if (image_config_from_oci(p, n, 1, &c, &diff, &e) < 0) {
		free(diff);
		return;
	}
	memset(c.disk.uuid, 'u', 36);
	fd = memfd_create("image.json", MFD_CLOEXEC);
	if (image_config_write(&c, fd, &e) == 0 && (k = pread(fd, text, sizeof(text), 0)) > 0 &&
		k < (ssize_t)sizeof(text)) {
		ASSERT(image_config_read(text, (size_t)k, &again, &e) == 0);
		image_config_fini(&again);
	}
	close(fd);
	free(diff);
	image_config_fini(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	const struct descriptor *pick;
	struct image_config c;
	struct oci_manifest m;
	struct oci_index ix;
	struct platform want;
	struct err e;

	if (n < 1)
		return 0;
	platform_host(&want);
	switch (*p % 4) {
	case 0:
		if (oci_index_parse(p + 1, n - 1, &ix, &e) == 0) {
			if (oci_index_pick(&ix, &want, &pick, &e) == 0)
				ASSERT(pick >= ix.d && pick < ix.d + ix.n);
			oci_index_fini(&ix);
		}
		break;
	case 1:
		if (oci_manifest_parse(p + 1, n - 1, &m, &e) == 0) {
			ASSERT(m.n <= IMAGE_MAX_LAYERS);
			oci_manifest_fini(&m);
		}
		break;
	case 2:
		try_config(p + 1, n - 1);
		break;
	default:
		if (image_config_read(p + 1, n - 1, &c, &e) == 0)
			image_config_fini(&c);
		oci_document_kind(p + 1, n - 1, &e);
	}
	return 0;
}
