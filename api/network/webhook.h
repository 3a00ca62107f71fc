/* SPDX-License-Identifier: Apache-2.0
 *
 * webhook.h: tells a client's server which places its sandbox was denied (OPENSANDBOX_EGRESS_DENY_WEBHOOK, protocol 1.3). mayflyd's loop.
 * Hostile: the URL, which a client gave, and what the server behind it answers.
 *
 * The daemon makes no internet socket. It asks the broker for one over a channel, as a mayfly-net does, under a policy of its own: what a
 * sandbox without a policy may reach. So a URL leads to no place that is closed for sandboxes, by name or by address.
 */
#pragma once

#include "lib/err.h"
#include "lib/netaddr.h"

#define WEBHOOK_URL_MAX  1024u
#define WEBHOOK_HOST_MAX 256u

struct broker_client;
struct loop;
struct webhooks;

struct webhook_url {
	char host[WEBHOOK_HOST_MAX]; /* a name or an address, without brackets */
	char path[WEBHOOK_URL_MAX];  /* with its query */
	uint16_t port;
};
/* http://HOST[:PORT][/PATH]. -EINVAL: *e says what is wrong with it. */
int webhook_url_parse(const char *url, struct webhook_url *out, struct err *e);
/* The status of the first n bytes of an HTTP response; 0: they are none, or too few. */
int webhook_status(const char *p, size_t n);

struct webhooks *webhooks_create(struct loop *l, struct broker_client *b);
void webhooks_destroy(struct webhooks *w);
/* The broker ended: all hooks fail. */
void webhooks_lost(struct webhooks *w);
/* Sends one POST, later. It is tried once. A failure is only logged. */
void webhook_send(struct webhooks *w, const char *url, const char *sandbox, const char *place);
