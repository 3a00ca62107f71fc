/* SPDX-License-Identifier: Apache-2.0
 *
 * registry.c: the distribution protocol's reading half: authentication, manifests, blobs. Runs in a
 * pull job; the registry is hostile. Everything it sends is hashed and compared before it gets a
 * name in the folder. Credentials live in this process's memory only.
 */
#include "images/pull/registry.h"
#include "images/pull/web.h"
#include "images/pull/pull_int.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define MANIFEST_TYPES                                                                             \
	"application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, "    \
	"application/vnd.docker.distribution.manifest.v2+json, "                                   \
	"application/vnd.docker.distribution.manifest.list.v2+json"

/* ---- authentication ---- */

bool challenge_field(const char *challenge, const char *key, char *to, size_t cap)
{
	const char *p = challenge;
	size_t k = strlen(key), n;

	while ((p = strcasestr(p, key))) {
		bool begins = p > challenge && (p[-1] == ' ' || p[-1] == ',');

		p += k;
		if (!begins || p[0] != '=' || p[1] != '"')
			continue;
		n = strcspn(p + 2, "\"");
		if (p[2 + n] != '"' || n >= cap)
			return false;
		memcpy(to, p + 2, n);
		to[n] = 0;
		return true;
	}
	return false;
}

static void add_query(struct buf *url, bool *first, const char *key, const char *value)
{
	buf_printf(url, "%c%s=", *first ? '?' : '&', key);
	*first = false;
	for (const unsigned char *p = (const unsigned char *)value; *p; p++) {
		if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
			(*p >= '0' && *p <= '9') || strchr("-._~", *p))
			buf_u8(url, *p);
		else
			buf_printf(url, "%%%02X", *p);
	}
}

static int fetch_token(struct source *s, struct web *h, const char *challenge, struct err *e)
{
	char realm[1024], service[256] = "", scope[512] = "";
	_cleanup_(json_freep) cJSON *j = NULL;
	struct web_reply reply;
	const char *token;
	struct buf url, body;
	bool first;
	int r;

	if (!challenge_field(challenge, "realm", realm, sizeof(realm)))
		return err_plain(e, EACCES, "%s: asks for a token, but does not say from where",
			s->base.url);
	if (strncmp(realm, "https://", 8) != 0 && !(s->plain && strncmp(realm, "http://", 7) == 0))
		return err_plain(e, EACCES, "%s: token service without TLS", s->base.url);
	challenge_field(challenge, "service", service, sizeof(service));
	if (!challenge_field(challenge, "scope", scope, sizeof(scope)))
		snprintf(scope, sizeof(scope), "repository:%s:pull", s->repo);
	buf_init(&url, 8192);
	buf_init(&body, MIB(1));
	buf_printf(&url, "%s", realm);
	first = !strchr(realm, '?');
	if (*service)
		add_query(&url, &first, "service", service);
	add_query(&url, &first, "scope", scope);
	r = web_get_buf(h,
		&(struct web_request){.url = buf_cstr(&url),
			.user = s->p->user,
			.password = s->p->password,
			.plain_ok = s->plain,
			.private_ok = s->private,
			.public_only = s->base.flags & JOB_REG_PUBLIC_ONLY,
			.elsewhere = true},
		&body, &reply, e);
	if (r == 0 && reply.status != 200)
		r = err_plain(e, EACCES, "%s: token service says %ld", s->base.url, reply.status);
	j = r == 0 ? json_parse(body.p, body.len, e) : NULL;
	token = json_str(j, "token") ? json_str(j, "token") : json_str(j, "access_token");
	if (r == 0 && (!token || strlen(token) + 8 >= sizeof(s->authorization)))
		r = err_plain(e, EACCES, "%s: token service sends no token", s->base.url);
	else if (r == 0)
		snprintf(s->authorization, sizeof(s->authorization), "Bearer %s", token);
	buf_fini(&url);
	buf_fini(&body);
	return r;
}

/* Does what a 401 asks for. The caller then tries again. */
static int authenticate(
	struct source *s, struct web *h, const struct web_reply *reply, struct err *e)
{
	if (strncasecmp(reply->challenge, "bearer ", 7) == 0 && !s->p->token[0])
		return fetch_token(s, h, reply->challenge, e);
	if (strncasecmp(reply->challenge, "basic", 5) == 0 && s->p->user[0] && !s->basic) {
		s->basic = true;
		return 0;
	}
	return err_plain(e, EACCES, "%s: %s", s->base.url,
		s->p->user[0] || s->p->token[0] ? "credentials refused" : "credentials are needed");
}

