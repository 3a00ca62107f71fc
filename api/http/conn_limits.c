/* SPDX-License-Identifier: Apache-2.0
 *
 * conn_limits.c: see conn_limits.h. mayflyd's loop.
 */
#include "api/http/conn_limits.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct conn_address {
	struct conn_address *next;
	/* family, then the address; of IPv6 the first half, which one host has for itself */
	uint8_t key[17];
	unsigned int conns, staying, waiting; /* staying: conns that are not leaving */
	struct conn_slot *first, *last;
};

void conn_limits_init(struct conn_limits *l, unsigned int max, unsigned int per_address)
{
	*l = (struct conn_limits){.max = max, .per_address = per_address};
}

static void address_key(const struct sockaddr *from, uint8_t key[17])
{
	memset(key, 0, 17);
	key[0] = (uint8_t)from->sa_family;
	if (from->sa_family == AF_INET)
		memcpy(key + 1, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
	else if (from->sa_family == AF_INET6)
		memcpy(key + 1, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, 8);
}

static struct conn_address **bucket_of(struct conn_limits *l, const uint8_t key[17])
{
	uint32_t h = 2166136261u;

	for (size_t i = 0; i < 17; i++)
		h = (h ^ key[i]) * 16777619u;
	return &l->buckets[h % ARRAY_LEN(l->buckets)];
}

static struct conn_address *address_get(struct conn_limits *l, const struct sockaddr *from)
{
	uint8_t key[17];
	struct conn_address **b, *a;

	address_key(from, key);
	b = bucket_of(l, key);
	for (a = *b; a; a = a->next)
		if (!memcmp(a->key, key, sizeof(key)))
			return a;
	a = calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	memcpy(a->key, key, sizeof(key));
	a->next = *b;
	*b = a;
	return a;
}

static void address_put(struct conn_limits *l, struct conn_address *a)
{
	struct conn_address **at = bucket_of(l, a->key);

	if (--a->conns > 0)
		return;
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	free(a);
}

static void queue(struct conn_limits *l, struct conn_slot *s)
{
	struct conn_address *a = s->from;

	if (s->waits || s->known || s->leaving || !a)
		return;
	s->waits = true;
	s->prev = l->last;
	*(l->last ? &l->last->next : &l->first) = s;
	l->last = s;
	s->addr_prev = a->last;
	*(a->last ? &a->last->addr_next : &a->first) = s;
	a->last = s;
	a->waiting++;
}

static void unqueue(struct conn_limits *l, struct conn_slot *s)
{
	struct conn_address *a = s->from;

	if (!s->waits)
		return;
	s->waits = false;
	*(s->prev ? &s->prev->next : &l->first) = s->next;
	*(s->next ? &s->next->prev : &l->last) = s->prev;
	*(s->addr_prev ? &s->addr_prev->addr_next : &a->first) = s->addr_next;
	*(s->addr_next ? &s->addr_next->addr_prev : &a->last) = s->addr_prev;
	s->prev = s->next = s->addr_prev = s->addr_next = NULL;
	a->waiting--;
}

static void leave(struct conn_limits *l, struct conn_slot *s)
{
	unqueue(l, s);
	s->leaving = true;
	s->from->staying--;
	l->open--;
}

bool conn_limits_room(const struct conn_limits *l)
{
	return !l->max || l->open < l->max || l->first;
}

static bool address_is_full(const struct conn_limits *l, const struct conn_address *a)
{
	return l->per_address && (l->count_busy ? a->staying : a->waiting) >= l->per_address;
}

bool conn_limits_add(struct conn_limits *l, struct conn_slot *s, const struct sockaddr *from,
	struct conn_slot **out)
{
	struct conn_address *a = conn_limits_room(l) ? address_get(l, from) : NULL;

	*s = (struct conn_slot){.from = a};
	*out = NULL;
	if (!a)
		return false;
	if (address_is_full(l, a) && !a->waiting) {
		s->from = NULL;
		return false;
	}
	a->conns++;
	if (address_is_full(l, a)) {
		*out = a->first;
		l->closed_address++;
	} else if (l->max && l->open >= l->max) {
		*out = l->first;
		l->closed_full++;
	}
	if (*out)
		leave(l, *out);
	a->staying++;
	l->open++;
	queue(l, s);
	return true;
}

void conn_limits_remove(struct conn_limits *l, struct conn_slot *s)
{
	if (!s->from)
		return;
	if (!s->leaving)
		leave(l, s);
	address_put(l, s->from);
	s->from = NULL;
}

void conn_limits_busy(struct conn_limits *l, struct conn_slot *s)
{
	unqueue(l, s);
}

void conn_limits_waits(struct conn_limits *l, struct conn_slot *s)
{
	queue(l, s);
}

void conn_limits_known(struct conn_limits *l, struct conn_slot *s)
{
	unqueue(l, s);
	s->known = true;
}
