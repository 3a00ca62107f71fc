/* SPDX-License-Identifier: Apache-2.0
 *
 * guesses.c: see guesses.h.
 */
#include "api/ingress/guesses.h"

#include <arpa/inet.h>
#include <string.h>

#define SEC 1000000000ull

struct rate {
	uint32_t burst, per_second;
};
static const struct rate of_address = {30, 1}, of_sandbox = {1000, 100};

void guesses_init(struct guesses *g)
{
	memset(g, 0, sizeof(*g));
	random_bytes(&g->seed, sizeof(g->seed));
}

static uint64_t hash_more(uint64_t h, const void *p, size_t n)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < n; i++) {
		h = (h ^ b[i]) * 0x100000001b3u;
		h ^= h >> 29;
	}
	return h;
}

static uint64_t hash_begin(const struct guesses *g)
{
	return g->seed ^ 0xcbf29ce484222325u;
}

static uint64_t hash_address(uint64_t h, const char *address)
{
	uint8_t bin[16] = {0};

	/* whoever has one IPv6 address has a whole /64 */
	if (inet_pton(AF_INET6, address, bin) == 1)
		return hash_more(h, bin, 8);
	return hash_more(h, address, strlen(address));
}

static uint32_t place_of(uint64_t h)
{
	return (uint32_t)(h >> 32) % GUESSES_PLACES;
}

static struct guess_place *address_place(struct guesses *g, const char *address)
{
	return &g->address[place_of(hash_address(hash_begin(g), address))];
}

static struct guess_place *sandbox_place(struct guesses *g, const char *sandbox)
{
	return &g->sandbox[place_of(hash_more(hash_begin(g), sandbox, strlen(sandbox)))];
}

/* The sandbox is hashed with its final NUL, so that two pairs never have the same bytes. Never 0, which is an empty place. */
static uint64_t hash_pair(const struct guesses *g, const char *sandbox, const char *address)
{
	return hash_address(hash_more(hash_begin(g), sandbox, strlen(sandbox) + 1), address) | 1;
}

static void place_refill(struct guess_place *p, const struct rate *r, uint64_t now_ns)
{
	uint64_t back = (now_ns - p->at_ns) * r->per_second / SEC;

	if (p->spent && !back)
		return;
	p->spent = back >= p->spent ? 0 : p->spent - (uint32_t)back;
	p->at_ns = now_ns;
}

bool guesses_left(struct guesses *g, const char *sandbox, const char *address, uint64_t now_ns)
{
	struct guess_place *a = address_place(g, address), *s = sandbox_place(g, sandbox);
	uint64_t pair = hash_pair(g, sandbox, address);

	place_refill(a, &of_address, now_ns);
	place_refill(s, &of_sandbox, now_ns);
	return a->spent < of_address.burst &&
	       (s->spent < of_sandbox.burst || g->right[place_of(pair)] == pair);
}

void guesses_right(struct guesses *g, const char *sandbox, const char *address)
{
	uint64_t pair = hash_pair(g, sandbox, address);

	g->right[place_of(pair)] = pair;
}

void guesses_wrong(struct guesses *g, const char *sandbox, const char *address, uint64_t now_ns)
{
	struct guess_place *a = address_place(g, address), *s = sandbox_place(g, sandbox);

	place_refill(a, &of_address, now_ns);
	place_refill(s, &of_sandbox, now_ns);
	a->spent++;
	s->spent++;
}
