// pkg-config: libibverbs
/*
 * A client of RPC ports over an unreliable connection, written against libibverbs alone.
 *
 * usage: uc_rpc DEVICE GID_INDEX RENDEZVOUS_IPV4 RENDEZVOUS_PORT berth|host-api COUNT [SLOTS STRIDE psn20|psn24]
 *
 * Comes to the port by its rendezvous (docs/rdma.md), then calls rpc_increment COUNT times, WINDOW calls at a time, and
 * checks every byte of every answer. Requests come in every way there is:
 *   - RDMA WRITE WITH IMMEDIATE, of one packet or, filled up with zeros, of several
 *   - RDMA WRITE, then an RDMA WRITE WITH IMMEDIATE of no bytes
 *   - SEND
 * In between it does, each BAD times, what it must not: a wrong key, a write that ends one byte behind the slots, an
 * immediate that names a slot behind the last.
 *
 * Prints `answered N lost N bad N` and ends with 0, or prints what was wrong and ends with 1. SLOTS, STRIDE and the form
 * are for host-api, which does not tell.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

enum { PORT = 1, WINDOW = 16, RECEIVES = 64, ROOM = 4096, HEADER = 24, BAD = 10, ZEROS = WINDOW + RECEIVES };
enum { UC_WRITE_IMM = 1 };
static const uint32_t REQUEST = 0x43555152, RESPONSE = 0x43555153, INCREMENT = 0x191B6322;

/* The port, as its rendezvous describes it. */
static struct {
    uint32_t qpn, rkey, psn, slots, stride, mtu;
    uint64_t address;
    union ibv_gid gid;
    bool psn24;
} port;

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static union ibv_gid gid;
static uint32_t psn;
/* WINDOW requests, then RECEIVES answers, then nothing but zeros. */
static unsigned char *memory;

static void die(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void put16(unsigned char *at, uint16_t v) { v = htons(v); memcpy(at, &v, 2); }
static void put32(unsigned char *at, uint32_t v) { v = htonl(v); memcpy(at, &v, 4); }
static uint32_t get32(const unsigned char *at) { uint32_t v; memcpy(&v, at, 4); return ntohl(v); }
static uint16_t get16(const unsigned char *at) { uint16_t v; memcpy(&v, at, 2); return ntohs(v); }

static void read_all(int fd, unsigned char *to, size_t len)
{
    while (len) {
        ssize_t n = read(fd, to, len);
        if (n <= 0)
            die("the rendezvous closed");
        to += n;
        len -= n;
    }
}

static uint32_t path_mtu_bytes(enum ibv_mtu mtu) { return 128u << mtu; }

/* 12 bytes each way. */
static void host_api(int fd)
{
    unsigned char message[12];
    put32(message, qp->qp_num);
    put32(message + 4, 0);
    memcpy(message + 8, gid.raw + 12, 4);
    if (write(fd, message, sizeof message) != sizeof message)
        die("write");
    read_all(fd, message, sizeof message);
    port.qpn = get32(message);
    port.rkey = get32(message + 4);
    port.mtu = 4096;
    memset(port.gid.raw, 0, 16);
    memset(port.gid.raw + 10, 0xff, 2);
    memcpy(port.gid.raw + 12, message + 8, 4);
}

/* Berth's own form: TLVs both ways. */
static void berth(int fd, uint32_t mtu)
{
    unsigned char message[4 + 4 + 26 + 4 + 1], answer[4096];
    put32(message, sizeof message - 4);
    put16(message + 4, 0x0410);
    put16(message + 6, 26);
    put32(message + 8, qp->qp_num);
    memcpy(message + 12, gid.raw, 16);
    put32(message + 28, psn);
    put16(message + 32, mtu);
    put16(message + 34, 0x0412);
    put16(message + 36, 1);
    message[38] = UC_WRITE_IMM;
    if (write(fd, message, sizeof message) != sizeof message)
        die("write");
    read_all(fd, answer, 6);
    uint32_t len = get32(answer + 2);
    if (get16(answer) != 0 || len > sizeof answer) {
        printf("refused with status %u\n", get16(answer));
        exit(1);
    }
    read_all(fd, answer, len);
    for (uint32_t at = 0; at + 4 <= len; at += 4 + get16(answer + at + 2)) {
        const unsigned char *value = answer + at + 4;
        switch (get16(answer + at)) {
        case 0x0201: port.rkey = get32(value); break;
        case 0x0202: port.address = (uint64_t)get32(value) << 32 | get32(value + 4); break;
        case 0x0203: port.qpn = get32(value); break;
        case 0x0204: memcpy(port.gid.raw, value, 16); break;
        case 0x0206: port.psn = get32(value); break;
        case 0x0413:
            port.slots = get32(value);
            port.stride = get32(value + 4);
            port.psn24 = value[8] == 2;
            break;
        case 0x0414: port.mtu = get16(value); break;
        }
    }
}

static void post_receive(uint64_t n)
{
    unsigned char *at = memory + (WINDOW + n) * ROOM;
    struct ibv_sge sge = { (uintptr_t)at, ROOM, mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad;
    if (ibv_post_recv(qp, &wr, &bad))
        die("ibv_post_recv");
}

static void open_device(const char *name, int gid_index)
{
    struct ibv_device **devices = ibv_get_device_list(NULL), **device = devices;
    while (device && *device && strcmp(ibv_get_device_name(*device), name))
        device++;
    if (!device || !*device || !(context = ibv_open_device(*device)))
        die("no such device");
    size_t bytes = (ZEROS + 1) * ROOM;
    if (posix_memalign((void **)&memory, 4096, bytes))
        die("memory");
    memset(memory, 0, bytes);
    if (!(pd = ibv_alloc_pd(context)) || !(cq = ibv_create_cq(context, 4 * (WINDOW + RECEIVES), NULL, NULL, 0)) ||
        !(mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE)))
        die("resources");
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UC,
        .cap = { .max_send_wr = 4 * WINDOW, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    if (!(qp = ibv_create_qp(pd, &init)) || ibv_query_gid(context, PORT, gid_index, &gid))
        die("queue pair");
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        die("to INIT");
    for (int n = 0; n < RECEIVES; n++)
        post_receive(n);
}

static void connect_pair(int gid_index, enum ibv_mtu active)
{
    enum ibv_mtu mtu = IBV_MTU_256;
    while (mtu < active && path_mtu_bytes(mtu) < port.mtu)
        mtu++;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = port.qpn, .rq_psn = port.psn,
        .ah_attr = { .is_global = 1, .port_num = PORT,
                     .grh = { .dgid = port.gid, .sgid_index = gid_index, .hop_limit = 64 } },
    };
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN))
        die("to RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = psn;
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN))
        die("to RTS");
}

