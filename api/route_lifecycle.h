/* SPDX-License-Identifier: Apache-2.0
 *
 * route_lifecycle.h: the handlers of the lifecycle tables, and what they share. mayflyd's loop.
 */
#pragma once

#include "api/http.h"

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
/* utemplate.c, template.c */
void route_template_create(struct http_req *r);
void route_template_list(struct http_req *r);
void route_template_get(struct http_req *r);
void route_template_delete(struct http_req *r);
void route_auto_templates(struct http_req *r);
void route_auto_template_create(struct http_req *r);
void route_auto_template_get(struct http_req *r);
void route_auto_template_delete(struct http_req *r);
/* workset.c */
void route_point_get(struct http_req *r);
void route_point_verify(struct http_req *r);
/* route_diag.c */
void route_diag_logs(struct http_req *r);
void route_diag_events(struct http_req *r);
void route_diag_inspect(struct http_req *r);
void route_diag_summary(struct http_req *r);
/* route_egress.c */
void route_policy_get(struct http_req *r);

/* false: answered with 400 */
bool page_query(struct http_req *r, long *page, long *size);
void pagination_add(struct cJSON *o, long page, long size, long total);
/* what all lists are asked with: the `metadata` filter and the page. false: answered with 400 */
bool list_query(struct http_req *r, struct http_pair *meta, size_t max, int *nmeta, long *page, long *size);
bool metadata_fits(const struct cJSON *m, const struct http_pair *want, int n);
