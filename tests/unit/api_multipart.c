/* SPDX-License-Identifier: Apache-2.0
 *
 * api_multipart: the upload reader, with every way to cut the input.
 */
#include "lib/test.h"

#include "api/http/multipart.h"

#define CT "multipart/form-data; boundary=XyZ"

/* Runs the whole input in pieces; the events as text: P(name,filename) D... E */
static void run(const char *ct, const char *in, size_t n, size_t piece, char *out, size_t cap)
{
	struct multipart m;
	size_t o = 0;

	out[0] = 0;
	if (multipart_init(&m, ct)) {
		snprintf(out, cap, "init");
		return;
	}
	for (size_t i = 0; i < n; i += piece) {
		/* a copy of exactly this piece, so that a sanitizer sees a read past it */
		size_t left = MIN(piece, n - i), len = 0;
		uint8_t *copy = malloc(left);
		const uint8_t *p = copy, *data = NULL;
		enum multipart_ev ev;

		memcpy(copy, in + i, left);
		do {
			ev = multipart_next(&m, &p, &left, &data, &len);
			if (ev == MP_PART)
				o += (size_t)snprintf(out + o, cap - o, "P(%s,%s)", m.name,
					m.has_filename ? m.filename : "-");
			else if (ev == MP_DATA)
				for (size_t k = 0; k < len && o + 2 < cap; k++)
					out[o++] = data[k] == '\r'   ? 'r'
						   : data[k] == '\n' ? 'n'
								     : (char)data[k];
			else if (ev == MP_END)
				o += (size_t)snprintf(out + o, cap - o, "E ");
			else if (ev == MP_DONE)
				o += (size_t)snprintf(out + o, cap - o, "DONE");
			else if (ev == MP_BAD)
				o += (size_t)snprintf(out + o, cap - o, "BAD");
			out[o] = 0;
		} while (ev != MP_MORE && ev != MP_BAD);
		free(copy);
		if (ev == MP_BAD)
			break;
	}
	multipart_fini(&m);
}

static void every_cut(const char *ct, const char *in, const char *want)
{
	char got[1024];
	size_t n = strlen(in);

	for (size_t piece = 1; piece <= n; piece++) {
		run(ct, in, n, piece, got, sizeof(got));
		CHECK_STR(got, want);
	}
}

static void parts_come_whole_however_cut(void)
{
	every_cut(CT,
		"--XyZ\r\nContent-Disposition: form-data; name=\"metadata\"; "
		"filename=\"metadata\"\r\n"
		"Content-Type: application/json\r\n\r\n{\"path\":\"/a\"}\r\n--XyZ\r\n"
		"content-disposition: form-data; filename=\"b \\\"q\\\".txt\"; "
		"name=file\r\n\r\nhello\r\n\r\n--Xy\r\n--XyQ-\r\r\n--XyZ--\r\nepilogue",
		"P(metadata,metadata){\"path\":\"/a\"}E P(file,b \"q\".txt)hellornrn--Xyrn--XyQ-rE "
		"DONE");
}

static void empty_bodies_and_preambles(void)
{
	every_cut("multipart/form-data; charset=x; boundary=\"XyZ\"",
		"preamble\r\n--XyZ  \r\nA: b\r\n\r\n\r\n--XyZ\r\nContent-Disposition: form-data; "
		"name=x\r\n\r\n--XyZ--",
		"P(,-)E P(x,-)E DONE");
	/* a body that begins like a delimiter without being one */
	every_cut(CT, "--XyZ\r\nA: b\r\n\r\n--XyQ\r\n--XyZ--", "P(,-)--XyQE DONE");
	every_cut(CT, "--XyZ\r\n\r\nno headers\r\n--XyZ--", "P(,-)no headersE DONE");
	every_cut(CT, "--XyZ--", "DONE");
}

static void broken_ones_end(void)
{
	char got[64], big[20000];

	every_cut(CT, "--XyZjunk", "BAD");
	every_cut(CT, "--XyZ-x", "BAD");
	every_cut(CT, "--XyZ\rx", "BAD");
	memset(big, 'a', sizeof(big));
	run(CT, big, sizeof(big), 100, got, sizeof(got));
	CHECK_STR(got, "BAD");
	memcpy(big, "--XyZ\r\n", 7);
	run(CT, big, sizeof(big), 100, got, sizeof(got));
	CHECK_STR(got, "BAD");
	run("multipart/form-data", "x", 1, 1, got, sizeof(got));
	CHECK_STR(got, "init");
	run("text/plain; boundary=x", "x", 1, 1, got, sizeof(got));
	CHECK_STR(got, "init");
	run("multipart/form-data; boundary=", "x", 1, 1, got, sizeof(got));
	CHECK_STR(got, "init");
	run(NULL, "x", 1, 1, got, sizeof(got));
	CHECK_STR(got, "init");
	memset(big, 'b', 100);
	memcpy(big, "multipart/form-data; boundary=", 30);
	big[101] = 0;
	run(big, "x", 1, 1, got, sizeof(got));
	CHECK_STR(got, "init");
}

static const struct test tests[] = {
	{"parts_come_whole_however_cut", parts_come_whole_however_cut},
	{"empty_bodies_and_preambles", empty_bodies_and_preambles},
	{"broken_ones_end", broken_ones_end},
};
TEST_MAIN(tests)
