/* SPDX-License-Identifier: Apache-2.0
 *
 * route_lifecycle.h: the handlers of the lifecycle tables, and what they share. mayflyd's loop.
 */
#pragma once

#include "api/http/http.h"

struct checkpoint;

extern const struct http_table lifecycle_table; /* at "" and "/v1" */
extern const struct http_table root_table;      /* at "" only */
extern const struct http_table v1_table;        /* at "/v1" only */
extern const struct http_table egress_table;    /* behind endpoints, port 18080 */
#define EGRESS_PORT 18080
#define EGRESS_AUTH "OPENSANDBOX-EGRESS-AUTH"

struct account;
/* Answers 429: the records of the owner have no room for one more. */
void route_records_full(struct http_req *r, const struct account *a);

void route_create(struct http_req *r);
void route_get(struct http_req *r);
void route_list(struct http_req *r);
void route_delete(struct http_req *r);
void route_metadata(struct http_req *r);
void route_renew(struct http_req *r);
void route_endpoint(struct http_req *r);
void route_pause(struct http_req *r);
void route_resume(struct http_req *r);

/* route_snapshot.c */
void route_snapshot_create(struct http_req *r);
void route_snapshot_list(struct http_req *r);
void route_snapshot_get(struct http_req *r);
void route_snapshot_delete(struct http_req *r);
void route_sandbox_restore(struct http_req *r);
/* The snapshot named by {id}, or NULL with 404 answered. */
struct checkpoint *route_snapshot(struct http_req *r);
/* route_fork.c */
void route_sandbox_fork(struct http_req *r);
void route_snapshot_fork(struct http_req *r);
/* route_pool.c */
void route_pool_list(struct http_req *r);
void route_pool_create(struct http_req *r);
void route_pool_get(struct http_req *r);
void route_pool_put(struct http_req *r);
void route_pool_delete(struct http_req *r);
/* route_template.c */
void route_template_create(struct http_req *r);
void route_template_list(struct http_req *r);
void route_template_get(struct http_req *r);
void route_template_delete(struct http_req *r);
/* route_image_template.c */
void route_auto_templates(struct http_req *r);
void route_auto_template_create(struct http_req *r);
void route_auto_template_get(struct http_req *r);
void route_auto_template_delete(struct http_req *r);
/* route_point.c */
void route_point_get(struct http_req *r);
void route_point_verify(struct http_req *r);
/* route_diag.c */
void route_diag_logs(struct http_req *r);
void route_diag_events(struct http_req *r);
void route_diag_inspect(struct http_req *r);
void route_diag_summary(struct http_req *r);
void route_diag_context(struct http_req *r);
/* route_quarantine.c */
void route_quarantine_list(struct http_req *r);
void route_quarantine_delete(struct http_req *r);
/* route_images.c */
void route_image_list(struct http_req *r);
void route_image_pull(struct http_req *r);
void route_image_delete(struct http_req *r);

/* route_volumes.c */
void route_volume_list(struct http_req *r);
void route_volume_get(struct http_req *r);
void route_volume_create(struct http_req *r);
void route_volume_delete(struct http_req *r);
/* route_prometheus.c */
void route_prometheus(struct http_req *r);
/* route_egress.c */
void route_policy_get(struct http_req *r);
void route_egress_seen(struct http_req *r);
void route_policy_put(struct http_req *r);
void route_policy_patch(struct http_req *r);
void route_policy_delete(struct http_req *r);
