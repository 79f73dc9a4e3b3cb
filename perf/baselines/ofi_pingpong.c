/*
 * Messages back and forth over libfabric's reliable datagram endpoints: what a provider costs with nothing around it.
 *
 *   ofi_pingpong PROVIDER BIND|- CPU                            serves; prints "ready ADDRESS"
 *   ofi_pingpong PROVIDER BIND|- CPU ADDRESS SIZE ANSWER SECONDS    asks; prints the round trips' p50 and mean in nanoseconds
 *
 * Requests of SIZE bytes get answers of ANSWER bytes. The first message tells the server where the client is.
 */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX = 1 << 16, NAME = 256, BUCKETS = 1 << 20 };

struct hello {
	uint32_t answer, len;
	char name[NAME];
};

static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;
static struct fi_context2 contexts[2];
static char *in, *out;
static void *desc;
static size_t inject_size;

static void check(const char *what, long result)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-result));
		exit(1);
	}
}

static void post(void)
{
	check("fi_recv", fi_recv(ep, in, MAX, desc, FI_ADDR_UNSPEC, &contexts[0]));
}

/* Polls until a message has come, and returns its length; sends that end on the way are noted. */
static size_t receive(void)
{
	struct fi_cq_msg_entry entry;
	for (;;) {
		ssize_t n = fi_cq_read(cq, &entry, 1);
		if (n == 1 && entry.op_context == &contexts[0])
			return entry.len;
		if (n < 0 && n != -FI_EAGAIN)
			check("fi_cq_read", n);
	}
}

static void send_to(fi_addr_t to, size_t len)
{
	struct fi_cq_msg_entry entry;
	for (;;) {
		ssize_t r = len <= inject_size ? fi_inject(ep, out, len, to) : fi_send(ep, out, len, desc, to, &contexts[1]);
		if (r == 0)
			return;
		if (r != -FI_EAGAIN)
			check("fi_send", r);
		r = fi_cq_read(cq, &entry, 0);
		if (r < 0 && r != -FI_EAGAIN)
			check("fi_cq_read", r);
	}
}

static fi_addr_t insert(const void *name)
{
	fi_addr_t addr;
	if (fi_av_insert(av, name, 1, &addr, 0, NULL) != 1) {
		fprintf(stderr, "fi_av_insert\n");
		exit(1);
	}
	return addr;
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv)
{
	if (argc != 4 && argc != 8)
		return 2;
	cpu_set_t cpu;
	CPU_ZERO(&cpu);
	CPU_SET(atoi(argv[3]), &cpu);
	sched_setaffinity(0, sizeof cpu, &cpu);

	struct fi_info *hints = fi_allocinfo(), *info;
	hints->caps = FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	hints->fabric_attr->prov_name = strdup(argv[1]);
	int bound = strcmp(argv[2], "-") != 0;
	check("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), bound ? argv[2] : NULL, NULL, bound ? FI_SOURCE : 0, hints, &info));
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fi_av_attr av_attr = {.type = FI_AV_UNSPEC};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE};
	check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	check("fi_domain", fi_domain(fabric, info, &domain, NULL));
	check("fi_av_open", fi_av_open(domain, &av_attr, &av, NULL));
	check("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL));
	check("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
	check("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
	check("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	in = calloc(2, MAX);
	out = in + MAX;
	if (info->domain_attr->mr_mode & FI_MR_LOCAL) {
		struct fid_mr *mr;
		check("fi_mr_reg", fi_mr_reg(domain, in, 2 * MAX, FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL));
		desc = fi_mr_desc(mr);
	}
	check("fi_enable", fi_enable(ep));
	inject_size = info->tx_attr->inject_size;
	struct hello hello = {0};
	size_t len = NAME;
	check("fi_getname", fi_getname(&ep->fid, hello.name, &len));
	hello.len = (uint32_t)len;
	post();

	if (argc == 4) {
		printf("ready ");
		for (size_t i = 0; i < len; i++)
			printf("%02x", (unsigned char)hello.name[i]);
		printf("\n");
		fflush(stdout);
		receive();
		struct hello client;
		memcpy(&client, in, sizeof client);
		fi_addr_t to = insert(client.name);
		for (;;) {
			post();
			send_to(to, client.answer);
			receive();
		}
	}
	char theirs[NAME] = {0};
	unsigned byte;
	for (int i = 0; i < NAME && sscanf(argv[4] + 2 * i, "%2x", &byte) == 1; i++)
		theirs[i] = (char)byte;
	fi_addr_t to = insert(theirs);
	hello.answer = (uint32_t)atoi(argv[6]);
	memcpy(out, &hello, sizeof hello);
	send_to(to, sizeof hello);
	receive();

	size_t size = (size_t)atoi(argv[5]);
	uint64_t until = now() + (uint64_t)(atof(argv[7]) * 1e9), count = 0, sum = 0, at, start = now();
	/* Each bucket is 2 ns wide. */
	uint32_t *histogram = calloc(BUCKETS, sizeof *histogram);
	do {
		post();
		send_to(to, size);
		receive();
		at = now();
		uint64_t bucket = (at - start) / 2;
		histogram[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
		sum += at - start;
		count++;
		start = at;
	} while (at < until);
	uint64_t seen = 0, p50 = 0;
	for (uint64_t i = 0; i < BUCKETS; i++) {
		seen += histogram[i];
		if (2 * seen >= count) {
			p50 = 2 * i;
			break;
		}
	}
	printf("{\"p50\": %lu, \"mean\": %lu, \"count\": %lu}\n", p50, sum / count, count);
	return 0;
}
