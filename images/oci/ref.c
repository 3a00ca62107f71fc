/* SPDX-License-Identifier: Apache-2.0
 *
 * ref.c: the reference grammar of the distribution specification, with Docker's short forms. The text comes from API clients.
 */
#include "images/oci/ref.h"

#include <stdio.h>
#include <string.h>

static bool is_alnum(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static bool is_word(char c)
{
	return is_alnum(c) || (c >= 'A' && c <= 'Z') || c == '_';
}

/* [a-z0-9]+((.|_|__|-+)[a-z0-9]+)* */
static bool component_ok(const char *p, size_t n)
{
	size_t i = 0;

	if (n == 0)
		return false;
	while (i < n) {
		size_t sep = 0;

		if (!is_alnum(p[i]))
			return false;
		while (i < n && is_alnum(p[i]))
			i++;
		if (i == n)
			return true;
		while (i + sep < n && !is_alnum(p[i + sep]))
			sep++;
		if (p[i] == '-')
			for (size_t k = 0; k < sep; k++)
				if (p[i + k] != '-')
					return false;
		if (p[i] == '.' && sep != 1)
			return false;
		if (p[i] == '_' && (sep > 2 || (sep == 2 && p[i + 1] != '_')))
			return false;
		if (!strchr("-._", p[i]))
			return false;
		i += sep;
	}
	return false;
}

static bool repo_ok(const char *p)
{
	for (;;) {
		size_t n = strcspn(p, "/");

		if (!component_ok(p, n))
			return false;
		if (!p[n])
			return true;
		p += n + 1;
	}
}

/* A host name or address, perhaps [v6], perhaps with a port. */
static bool registry_ok(const char *p)
{
	const char *end = p;

	if (*p == '[') {
		end = strchr(p, ']');
		if (!end || (size_t)(end - p) < 3 ||
			strspn(p + 1, "0123456789abcdefABCDEF:.") != (size_t)(end - p - 1))
			return false;
		end++;
	} else {
		while (is_word(*end) || *end == '.' || *end == '-')
			end++;
		if (end == p || *p == '.' || *p == '-' || end[-1] == '-' || strstr(p, ".."))
			return false;
	}
	if (!*end)
		return true;
	return *end == ':' && end[1] && strlen(end + 1) <= 5 &&
	       strspn(end + 1, "0123456789") == strlen(end + 1);
}

static bool tag_ok(const char *p)
{
	if (!is_word(*p))
		return false;
	for (; *p; p++)
		if (!is_word(*p) && *p != '.' && *p != '-')
			return false;
	return true;
}

static bool names_registry(const char *first)
{
	return strpbrk(first, ".:[") || strcmp(first, "localhost") == 0;
}

int ref_parse(const char *text, struct image_ref *out, struct err *e)
{
	struct image_ref r = {0};
	char s[REF_MAX];
	const char *library;
	char *at, *slash, *colon, *repo = s;

	if (strlen(text) >= sizeof(s))
		return err_plain(e, EINVAL, "the image name has %zu bytes: at most %d",
			strlen(text), REF_MAX - 1);
	str_copy(s, sizeof(s), text); /* fits: measured above */
	at = strchr(s, '@');
	if (at) {
		*at++ = 0;
		if (digest_parse(at, &r.digest) < 0)
			return err_plain(e, EINVAL,
				"image name %.200s: the digest is not sha256:<64 hex digits>",
				text);
		r.has_digest = true;
	}
	slash = strchr(s, '/');
	if (slash) {
		*slash = 0;
		if (names_registry(s)) {
			if (strlen(s) >= sizeof(r.registry) || !registry_ok(s))
				return err_plain(
					e, EINVAL, "image name %.200s: malformed registry", text);
			str_copy(r.registry, sizeof(r.registry),
				strcmp(s, "index.docker.io") == 0 ? REF_REGISTRY_DEF : s);
			repo = slash + 1;
		} else {
			*slash = '/';
		}
	}
	colon = strrchr(repo, ':');
	if (colon) {
		*colon++ = 0;
		if (strlen(colon) >= sizeof(r.tag) || !tag_ok(colon))
			return err_plain(e, EINVAL, "image name %.200s: malformed tag", text);
		str_copy(r.tag, sizeof(r.tag), colon);
	}
	if (!repo_ok(repo))
		return err_plain(e, EINVAL, "image name %.200s: malformed", text);
	if (!r.registry[0])
		str_copy(r.registry, sizeof(r.registry), REF_REGISTRY_DEF);
	library = strcmp(r.registry, REF_REGISTRY_DEF) == 0 && !strchr(repo, '/') ? "library/" : "";
	/* the canonical form must fit, too, or it could not be read again */
	if (strlen(library) + strlen(repo) >= sizeof(r.repo) ||
		strlen(r.registry) + strlen(library) + strlen(repo) + strlen(r.tag) + 10 +
				(r.has_digest ? DIGEST_STR : 0) >=
			REF_MAX)
		return err_plain(e, EINVAL, "image name %.200s: too long", text);
	memcpy(r.repo, library, strlen(library));
	memcpy(r.repo + strlen(library), repo, strlen(repo) + 1);
	if (!r.tag[0] && !r.has_digest)
		str_copy(r.tag, sizeof(r.tag), "latest");
	*out = r;
	return 0;
}

static const char *join(
	const struct image_ref *r, const char *registry, const char *repo, char out[REF_MAX])
{
	char d[DIGEST_STR] = "";

	if (r->has_digest)
		digest_str(&r->digest, d);
	snprintf(out, REF_MAX, "%s%s%s%s%s%s%s", registry, *registry ? "/" : "", repo,
		r->tag[0] ? ":" : "", r->tag, *d ? "@" : "", d);
	return out;
}

const char *ref_canonical(const struct image_ref *r, char out[REF_MAX])
{
	return join(r, r->registry, r->repo, out);
}

/* docker.io's names only become shorter where the short form means the same: not "docker.io/a.b/c",
 * not "library/a/b". */
const char *ref_familiar(const struct image_ref *r, char out[REF_MAX])
{
	bool def = strcmp(r->registry, REF_REGISTRY_DEF) == 0;
	bool lib = def && strncmp(r->repo, "library/", 8) == 0 && !strchr(r->repo + 8, '/');
	char first[sizeof(r->repo)];

	snprintf(first, sizeof(first), "%s", r->repo);
	first[strcspn(first, "/")] = 0;
	if (def && !lib && (!strchr(r->repo, '/') || names_registry(first)))
		def = false;
	return join(r, def ? "" : r->registry, lib ? r->repo + 8 : r->repo, out);
}
