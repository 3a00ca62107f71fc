/* SPDX-License-Identifier: Apache-2.0
 *
 * images_ref.c: image names, as a client may write them: what is accepted has one spelling, and that is accepted again.
 */
#include "images/oci/ref.h"
#include "lib/test.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	char text[1024], a[REF_MAX], b[REF_MAX];
	struct image_ref r, again;
	struct err e;

	if (n >= sizeof(text))
		return 0;
	memcpy(text, p, n);
	text[n] = 0;
	if (ref_parse(text, &r, &e) < 0)
		return 0;
	ref_canonical(&r, a);
	ASSERT(ref_parse(a, &again, &e) == 0);
	ASSERT(strcmp(a, ref_canonical(&again, b)) == 0);
	ref_familiar(&r, b);
	ASSERT(ref_parse(b, &again, &e) == 0);
	ASSERT(strcmp(a, ref_canonical(&again, b)) == 0);
	/* it becomes part of a URL's path */
	ASSERT(!strstr(r.repo, "..") && !strstr(r.repo, "//") && r.tag[0] != '.');
	return 0;
}