static void post(enum ibv_wr_opcode opcode, uint32_t place, uint32_t len, uint64_t address, uint32_t rkey, uint32_t imm)
{
    struct ibv_sge sge = { (uintptr_t)(memory + place * ROOM), len, mr->lkey };
    struct ibv_send_wr wr = {
        .wr_id = RECEIVES, .sg_list = &sge, .num_sge = len > 0, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
        .imm_data = htonl(imm), .wr.rdma = { .remote_addr = address, .rkey = rkey },
    }, *bad;
    if (ibv_post_send(qp, &wr, &bad))
        die("ibv_post_send");
}

static uint32_t payload_len(uint32_t n) { return n * 37 % 900; }

/* Sends request n, from place n % WINDOW. */
static void ask(uint32_t n, uint32_t slot)
{
    unsigned char *at = memory + n % WINDOW * ROOM;
    uint32_t args = payload_len(n), words[4] = { REQUEST, INCREMENT, args, n }, len = HEADER + args;
    memcpy(at, words, sizeof words);
    memset(at + 16, 0, 8);
    for (uint32_t i = 0; i < args; i++)
        at[HEADER + i] = n + i;
    uint32_t imm = port.psn24 ? n << 8 | slot : n << 12 | slot;
    uint64_t address = port.address + (uint64_t)slot * port.stride;
    uint32_t place = n % WINDOW, full = port.stride < ROOM ? port.stride : ROOM;
    switch (n % 8) {
    case 5:
        post(IBV_WR_RDMA_WRITE, place, len, address, port.rkey, 0);
        post(IBV_WR_RDMA_WRITE_WITH_IMM, place, 0, address, port.rkey, imm);
        break;
    case 6:
        post(IBV_WR_SEND, place, len, 0, 0, 0);
        break;
    case 7:
        memset(at + len, 0, full - len);
        len = full;
        /* fall through */
    default:
        post(IBV_WR_RDMA_WRITE_WITH_IMM, place, len, address, port.rkey, imm);
    }
}