/* One GET below /v2/REPO/, with whatever authentication it takes. */
int source_get(struct source *s, struct web *h, const char *path, const char *accept,
	struct web_request *q, struct web_reply *reply, struct err *e)
{
	char url[1536];

	snprintf(url, sizeof(url), "%s/v2/%s/%s", s->base.url, s->repo, path);
	for (int turn = 0;; turn++) {
		char auth[sizeof(s->authorization)];
		int r;

		pthread_mutex_lock(&s->lock);
		memcpy(auth, s->authorization, sizeof(auth));
		q->user = s->basic ? s->p->user : NULL;
		q->password = s->basic ? s->p->password : NULL;
		pthread_mutex_unlock(&s->lock);
		q->url = url;
		q->accept = accept;
		q->authorization = auth[0] ? auth : NULL;
		q->plain_ok = s->plain;
		q->private_ok = s->private;
		q->public_only = s->base.flags & JOB_REG_PUBLIC_ONLY;
		r = web_get(h, q, reply, e);
		explicit_bzero(auth, sizeof(auth));
		if (r < 0)
			return r;
		pthread_mutex_lock(&s->lock);
		s->private |= reply->peer_private;
		pthread_mutex_unlock(&s->lock);
		if (reply->status == 200 || reply->status == 206)
			return 0;
		/* no credentials for a host to which the registry redirected */
		if (reply->status == 401 && turn < 2 && !reply->redirected) {
			pthread_mutex_lock(&s->lock);
			r = authenticate(s, h, reply, e);
			pthread_mutex_unlock(&s->lock);
			if (r < 0)
				return r;
			continue;
		}
		return err_plain(e,
			reply->status == 404                           ? ENOENT
			: reply->status == 401 || reply->status == 403 ? EACCES
								       : EIO,
			"%.200s: the registry says %ld", url, reply->status);
	}
}

/* ---- manifests ---- */

static int to_doc(void *arg, const void *p, size_t n)
{
	struct buf *b = arg;

	buf_put(b, p, n);
	return b->bad ? -EFBIG : 0; /* get_document() reports it */
}

/* Fetches and stages a manifest or an index. want: the digest that it must have; NULL: `which` is a tag. */
static int get_document(struct source *s, struct web *h, const char *which,
	const struct digest *want, struct buf *doc, struct blob *out, struct err *e)
{
	struct web_request q = {.body = to_doc, .arg = doc};
	struct web_reply reply;
	char path[256];
	int r;

	buf_reset(doc);
	snprintf(path, sizeof(path), "manifests/%s", which);
	r = source_get(s, h, path, MANIFEST_TYPES, &q, &reply, e);
	if (doc->bad)
		r = err_plain(e, EFBIG, "manifest %.19s: more than %llu bytes", which,
			(unsigned long long)IMAGE_MAX_MANIFEST);
	if (r == 0)
		r = stage_put(s->p->job->stage, doc->p, doc->len, out, e);
	if (r == 0 && want && !digest_eq(want, &out->d)) {
		char have[DIGEST_STR];

		r = err_plain(e, EBADMSG, "manifest %.19s: what came has the digest %s", which,
			digest_str(&out->d, have));
	}
	if (r == 0 && blob_list_add(&s->p->blobs, out) < 0)
		r = err_set(e, ENOMEM, "manifest");
	return r;
}

/* From a reference to the manifest for the platform wanted, through at most two indexes. */
static int find_manifest(struct source *s, struct web *h, const struct image_ref *ref,
	struct oci_manifest *m, struct err *e)
{
	char which[DIGEST_STR > sizeof(ref->tag) ? DIGEST_STR : sizeof(ref->tag)];
	struct digest want = ref->digest;
	bool by_digest = ref->has_digest;
	struct blob got;
	struct buf doc;
	int r = 0;

