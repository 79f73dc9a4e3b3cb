// pkg-config: libfabric
/*
 * A libfabric client of Berth's, written from the documents alone: it speaks the rendezvous (docs/rdma.md) and two-sided
 * messages over a reliable datagram endpoint of any provider.
 *
 *   ofi_client PROVIDER BIND [IP PORT]
 *
 * BIND is the IP address of the endpoint, or - for providers without. With IP and PORT it goes to the rendezvous there;
 * without, it prints "addr HEX", its own address, and reads the server's as a line of hex digits (LEASE_BIND's answer has
 * it). Then it obeys lines of standard input and answers each with one line:
 *
 *   read KEY GENERATION OFFSET LEN        the status byte, then the data, in hex digits; or "silence"
 *   write KEY GENERATION OFFSET HEX
 *   raw HEX                               that very message
 *   loop KEY GENERATION LEN COUNT         COUNT writes of LEN bytes within the first 64 KiB, each read back: "right COUNT"
 *   flood KEY GENERATION LEN COUNT        COUNT reads without taking an answer: "sent COUNT"
 *   rpc COUNT                             COUNT calls of rpc_increment with 32 bytes, each answer checked: "right COUNT"
 */
#include <arpa/inet.h>
#include <inttypes.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Seconds until an answer counts as lost; messages that get none are waited for less. */
static double patience = 10;

enum { MAX = 1 << 17, HEADER = 32, RPC_HEADER = 24 };

static struct fid_ep *ep;
static struct fid_cq *cq;
static fi_addr_t server;
static void *desc;
static unsigned char *out, *in;
static struct fi_context2 send_context, recv_context;
static size_t inject_size;

static void check(const char *what, long result)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-result));
		exit(1);
	}
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void put16(unsigned char *to, unsigned v)
{
	to[0] = (unsigned char)(v >> 8);
	to[1] = (unsigned char)v;
}

static void put64(unsigned char *to, uint64_t v)
{
	for (int i = 7; i >= 0; i--, v >>= 8)
		to[i] = (unsigned char)v;
}

static size_t unhex(const char *text, unsigned char *to)
{
	size_t n = 0;
	for (unsigned byte; n < MAX && sscanf(text + 2 * n, "%2x", &byte) == 1 && text[2 * n + 1] > ' '; n++)
		to[n] = (unsigned char)byte;
	return n;
}

static void print_hex(const char *word, const unsigned char *bytes, size_t len)
{
	printf("%s", word);
	for (size_t i = 0; i < len; i++)
		printf("%02x", bytes[i]);
	printf("\n");
	fflush(stdout);
}

/* Polls once; sets *received to the length of an answer, or -1. Returns whether the send has ended. */
static int poll_once(ssize_t *received)
{
	struct fi_cq_msg_entry entry;
	struct fi_cq_err_entry error = {0};
	*received = -1;
	ssize_t n = fi_cq_read(cq, &entry, 1);
	if (n == -FI_EAVAIL) {
		fi_cq_readerr(cq, &error, 0);
		entry.op_context = error.op_context;
		n = 1;
	} else if (n == 1 && entry.op_context == &recv_context) {
		*received = (ssize_t)entry.len;
	}
	return n == 1 && entry.op_context == &send_context;
}

static int sending;

static void post_receive(void)
{
	check("fi_recv", fi_recv(ep, in, MAX, desc, FI_ADDR_UNSPEC, &recv_context));
}

/* Sends out[..len]; returns -1 where the endpoint takes nothing for long. */
static int send_it(size_t len)
{
	double until = now() + patience;
	ssize_t ignored;
	while (now() < until) {
		ssize_t r = len <= inject_size ? fi_inject(ep, out, len, server)
					       : fi_send(ep, out, len, desc, server, &send_context);
		if (r == 0) {
			sending = len > inject_size;
			return 0;
		}
		if (r != -FI_EAGAIN)
			check("fi_send", r);
		poll_once(&ignored);
	}
	return -1;
}

/* Sends out[..len] and waits for an answer, which is then in `in`; -1 where none comes. */
static ssize_t ask(size_t len)
{
	double until = now() + patience;
	ssize_t answer = -1, received;
	if (send_it(len))
		return -1;
	while ((answer < 0 || sending) && now() < until) {
		if (poll_once(&received))
			sending = 0;
		if (received >= 0)
			answer = received;
	}
	return answer;
}

