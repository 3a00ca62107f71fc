/* SPDX-License-Identifier: Apache-2.0
 *
 * dial.c: see dial.h.
 */
#include "cli/dial.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <string.h>

int client_dial(const struct client *c, struct err *e)
{
	curl_socket_t fd = CURL_SOCKET_BAD;
	CURLcode rc;
	CURL *curl;
	int own;

	if (strncmp(c->base, "http://", 7) != 0)
		return err_plain(e, ENOTSUP,
			"this needs a daemon at an http:// address or a Unix socket, not %s",
			c->base);
	curl = curl_easy_init();
	if (!curl)
		return err_plain(e, ENOMEM, "no memory");
	curl_easy_setopt(curl, CURLOPT_URL, c->base);
	if (*c->socket)
		curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, c->socket);
	curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
	curl_easy_setopt(curl, CURLOPT_CONNECT_ONLY, 1L);
	curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 10L);
	curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	rc = curl_easy_perform(curl);
	if (rc == CURLE_OK)
		rc = curl_easy_getinfo(curl, CURLINFO_ACTIVESOCKET, &fd);
	/* the socket is the handle's and is closed with it: a duplicate stays */
	own = rc == CURLE_OK && fd != CURL_SOCKET_BAD ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
	curl_easy_cleanup(curl);
	if (own >= 0)
		fcntl(own, F_SETFL, O_RDWR); /* libcurl's are non-blocking */
	if (own < 0)
		return err_plain(e, ECONNREFUSED, "%s: %s", *c->socket ? c->socket : c->base,
			rc == CURLE_OK ? strerror(errno) : curl_easy_strerror(rc));
	return own;
}