	buf_init(&doc, IMAGE_MAX_MANIFEST);
	for (int depth = 0; r == 0; depth++) {
		const struct descriptor *pick;
		struct oci_index ix;
		enum media kind;

		if (by_digest)
			digest_str(&want, which);
		else
			snprintf(which, sizeof(which), "%s", ref->tag);
		r = get_document(s, h, which, by_digest ? &want : NULL, &doc, &got, e);
		if (r < 0)
			break;
		kind = oci_document_kind(doc.p, doc.len, e);
		if (kind == MEDIA_MANIFEST) {
			r = oci_manifest_parse(doc.p, doc.len, m, e);
			s->p->manifest = got.d;
			break;
		}
		if (kind != MEDIA_INDEX || depth == 2) {
			r = e->code ? -e->code : err_plain(e, ENOTSUP, "%s is not an image", which);
			break;
		}
		r = oci_index_parse(doc.p, doc.len, &ix, e);
		if (r < 0)
			break;
		r = oci_index_pick(&ix, &s->p->platform, &pick, e);
		if (r == 0) {
			want = pick->digest;
			by_digest = true;
		}
		oci_index_fini(&ix);
	}
	buf_fini(&doc);
	return r;
}

/* ---- where to ask ---- */

/* The whole name counts, not how it begins: anybody can own 127.example.org. */
bool registry_is_loopback(const char *registry)
{
	char host[256];
	struct in_addr a;
	size_t n = *registry == '[' ? strcspn(registry, "]") + 1 : strcspn(registry, ":");

	snprintf(host, sizeof(host), "%.*s", (int)n, registry);
	return strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
	       (inet_pton(AF_INET, host, &a) == 1 && ntohl(a.s_addr) >> 24 == 127);
}

static void own_base(const struct image_ref *ref, struct pull_base *b)
{
	bool local = registry_is_loopback(ref->registry);

	*b = (struct pull_base){.flags = local ? JOB_REG_PLAIN_HTTP | JOB_REG_PRIVATE_OK : 0};
	snprintf(b->registry, sizeof(b->registry), "%s", ref->registry);
	snprintf(b->url, sizeof(b->url), "%s://%s", local ? "http" : "https",
		strcmp(ref->registry, REF_REGISTRY_DEF) == 0 ? "registry-1.docker.io"
							     : ref->registry);
}

static int pull_from(
	struct pull *p, const struct image_ref *ref, const struct pull_base *base, struct err *e)
{
	struct source s = {.p = p, .base = *base, .lock = PTHREAD_MUTEX_INITIALIZER};
	struct web *h = web_create(p->lim.stall_s, e);
	struct oci_manifest m;
	int r;

	if (!h)
		return -e->code;
	snprintf(s.repo, sizeof(s.repo), "%s", ref->repo);
	s.plain = base->flags & JOB_REG_PLAIN_HTTP;
	s.private = base->flags & JOB_REG_PRIVATE_OK;
	if (p->token[0])
		snprintf(s.authorization, sizeof(s.authorization), "Bearer %.8000s", p->token);
	r = find_manifest(&s, h, ref, &m, e);
	if (r == 0) {
		r = pull_blobs(&s, &m, e);
		oci_manifest_fini(&m);
	}
	web_destroy(h);
	explicit_bzero(s.authorization, sizeof(s.authorization));
	return r;
}

/* Is this mirror the registry itself? Such a line of the configuration only says how to reach it (JOB_REG_*). */
static bool base_is_registry(const struct pull_base *b, const struct pull_base *own)
{
	const char *at = strstr(b->url, "://"), *host = strstr(own->url, "://");

	return at && host && strcmp(at, host) == 0;
}

int pull_run(struct pull *p, struct err *e)
{
	char before[200] = "";
	struct pull_base own;
	struct image_ref ref;
	int r = ref_parse(p->name, &ref, e);

	if (r < 0)
		return r;
	own_base(&ref, &own);
	for (unsigned int i = 0; i < p->nbases; i++) {
		const struct pull_base *b = &p->base[i];

		if (strcmp(b->registry, ref.registry) != 0)
			continue;
		*e = (struct err){0};
		r = pull_from(p, &ref, b, e);
		if (r == 0)
			return 0;
		if (r == -EPIPE || r == -ENOSPC || r == -EFBIG)
			return err_wrap(e, "image %s", p->name);
		if (base_is_registry(b, &own))
			return err_wrap(e, "image %s", p->name);
		snprintf(before, sizeof(before), ": %.180s; then", e->msg);
		p->blobs.n = 0;
	}
	*e = (struct err){0};
	r = pull_from(p, &ref, &own, e);
	return r < 0 ? err_wrap(e, "image %s%s", p->name, before) : 0;
}