static void header(unsigned opcode, uint64_t key, uint64_t generation, uint64_t offset, uint64_t len)
{
	put64(out, key);
	put64(out + 8, (uint64_t)opcode << 56 | generation);
	put64(out + 16, offset);
	put64(out + 24, len);
}

static void tell(ssize_t answer)
{
	if (answer < 0) {
		puts("silence");
		fflush(stdout);
		return;
	}
	print_hex("", in, (size_t)answer);
	post_receive();
}

static void loop(uint64_t key, uint64_t generation, uint64_t len, long count)
{
	for (long i = 0; i < count; i++) {
		uint64_t offset = (uint64_t)rand() % (65536 - len + 1);
		header(1, key, generation, offset, len);
		for (uint64_t j = 0; j < len; j++)
			out[HEADER + j] = (unsigned char)rand();
		ssize_t answer = ask(HEADER + len);
		unsigned char status = in[0];
		if (answer >= 0)
			post_receive();
		if (answer != 1 || status != 0) {
			printf("wrong write %ld: %zd bytes, status %02x\n", i, answer, status);
			return;
		}
		unsigned char written[MAX];
		memcpy(written, out + HEADER, len);
		header(2, key, generation, offset, len);
		answer = ask(HEADER);
		int right = answer == (ssize_t)(1 + len) && in[0] == 0 && !memcmp(in + 1, written, len);
		if (answer >= 0)
			post_receive();
		if (!right) {
			printf("wrong read %ld: %zd bytes\n", i, answer);
			return;
		}
	}
	printf("right %ld\n", count);
}

static void rpc(long count)
{
	for (long i = 0; i < count; i++) {
		uint32_t words[4] = {0x43555152, 0x191B6322, 32, (uint32_t)i};
		memcpy(out, words, sizeof words);
		uint64_t ptp = (uint64_t)i << 20;
		memcpy(out + 16, &ptp, sizeof ptp);
		for (int j = 0; j < 32; j++)
			out[RPC_HEADER + j] = (unsigned char)rand();
		ssize_t answer = ask(RPC_HEADER + 32);
		uint32_t answered[4];
		memcpy(answered, in, sizeof answered);
		int right = answer == RPC_HEADER + 32 && answered[0] == 0x43555153 && answered[1] == 0 &&
			    answered[2] == 32 && answered[3] == (uint32_t)i && !memcmp(in + 16, &ptp, sizeof ptp);
		for (int j = 0; right && j < 32; j++)
			right = in[RPC_HEADER + j] == (unsigned char)(out[RPC_HEADER + j] + 1);
		if (answer >= 0)
			post_receive();
		if (!right) {
			printf("wrong answer %ld: %zd bytes\n", i, answer);
			return;
		}
	}
	printf("right %ld\n", count);
}

static void read_exactly(int fd, unsigned char *to, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = read(fd, to + at, len - at);
		if (n <= 0) {
			fprintf(stderr, "the rendezvous closed the connection\n");
			exit(1);
		}
		at += (size_t)n;
	}
}

/* Tells the rendezvous our address, and returns the length of the server's. The connection stays open. */
static size_t rendezvous(const char *ip, const char *port, const unsigned char *own, size_t own_len,
			 unsigned char *theirs)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	unsigned char request[512], answer[4096], *end = request + 4;
	inet_pton(AF_INET, ip, &to.sin_addr);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&to, sizeof to)) {
		perror("connect");
		exit(1);
	}
	put16(end, 0x0604);
	put16(end + 2, (unsigned)own_len);
	memcpy(end + 4, own, own_len);
	end += 4 + own_len;
	put16(end, 0x0412);
	put16(end + 2, 1);
	end[4] = 4;
	end += 5;
	put16(request, 0);
	put16(request + 2, (unsigned)(end - request - 4));
	if (write(fd, request, (size_t)(end - request)) != end - request)
		exit(1);
	read_exactly(fd, answer, 6);
	size_t len = (size_t)answer[4] << 8 | answer[5];
	if (answer[0] || answer[1] || len > sizeof answer) {
		fprintf(stderr, "the rendezvous refused: 0x%02x%02x\n", answer[0], answer[1]);
		exit(1);
	}
	read_exactly(fd, answer, len);
	for (size_t at = 0; at + 4 <= len;) {
		unsigned tag = (unsigned)(answer[at] << 8 | answer[at + 1]);
		size_t value = (size_t)(answer[at + 2] << 8 | answer[at + 3]);
		if (tag == 0x0604 && at + 4 + value <= len) {
			memcpy(theirs, answer + at + 4, value);
			return value;
		}
		at += 4 + value;
	}
	fprintf(stderr, "the rendezvous named no endpoint\n");
	exit(1);
}

