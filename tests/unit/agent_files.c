/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_files: the file requests, through the real agent.
 */
#include "tests/agent_host.h"

#include "agent/tree.h"

static struct host H;
static struct got G;
static char D[80]; /* a directory of this test */
static int ctl = -1;

static const char *at(const char *name)
{
	static char p[4][300];
	static unsigned n;

	snprintf(p[n % 4], sizeof(p[0]), "%s/%s", D, name);
	return p[n++ % 4];
}

static void put_file(const char *name, const char *text, mode_t mode)
{
	int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	fchmod(fd, mode);
	close(fd);
}

static void ids(struct buf *b)
{
	if (!b->max)
		buf_init(b, AGENT_FRAME_MAX);
	buf_reset(b);
	buf_u32(b, AGENT_NO_ID);
	buf_u32(b, AGENT_NO_ID);
}

struct item {
	char path[AGENT_PATH_MAX], owner[64], group[64], link[AGENT_PATH_MAX];
	uint8_t type;
	uint64_t size;
	uint32_t mode;
};

static bool take_item(struct cur *c, struct item *i)
{
	cur_str(c, i->path, sizeof(i->path));
	i->type = cur_u8(c);
	i->size = cur_u64(c);
	cur_u64(c);
	cur_u64(c);
	cur_str(c, i->owner, sizeof(i->owner));
	cur_str(c, i->group, sizeof(i->group));
	i->mode = cur_u32(c);
	cur_u32(c);
	cur_u32(c);
	cur_str(c, i->link, sizeof(i->link));
	return !c->bad;
}

static void stat_names_and_links(void)
{
	struct item i;
	struct buf b = {0};

	put_file("a \n\xff b", "hello", 0640);
	CHECK(!symlink("/no/where", at("l")));
	ids(&b);
	buf_u32(&b, 3);
	buf_str(&b, at("a \n\xff b"));
	buf_str(&b, at("l"));
	buf_str(&b, at("missing"));
	CHECK(host_ask(&H, ctl, AGENT_STAT, &b, &G));
	CHECK_INT(cur_u32(&G.c), 0);
	CHECK(take_item(&G.c, &i));
	CHECK_INT(i.type, 'f');
	CHECK_INT(i.size, 5);
	CHECK_INT(i.mode, 0640);
	CHECK(i.owner[0]);
	CHECK_INT(cur_u32(&G.c), 0);
	CHECK(take_item(&G.c, &i));
	CHECK_INT(i.type, 'l');
	CHECK_STR(i.link, "/no/where");
	CHECK_INT(cur_u32(&G.c), ENOENT);
	CHECK(take_item(&G.c, &i));
	CHECK(cur_done(&G.c));
	buf_fini(&b);
}

static void directories_and_listing(void)
{
	static const char *const want[] = {"d", "d/x", "d/x/y", "d/x/y/f2", "d/x/z"};
	struct item i;
	struct buf b = {0};

	ids(&b);
	buf_str(&b, at("d/x/y"));
	buf_str(&b, "");
	buf_str(&b, "");
	buf_u32(&b, 0700);
	CHECK(host_ask(&H, ctl, AGENT_MKDIR, &b, &G));
	put_file("d/x/z", "", 0600);
	put_file("d/x/y/f2", "", 0600);
	CHECK(!symlink("/", at("d/x/zz")));
	ids(&b);
	buf_str(&b, D);
	buf_u32(&b, 4);
	buf_u32(&b, 100);
	CHECK(host_ask(&H, ctl, AGENT_LIST, &b, &G));
	CHECK_INT(cur_u32(&G.c), 0);
	/* with the two of the test before, and the link, which is not followed */
	CHECK_INT(cur_u32(&G.c), 8);
	CHECK(take_item(&G.c, &i));
	for (size_t k = 0; k < ARRAY_LEN(want); k++) {
		CHECK(take_item(&G.c, &i));
		CHECK_STR(i.path, at(want[k]));
	}
	buf_reset(&b);
	ids(&b);
	buf_str(&b, D);
	buf_u32(&b, 1);
	buf_u32(&b, 2);
	CHECK(host_ask(&H, ctl, AGENT_LIST, &b, &G));
	CHECK_INT(cur_u32(&G.c), 1);
	CHECK_INT(cur_u32(&G.c), 2);
	ids(&b);
	buf_str(&b, D);
	buf_str(&b, "f?");
	buf_u32(&b, 100);
	CHECK(host_ask(&H, ctl, AGENT_SEARCH, &b, &G));
	cur_u32(&G.c);
	CHECK_INT(cur_u32(&G.c), 1);
	CHECK(take_item(&G.c, &i));
	CHECK_STR(i.path, at("d/x/y/f2"));
	ids(&b);
	buf_str(&b, at("nothing"));
	buf_u32(&b, 1);
	buf_u32(&b, 100);
	CHECK(!host_ask(&H, ctl, AGENT_LIST, &b, &G));
	CHECK_INT(G.code, ENOENT);
	CHECK_INT(G.step, AGENT_STEP_PATH);
	buf_fini(&b);
}