/* What must be counted and have no effect. */
static void misbehave(int kind)
{
    uint64_t end = port.address + (uint64_t)port.slots * port.stride;
    uint32_t beyond = port.psn24 ? 4 : port.slots;
    switch (kind) {
    case 0: post(IBV_WR_RDMA_WRITE_WITH_IMM, ZEROS, HEADER, port.address, port.rkey ^ 1, 0); break;
    case 1: post(IBV_WR_RDMA_WRITE_WITH_IMM, ZEROS, HEADER, end - HEADER + 1, port.rkey, 0); break;
    case 2: post(IBV_WR_RDMA_WRITE_WITH_IMM, ZEROS, HEADER, port.address, port.rkey, beyond); break;
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void check(const unsigned char *answer, uint32_t len, bool *waiting, uint32_t *answered)
{
    uint32_t words[4], n;
    memcpy(words, answer, sizeof words);
    n = words[3];
    if (len < HEADER || words[0] != RESPONSE || words[1] != 0 || words[2] != payload_len(n) || len != HEADER + words[2]) {
        printf("wrong answer of %u bytes: %08x status %d length %u request %u\n", len, words[0], words[1], words[2], n);
        exit(1);
    }
    for (uint32_t i = 0; i < words[2]; i++) {
        if (answer[HEADER + i] != (unsigned char)(n + i + 1)) {
            printf("wrong byte %u in the answer to request %u\n", i, n);
            exit(1);
        }
    }
    if (!waiting[n % WINDOW]) {
        printf("a second answer to request %u\n", n);
        exit(1);
    }
    waiting[n % WINDOW] = false;
    ++*answered;
}

int main(int argc, char **argv)
{
    if (argc != 7 && argc != 10) {
        printf("usage: uc_rpc DEVICE GID_INDEX IPV4 PORT berth|host-api COUNT [SLOTS STRIDE psn20|psn24]\n");
        return 1;
    }
    int gid_index = atoi(argv[2]);
    bool own = !strcmp(argv[5], "berth");
    uint32_t count = strtoul(argv[6], NULL, 0);
    if (argc == 10) {
        port.slots = strtoul(argv[7], NULL, 0);
        port.stride = strtoul(argv[8], NULL, 0);
        port.psn24 = !strcmp(argv[9], "psn24");
    }
    open_device(argv[1], gid_index);
    struct ibv_port_attr attr;
    if (ibv_query_port(context, PORT, &attr))
        die("ibv_query_port");
    srand(getpid());
    psn = own ? rand() & 0xffffff : 0;

    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[4])) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (inet_pton(AF_INET, argv[3], &to.sin_addr) != 1 || connect(fd, (void *)&to, sizeof to))
        die("connect");
    if (own)
        berth(fd, path_mtu_bytes(attr.active_mtu));
    else
        host_api(fd);
    connect_pair(gid_index, attr.active_mtu);

    bool waiting[WINDOW] = { false };
    double sent[WINDOW];
    uint32_t answered = 0, next = 0, lost = 0, bad = 0;
    while (answered + lost < count) {
        /* In order: a place is free once its request was answered. */
        if (next < count && !waiting[next % WINDOW]) {
            if (bad < 3 * BAD && next % 64 == 63)
                misbehave(bad++ % 3);
            waiting[next % WINDOW] = true;
            sent[next % WINDOW] = seconds();
            ask(next, next % port.slots);
            next++;
        }
        struct ibv_wc wc[8];
        int n = ibv_poll_cq(cq, 8, wc);
        for (int i = 0; i < n; i++) {
            if (wc[i].status != IBV_WC_SUCCESS) {
                printf("completion: %s\n", ibv_wc_status_str(wc[i].status));
                return 1;
            }
            if (wc[i].wr_id == RECEIVES)
                continue;
            check(memory + (WINDOW + wc[i].wr_id) * ROOM, wc[i].byte_len, waiting, &answered);
            post_receive(wc[i].wr_id);
        }
        /* The fabric is unreliable; a whole second without an answer is loss. */
        for (int place = 0; n == 0 && place < WINDOW; place++) {
            if (waiting[place] && seconds() - sent[place] > 1) {
                waiting[place] = false;
                lost++;
            }
        }
    }
    printf("answered %u lost %u bad %u\n", answered, lost, bad);
    return lost > 0 || answered != count;
}