int main(int argc, char **argv)
{
	if (argc != 3 && argc != 5) {
		fprintf(stderr, "usage: ofi_client PROVIDER BIND|- [IP PORT]\n");
		return 2;
	}
	struct fi_info *hints = fi_allocinfo(), *info;
	hints->caps = FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(argv[1]);
	int bound = strcmp(argv[2], "-") != 0;
	check("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), bound ? argv[2] : NULL, NULL, bound ? FI_SOURCE : 0, hints, &info));

	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fi_av_attr av_attr = {.type = FI_AV_UNSPEC};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE};
	check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	check("fi_domain", fi_domain(fabric, info, &domain, NULL));
	check("fi_av_open", fi_av_open(domain, &av_attr, &av, NULL));
	check("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL));
	check("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
	check("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
	check("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	unsigned char *memory = calloc(2, MAX);
	out = memory;
	in = memory + MAX;
	if (info->domain_attr->mr_mode & FI_MR_LOCAL) {
		struct fid_mr *mr;
		check("fi_mr_reg", fi_mr_reg(domain, memory, 2 * MAX, FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL));
		desc = fi_mr_desc(mr);
	}
	check("fi_enable", fi_enable(ep));
	inject_size = info->tx_attr->inject_size;

	unsigned char own[256], theirs[256] = {0};
	size_t own_len = sizeof own;
	check("fi_getname", fi_getname(&ep->fid, own, &own_len));
	static char line[2 * MAX + 256];
	if (argc == 5) {
		rendezvous(argv[3], argv[4], own, own_len, theirs);
	} else {
		print_hex("addr ", own, own_len);
		if (!fgets(line, sizeof line, stdin))
			return 1;
		unhex(line, theirs);
	}
	if (fi_av_insert(av, theirs, 1, &server, 0, NULL) != 1) {
		fprintf(stderr, "fi_av_insert\n");
		return 1;
	}
	post_receive();
	puts("ready");
	fflush(stdout);

	while (fgets(line, sizeof line, stdin)) {
		uint64_t key, generation, offset, len;
		long count;
		int at = 0;
		if (sscanf(line, "read %" SCNx64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &key, &generation, &offset, &len) == 4) {
			header(2, key, generation, offset, len);
			tell(ask(HEADER));
		} else if (sscanf(line, "write %" SCNx64 " %" SCNu64 " %" SCNu64 " %n", &key, &generation, &offset, &at) == 3) {
			len = unhex(line + at, out + HEADER);
			header(1, key, generation, offset, len);
			tell(ask(HEADER + len));
		} else if (sscanf(line, "raw %n", &at) == 0 && at) {
			patience = 1;
			tell(ask(unhex(line + at, out)));
			patience = 10;
		} else if (sscanf(line, "loop %" SCNx64 " %" SCNu64 " %" SCNu64 " %ld", &key, &generation, &len, &count) == 4) {
			loop(key, generation, len, count);
		} else if (sscanf(line, "flood %" SCNx64 " %" SCNu64 " %" SCNu64 " %ld", &key, &generation, &len, &count) == 4) {
			long sent = 0;
			header(2, key, generation, 0, len);
			while (sent < count && !send_it(HEADER))
				sent++;
			printf("sent %ld\n", sent);
		} else if (sscanf(line, "rpc %ld", &count) == 1) {
			rpc(count);
		} else {
			printf("what?\n");
		}
		fflush(stdout);
	}
	return 0;
}