static void patterns(void)
{
	CHECK(tree_match("**", "x"));
	CHECK(tree_match("*.py", "a.py"));
	CHECK(!tree_match("*.py", "a.pyc"));
	CHECK(tree_match("[a-c]?[!x]", "bzy"));
	CHECK(!tree_match("[a-c]?[!x]", "bzx"));
	CHECK(tree_match("a\\*b", "a*b"));
	CHECK(!tree_match("a\\*b", "axb"));
	CHECK(tree_match("[", "["));
	CHECK(tree_match("*a*b*c", "xxaxxbxxc"));
	CHECK(!tree_match("", "x"));
	CHECK(tree_match("", ""));
	CHECK(tree_match("[]]", "]"));
	CHECK(!tree_match("\\?", "x"));
}

static void big_listing_comes_in_parts(void)
{
	unsigned n = 0, frames = 0;
	struct buf b = {0};

	CHECK(!mkdir(at("big"), 0755));
	for (int k = 0; k < 5000; k++) {
		char name[80];
		int fd;

		snprintf(name, sizeof(name), "big/a-rather-long-name-for-a-file-%d", k);
		fd = open(at(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		close(fd);
	}
	ids(&b);
	buf_str(&b, at("big"));
	buf_u32(&b, 1);
	buf_u32(&b, 10000);
	CHECK(host_ask(&H, ctl, AGENT_LIST, &b, &G));
	for (;;) {
		struct item i;

		frames++;
		cur_u32(&G.c);
		for (uint32_t k = cur_u32(&G.c); k > 0; k--, n++)
			REQUIRE(take_item(&G.c, &i));
		if (!(G.h.flags & AGENT_FL_MORE))
			break;
		REQUIRE(host_recv(ctl, &G));
	}
	CHECK_INT(n, 5000);
	CHECK(frames > 1);
	ids(&b);
	buf_u32(&b, AGENT_RM_TREE);
	buf_u32(&b, 1);
	buf_str(&b, at("big"));
	CHECK(host_ask(&H, ctl, AGENT_REMOVE, &b, &G));
	CHECK(access(at("big"), F_OK) < 0);
	buf_fini(&b);
}

static void deep_trees_go(void)
{
	int fd = open(D, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct buf b = {0};

	CHECK(!mkdirat(fd, "deep", 0755));
	for (int i = 0; i < 700; i++) {
		int sub = openat(fd, i ? "d" : "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

		CHECK(!mkdirat(sub, "d", 0755));
		CHECK(!mkdirat(sub, "e", 0755));
		close(fd);
		fd = sub;
	}
	close(fd);
	ids(&b);
	buf_u32(&b, AGENT_RM_TREE);
	buf_u32(&b, 1);
	buf_str(&b, at("deep"));
	CHECK(host_ask(&H, ctl, AGENT_REMOVE, &b, &G));
	CHECK(access(at("deep"), F_OK) < 0);
	/* missing is an error, or not, as asked; a directory without TREE is one */
	ids(&b);
	buf_u32(&b, 0);
	buf_u32(&b, 1);
	buf_str(&b, at("deep"));
	CHECK(!host_ask(&H, ctl, AGENT_REMOVE, &b, &G));
	CHECK_INT(G.code, ENOENT);
	ids(&b);
	buf_u32(&b, AGENT_RM_MISSING_OK | AGENT_RM_NO_DIR);
	buf_u32(&b, 2);
	buf_str(&b, at("deep"));
	buf_str(&b, at("d"));
	CHECK(!host_ask(&H, ctl, AGENT_REMOVE, &b, &G));
	CHECK_INT(G.code, EISDIR);
	buf_fini(&b);
}

static void move_chmod_replace(void)
{
	struct stat st;
	struct buf b = {0};
	char text[64];
	int fd;

	put_file("m", "one two one\n", 0604);
	ids(&b);
	buf_str(&b, at("m"));
	buf_str(&b, at("new/dir/n"));
	CHECK(host_ask(&H, ctl, AGENT_MOVE, &b, &G));
	put_file("m2", "", 0600);
	ids(&b);
	buf_str(&b, at("m2"));
	buf_str(&b, at("new/dir/n"));
	CHECK(!host_ask(&H, ctl, AGENT_MOVE, &b, &G));
	CHECK_INT(G.code, EEXIST);
	ids(&b);
	buf_str(&b, at("nosuch"));
	buf_str(&b, at("q"));
	CHECK(!host_ask(&H, ctl, AGENT_MOVE, &b, &G));
	CHECK_INT(G.code, ENOENT);
	ids(&b);
	buf_str(&b, at("new/dir/n"));
	buf_str(&b, "one");
	buf_str(&b, "three");
	CHECK(host_ask(&H, ctl, AGENT_REPLACE, &b, &G));
	CHECK_INT(cur_u64(&G.c), 2);
	memset(text, 0, sizeof(text));
	fd = open(at("new/dir/n"), O_RDONLY | O_CLOEXEC);
	CHECK(read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	CHECK_STR(text, "three two three\n");
	CHECK(!stat(at("new/dir/n"), &st));
	CHECK_INT(st.st_mode & 07777, 0604);
	ids(&b);
	buf_str(&b, at("new/dir/n"));
	buf_str(&b, "");
	buf_str(&b, "");
	buf_u32(&b, 0711);
	CHECK(host_ask(&H, ctl, AGENT_CHMOD, &b, &G));
	CHECK(!stat(at("new/dir/n"), &st));
	CHECK_INT(st.st_mode & 07777, 0711);
	ids(&b);
	buf_str(&b, at("new/dir/n"));
	buf_str(&b, "no-such-user");
	buf_str(&b, "");
	buf_u32(&b, AGENT_NO_MODE);
	CHECK(!host_ask(&H, ctl, AGENT_CHMOD, &b, &G));
	CHECK_INT(G.step, AGENT_STEP_USER);
	buf_fini(&b);
}

static void expansion(void)
{
	char path[300];
	struct buf b = {0};

	ids(&b);
	buf_str(&b, "~/x");
	CHECK(host_ask(&H, ctl, AGENT_EXPAND, &b, &G));
	CHECK(cur_str(&G.c, path, sizeof(path)));
	CHECK_STR(path, "/root/x");
	ids(&b);
	buf_str(&b, "${EXECD_ENVS}/$1/$");
	CHECK(host_ask(&H, ctl, AGENT_EXPAND, &b, &G));
	CHECK(cur_str(&G.c, path, sizeof(path)));
	CHECK_STR(path, "/opt/opensandbox/.env/$1/$");
	ids(&b);
	buf_str(&b, "$NOPE/x");
	CHECK(!host_ask(&H, ctl, AGENT_EXPAND, &b, &G));
	CHECK_INT(G.code, EINVAL);
	buf_fini(&b);
}

/* Writes n bytes of a pattern; the code of a failure, or 0. */
static int write_file(int fd, const char *path, uint32_t mode, uint32_t flags, size_t n)
{
	static uint8_t chunk[AGENT_FRAME_MAX];
	struct buf b = {0};

	ids(&b);
	buf_str(&b, path);
	buf_str(&b, "");
	buf_str(&b, "");
	buf_u32(&b, mode);
	buf_u32(&b, flags);
	host_send(fd, AGENT_WRITE, 9, &b);
	buf_fini(&b);
	if (!host_recv(fd, &G))
		return -1;
	if (G.h.type != AGENT_OK)
		return G.code;
	for (size_t done = 0; done < n;) {
		size_t k = MIN(n - done, sizeof(chunk));
		struct buf d = {.p = chunk, .len = k, .cap = k, .max = k};

		for (size_t i = 0; i < k; i++)
			chunk[i] = (uint8_t)((done + i) * 7 >> 3);
		host_send(fd, AGENT_DATA, 9, &d);
		done += k;
	}
	host_send(fd, AGENT_DATA, 9, NULL);
	if (!host_recv(fd, &G))
		return -1;
	if (G.h.type == AGENT_OK)
		CHECK_INT(cur_u64(&G.c), n);
	return G.h.type == AGENT_OK ? 0 : G.code;
}

/* Reads into out; the code of a failure, or 0. */
static int read_file(
	int fd, const char *path, uint64_t off, uint64_t len, uint32_t flags, struct buf *out)
{
	struct buf b = {0};
	uint64_t said;

	ids(&b);
	buf_str(&b, path);
	buf_u64(&b, off);
	buf_u64(&b, len);
	buf_u32(&b, flags);
	host_send(fd, AGENT_READ, 9, &b);
	buf_fini(&b);
	if (!host_recv(fd, &G))
		return -1;
	if (G.h.type != AGENT_OK)
		return G.code;
	cur_u64(&G.c);
	cur_u64(&G.c);
	said = cur_u64(&G.c);
	while (host_recv(fd, &G) && G.h.type == AGENT_DATA && G.h.len)
		buf_put(out, G.p, G.h.len);
	CHECK_INT(G.h.type, AGENT_DATA);
	CHECK_INT(out->len, said);
	return 0;
}

static void bulk_both_ways(void)
{
	int fd = host_open(&H, AGENT_CONN_BULK, &G);
	struct stat st;
	struct buf out;

	buf_init(&out, 64u << 20);
	CHECK_INT(write_file(fd, at("w/deep/file"), 0640, AGENT_WR_PARENTS, 3000001), 0);
	CHECK(!stat(at("w/deep/file"), &st));
	CHECK_INT(st.st_size, 3000001);
	CHECK_INT(st.st_mode & 07777, 0640);
	/* the same stream carries the next one */
	CHECK_INT(read_file(fd, at("w/deep/file"), 0, UINT64_MAX, 0, &out), 0);
	for (size_t i = 0; i < out.len; i++)
		if (out.p[i] != (uint8_t)(i * 7 >> 3)) {
			CHECK_INT(i, -1);
			break;
		}
	buf_reset(&out);
	CHECK_INT(read_file(fd, at("w/deep/file"), 2999990, 100, 0, &out), 0);
	CHECK_INT(out.len, 11);
	buf_reset(&out);
	put_file("lines", "one\ntwo\nthree\nfour", 0600);
	CHECK_INT(read_file(fd, at("lines"), 2, 2, AGENT_RD_LINES, &out), 0);
	CHECK_STR(buf_cstr(&out), "two\nthree\n");
	buf_reset(&out);
	CHECK_INT(read_file(fd, at("lines"), 4, 10, AGENT_RD_LINES, &out), 0);
	CHECK_STR(buf_cstr(&out), "four");
	buf_reset(&out);
	CHECK_INT(read_file(fd, at("lines"), 9, 1, AGENT_RD_LINES, &out), 0);
	CHECK_INT(out.len, 0);
	/* one without a size */
	CHECK_INT(read_file(fd, "/proc/self/mountinfo", 0, UINT64_MAX, 0, &out), 0);
	CHECK(out.len > 10);
	CHECK_INT(read_file(fd, D, 0, 1, 0, &out), EISDIR);
	close(fd);
	fd = host_open(&H, AGENT_CONN_BULK, &G);
	CHECK(!mkfifo(at("fifo"), 0600));
	CHECK_INT(read_file(fd, at("fifo"), 0, 1, 0, &out), EINVAL);
	close(fd);
	fd = host_open(&H, AGENT_CONN_BULK, &G);
	CHECK_INT(write_file(fd, at("fifo"), 0600, 0, 1), EINVAL);
	close(fd);
	buf_fini(&out);
}

/* A program that was written is run at once: it is busy while anybody has it open for writing. No lease for reading is given then. */
static void a_written_file_is_closed(void)
{
	int fd = host_open(&H, AGENT_CONN_BULK, &G), open_still = 0;

	for (int i = 0; i < 400; i++) {
		int file;

		CHECK_INT(write_file(fd, at("closed"), 0755, i % 2 ? AGENT_WR_ATOMIC : 0, 100), 0);
		file = open(at("closed"), O_RDONLY | O_CLOEXEC);
		open_still += fcntl(file, F_SETLEASE, F_RDLCK) < 0;
		close(file);
	}
	CHECK_INT(open_still, 0);
	close(fd);
}

static void atomic_write_keeps_what_was(void)
{
	int fd = host_open(&H, AGENT_CONN_BULK, &G);
	struct stat st;
	struct buf b = {0};

	put_file("at", "old", 0751);
	CHECK_INT(write_file(fd, at("at"), AGENT_NO_MODE, AGENT_WR_ATOMIC, 100), 0);
	CHECK(!stat(at("at"), &st));
	CHECK_INT(st.st_mode & 07777, 0751);
	CHECK_INT(st.st_size, 100);
	/* a stream that ends in the middle changes nothing and leaves nothing */
	ids(&b);
	buf_str(&b, at("at"));
	buf_str(&b, "");
	buf_str(&b, "");
	buf_u32(&b, AGENT_NO_MODE);
	buf_u32(&b, AGENT_WR_ATOMIC);
	host_send(fd, AGENT_WRITE, 9, &b);
	CHECK(host_recv(fd, &G) && G.h.type == AGENT_OK);
	buf_reset(&b);
	buf_put(&b, "xyz", 3);
	host_send(fd, AGENT_DATA, 9, &b);
	close(fd);
	CHECK(!mkdir(at("probe"), 0700)); /* a request behind it in time */
	for (int i = 0; i < 4000; i++) {
		ids(&b);
		buf_str(&b, D);
		buf_str(&b, ".mayfly-*");
		buf_u32(&b, 10);
		CHECK(host_ask(&H, ctl, AGENT_SEARCH, &b, &G));
		cur_u32(&G.c);
		if (cur_u32(&G.c) == 0)
			break;
		CHECK(i < 3999);
		poll(NULL, 0, 5);
	}
	CHECK(!stat(at("at"), &st));
	CHECK_INT(st.st_size, 100);
	buf_fini(&b);
}

static void as_another_user(void)
{
	int fd = host_open(&H, AGENT_CONN_BULK, &G);
	struct stat st;
	struct buf b = {0};

	if (geteuid() != 0) {
		close(fd);
		return; /* without root there is only one user */
	}
	chmod(D, 0777);
	put_file("secret", "x", 0600);
	buf_init(&b, 4096);
	buf_u32(&b, 65534);
	buf_u32(&b, 65534);
	buf_str(&b, at("secret"));
	buf_u64(&b, 0);
	buf_u64(&b, 1);
	buf_u32(&b, 0);
	host_send(fd, AGENT_READ, 9, &b);
	CHECK(host_recv(fd, &G));
	CHECK_INT(G.code, EACCES);
	close(fd);
	buf_reset(&b);
	buf_u32(&b, 65534);
	buf_u32(&b, 65534);
	buf_str(&b, at("theirs"));
	buf_str(&b, "");
	buf_str(&b, "");
	buf_u32(&b, 0755);
	CHECK(host_ask(&H, ctl, AGENT_MKDIR, &b, &G));
	CHECK(!stat(at("theirs"), &st));
	CHECK_INT(st.st_uid, 65534);
	CHECK_INT(st.st_gid, 65534);
	/* and the thread is root's again */
	ids(&b);
	buf_str(&b, at("ours"));
	buf_str(&b, "");
	buf_str(&b, "");
	buf_u32(&b, 0755);
	CHECK(host_ask(&H, ctl, AGENT_MKDIR, &b, &G));
	CHECK(!stat(at("ours"), &st));
	CHECK_INT(st.st_uid, 0);
	buf_fini(&b);
}

static void start(void)
{
	ctl = host_begin(&H, &G);
	REQUIRE(ctl >= 0);
	snprintf(D, sizeof(D), "%s/t", H.dir);
	CHECK(!mkdir(D, 0755));
}

static void stop(void)
{
	CHECK(host_end(&H, ctl));
}

static const struct test tests[] = {
	{"start", start},
	{"stat_names_and_links", stat_names_and_links},
	{"directories_and_listing", directories_and_listing},
	{"patterns", patterns},
	{"big_listing_comes_in_parts", big_listing_comes_in_parts},
	{"deep_trees_go", deep_trees_go},
	{"move_chmod_replace", move_chmod_replace},
	{"expansion", expansion},
	{"bulk_both_ways", bulk_both_ways},
	{"a_written_file_is_closed", a_written_file_is_closed},
	{"atomic_write_keeps_what_was", atomic_write_keeps_what_was},
	{"as_another_user", as_another_user},
	{"stop", stop},
};
AGENT_TEST_MAIN(tests)
