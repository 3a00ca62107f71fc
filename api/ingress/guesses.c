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

static uint32_t place_of(const struct guesses *g, const void *p, size_t n)
{
	const uint8_t *b = p;
	uint64_t h = g->seed ^ 0xcbf29ce484222325u;

	for (size_t i = 0; i < n; i++) {
		h = (h ^ b[i]) * 0x100000001b3u;
		h ^= h >> 29;
	}
	return (uint32_t)(h >> 32) % GUESSES_PLACES;
}

static struct guess_place *address_place(struct guesses *g, const char *address)
{
	uint8_t bin[16] = {0};

	/* whoever has one IPv6 address has a whole /64 */
	if (inet_pton(AF_INET6, address, bin) == 1)
		return &g->address[place_of(g, bin, 8)];
	return &g->address[place_of(g, address, strlen(address))];
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
	struct guess_place *a = address_place(g, address),
			   *s = &g->sandbox[place_of(g, sandbox, strlen(sandbox))];

	place_refill(a, &of_address, now_ns);
	place_refill(s, &of_sandbox, now_ns);
	return a->spent < of_address.burst && s->spent < of_sandbox.burst;
}

void guesses_wrong(struct guesses *g, const char *sandbox, const char *address, uint64_t now_ns)
{
	struct guess_place *a = address_place(g, address),
			   *s = &g->sandbox[place_of(g, sandbox, strlen(sandbox))];

	place_refill(a, &of_address, now_ns);
	place_refill(s, &of_sandbox, now_ns);
	a->spent++;
	s->spent++;
}
