// pkg-config: libibverbs
/*
 * An RDMA client of an RPC port, written against libibverbs alone: calls rpc_increment and checks every answer.
 *
 * usage: rpc_rdma DEVICE GID_INDEX ADDRESS PORT FORM KIND COUNT [FAULT]
 *
 * ADDRESS and PORT are the rendezvous's. FORM is host-api (12 bytes each way) or berth (TLVs).
 * KIND is uc-write, rc-write (RDMA WRITE with immediate into slots), uc-send, rc-send (SEND), or rc-back, as rc-write
 * with answers written back into slots of ours. host-api is uc-write.
 * FAULT is
 *   rkey   the first write names a wrong rkey: a reliable connection fails with remote-access-error
 *   range  the first write ends one byte behind the port's slots: the same
 *   slot   every tenth immediate names a slot that there is not, and gets no answer
 *   gap    every tenth immediate is preceded by a number that no packet has
 *   full   not one: as many requests under way as the port has slots, and no second try where it has no receive posted
 *   long   the same with requests that do not travel inline
 *   over   each request, a long one, is overwritten soon after it was written: what is answered must be an answer
 *   twice  every tenth request is written twice in a row into its slot, before there is an answer
 *   die    the process is killed with work in flight, after COUNT answers
 *   last   waits for the connection to be lost, after COUNT answers, and says so
 *
 * Prints "answers N" and ends with 0 if every request that was to be answered was, rightly and once.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

enum { HEADER = 24, WINDOW = 16, DEPTH = 64, STRIDE = 2048, SLOTS = 64 };
enum { REQUESTS = 0, ANSWERS = DEPTH * STRIDE, BACK = 2 * DEPTH * STRIDE, BYTES = 3 * DEPTH * STRIDE };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static unsigned char *buffer;
static union ibv_gid gid, their_gid;
static enum ibv_mtu mtu;
static uint32_t psn, their_psn, their_qp, rkey, slots = SLOTS, stride = STRIDE, told;
static uint32_t payload = 32, window = WINDOW;
static uint64_t base;
static bool reliable, writes, back;
static const char *fault = "";

static void die(const char *what)
{
    fprintf(stderr, "rpc_rdma: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static bool is_fault(const char *name)
{
    return !strcmp(fault, name);
}

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void open_device(const char *name, int gid_index)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (int i = 0; i < count; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            context = ibv_open_device(list[i]);
    if (!context)
        die("no such device");
    struct ibv_port_attr port;
    if (ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, gid_index, &gid))
        die("query");
    mtu = port.active_mtu;
    if (!(pd = ibv_alloc_pd(context)) || !(cq = ibv_create_cq(context, 1024, NULL, NULL, 0)))
        die("pd and cq");
    if (posix_memalign((void **)&buffer, 4096, BYTES))
        die("posix_memalign");
    memset(buffer, 0, BYTES);
    if (!(mr = ibv_reg_mr(pd, buffer, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)))
        die("ibv_reg_mr");
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = reliable ? IBV_QPT_RC : IBV_QPT_UC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 4 * DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };
    if (!(qp = ibv_create_qp(pd, &init)))
        die("ibv_create_qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        die("to INIT");
}

static void post_receive(int slot)
{
    struct ibv_sge sge = {
        .addr = (uint64_t)(uintptr_t)(buffer + ANSWERS + slot * STRIDE), .length = STRIDE, .lkey = mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = back ? 0 : 1}, *bad;
    if (ibv_post_recv(qp, &wr, &bad))
        die("ibv_post_recv");
}

static void connect_queue_pair(int gid_index)
{
    for (int slot = 0; slot < DEPTH; slot++)
        post_receive(slot);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = their_qp,
        .rq_psn = their_psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64, .sgid_index = gid_index}},
    };
    attr.ah_attr.grh.dgid = their_gid;
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (ibv_modify_qp(qp, &attr, reliable ? mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : mask))
        die("to RTR");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 12, .retry_cnt = 6, .max_rd_atomic = 1,
        .rnr_retry = window == slots ? 0 : 7};
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (ibv_modify_qp(qp, &attr, reliable ? mask | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                                IBV_QP_MAX_QP_RD_ATOMIC
                                          : mask))
        die("to RTS");
}

/* --- the rendezvous --- */

static void put(unsigned char **at, uint64_t value, int bytes)
{
    while (bytes--)
        *(*at)++ = value >> (8 * bytes);
}

static uint64_t get(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    while (bytes--)
        value = value << 8 | *at++;
    return value;
}

static void read_whole(int fd, void *into, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t got = read(fd, (char *)into + done, len - done);
        if (got <= 0)
            die("the rendezvous closed");
        done += got;
    }
}

static int rendezvous(const char *address, int port, bool host_api, int kind)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to))
        die("connect");
    unsigned char message[4096], *at = message;
    if (host_api) {
        psn = their_psn = 0;
        put(&at, qp->qp_num, 4);
        put(&at, 0, 4);
        memcpy(at, gid.raw + 12, 4);
        if (write(fd, message, 12) != 12)
            die("write");
        read_whole(fd, message, 12);
        their_qp = get(message, 4);
        rkey = get(message + 4, 4);
        memset(their_gid.raw, 0, 10);
        memset(their_gid.raw + 10, 0xff, 2);
        memcpy(their_gid.raw + 12, message + 8, 4);
        return fd;
    }
    psn = ((uint32_t)now_ms() * 2654435761u) >> 8;
    put(&at, 0, 4);
    put(&at, 0x0410, 2), put(&at, 26, 2), put(&at, qp->qp_num, 4);
    memcpy(at, gid.raw, 16), at += 16;
    put(&at, psn, 4), put(&at, 128u << mtu, 2);
    put(&at, 0x0412, 2), put(&at, 1, 2), put(&at, kind, 1);
    if (back) {
        put(&at, 0x0201, 2), put(&at, 4, 2), put(&at, mr->rkey, 4);
        put(&at, 0x0202, 2), put(&at, 8, 2), put(&at, (uint64_t)(uintptr_t)(buffer + BACK), 8);
        put(&at, 0x0413, 2), put(&at, 9, 2), put(&at, SLOTS, 4), put(&at, STRIDE, 4), put(&at, 1, 1);
    }
    unsigned char *start = message;
    put(&start, at - message - 4, 4);
    if (write(fd, message, at - message) != at - message)
        die("write");
    read_whole(fd, message, 6);
    uint32_t status = get(message, 2), len = get(message + 2, 4);
    if (status || len > sizeof message) {
        fprintf(stderr, "rpc_rdma: refused with status %u\n", status);
        exit(3);
    }
    read_whole(fd, message, len);
    for (uint32_t i = 0; i + 4 <= len;) {
        uint32_t tag = get(message + i, 2), size = get(message + i + 2, 2);
        const unsigned char *value = message + i + 4;
        switch (tag) {
        case 0x0201: rkey = get(value, 4); break;
        case 0x0202: base = get(value, 8); break;
        case 0x0203: their_qp = get(value, 4); break;
        case 0x0204: memcpy(their_gid.raw, value, 16); break;
        case 0x0206: their_psn = get(value, 4); break;
        case 0x0413: slots = get(value, 4), stride = get(value + 4, 4); break;
        case 0x0414: while (128u << mtu > get(value, 2)) mtu--; break;
        }
        i += 4 + size;
    }
    return fd;
}

/* --- calls --- */

static unsigned char argument(uint32_t id, int at)
{
    return id * 31 + at * 7 + (id >> 8);
}

static void little(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = value >> (8 * i);
}

static uint32_t from_little(const unsigned char *at)
{
    return at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
}

static void post(uint32_t id, uint32_t slot, uint32_t named)
{
    unsigned char *frame = buffer + REQUESTS + id % DEPTH * STRIDE;
    little(frame, 0x43555152);
    little(frame + 4, 0x191b6322);
    little(frame + 8, payload);
    little(frame + 12, id);
    little(frame + 16, id ^ 0x55555555);
    little(frame + 20, ~id);
    for (int i = 0; i < payload; i++)
        frame[HEADER + i] = argument(id, i);
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)frame, .length = (HEADER + payload), .lkey = mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 1000 + id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    if (writes) {
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        told = (told + 1) & 0xfffff;
        wr.imm_data = htonl(told << 12 | named);
        wr.wr.rdma.remote_addr = base + (uint64_t)slot * stride;
        wr.wr.rdma.rkey = rkey;
        if (is_fault("rkey"))
            wr.wr.rdma.rkey ^= 0x5500;
        if (is_fault("range"))
            wr.wr.rdma.remote_addr = base + (uint64_t)slots * stride - (HEADER + payload) + 1;
    }
    if (ibv_post_send(qp, &wr, &bad))
        die("ibv_post_send");
}

/* Overwrites the slot of the request before. */
static void overwrite(uint32_t slot)
{
    memset(buffer + BACK, 0xEE, HEADER + payload);
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)(buffer + BACK), .length = HEADER + payload, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 1000, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    wr.wr.rdma.remote_addr = base + (uint64_t)slot * stride;
    wr.wr.rdma.rkey = rkey;
    if (ibv_post_send(qp, &wr, &bad))
        die("ibv_post_send");
}

/* Asks COUNT times, one by one, and overwrites each request a little later; some are not answered. */
static int ask_and_overwrite(uint32_t count)
{
    uint32_t answered = 0;
    for (uint32_t id = 0; id < count; id++) {
        uint64_t begun = now_us();
        post(id, id % slots, id % slots);
        while (now_us() - begun < id % 64)
            ;
        overwrite(id % slots);
        while (now_us() - begun < 2000) {
            struct ibv_wc wc;
            if (ibv_poll_cq(cq, 1, &wc) == 0)
                continue;
            if (wc.status != IBV_WC_SUCCESS) {
                printf("fail %s after %u\n", ibv_wc_status_str(wc.status), answered);
                return 5;
            }
            if (wc.wr_id >= 1000)
                continue;
            const unsigned char *answer = buffer + ANSWERS + wc.wr_id * STRIDE;
            if (from_little(answer) != 0x43555153 || from_little(answer + 8) + HEADER != wc.byte_len) {
                printf("fail answer %u is none\n", answered);
                return 1;
            }
            answered++;
            post_receive(wc.wr_id);
        }
    }
    printf(answered > 0 ? "answers\n" : "no answers\n");
    return 0;
}

static const char *wrong(const unsigned char *answer, uint32_t *id)
{
    *id = from_little(answer + 12);
    if (from_little(answer) != 0x43555153)
        return "magic";
    if (from_little(answer + 4) != 0)
        return "status";
    if (from_little(answer + 8) != payload)
        return "length";
    if (from_little(answer + 16) != (*id ^ 0x55555555) || from_little(answer + 20) != ~*id)
        return "time stamp";
    for (int i = 0; i < payload; i++)
        if (answer[HEADER + i] != (unsigned char)(argument(*id, i) + 1))
            return "payload";
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 8) {
        fprintf(stderr, "usage: rpc_rdma DEVICE GID_INDEX ADDRESS PORT FORM KIND COUNT [FAULT]\n");
        return 2;
    }
    int gid_index = atoi(argv[2]);
    const char *kind = argv[6];
    uint32_t count = strtoul(argv[7], NULL, 0);
    fault = argc > 8 ? argv[8] : "";
    reliable = kind[0] == 'r';
    back = !strcmp(kind, "rc-back");
    writes = back || strstr(kind, "write");
    int code = !writes ? (reliable ? 2 : 5) : reliable ? 3 : 1;
    if (is_fault("full") || is_fault("long"))
        window = SLOTS;
    if (is_fault("long") || is_fault("over"))
        payload = 1000;
    open_device(argv[1], gid_index);
    int fd = rendezvous(argv[3], atoi(argv[4]), !strcmp(argv[5], "host-api"), code);
    connect_queue_pair(gid_index);
    if (is_fault("over"))
        return ask_and_overwrite(count);

    unsigned char *open = calloc(1, (size_t)count + 1);
    uint32_t sent = 0, answered = 0, silent = 0, slot = 0;
    uint64_t last = now_ms();
    while (answered + silent < count) {
        while (sent < count && sent - answered - silent < window) {
            /* Not the last: what gets no answer has come when one behind it is answered. */
            bool tenth = sent % 10 == 5;
            if (is_fault("slot") && tenth) {
                post(sent++, slot, slots);
                silent++;
                continue;
            }
            if (is_fault("gap") && tenth)
                told += 3;
            open[sent] = 1;
            if (is_fault("twice") && tenth)
                post(sent, slot, slot);
            post(sent, slot, slot);
            slot = (slot + 1) % slots;
            sent++;
            last = now_ms();
        }
        struct ibv_wc wc;
        if (ibv_poll_cq(cq, 1, &wc) == 0) {
            if (now_ms() - last > 5000) {
                printf("answers %u of %u\n", answered, sent);
                return 1;
            }
            continue;
        }
        if (wc.status != IBV_WC_SUCCESS) {
            printf("fail %s after %u\n", ibv_wc_status_str(wc.status), answered);
            return wc.status == IBV_WC_REM_ACCESS_ERR ? 4 : 5;
        }
        if (wc.wr_id >= 1000)
            continue;
        uint32_t at = back ? ntohl(wc.imm_data) & 0xfff : 0;
        unsigned char *answer = back ? buffer + BACK + at * STRIDE : buffer + ANSWERS + wc.wr_id * STRIDE;
        uint32_t id;
        const char *what = wrong(answer, &id);
        if (!what && (id >= count || !open[id]))
            what = is_fault("twice") ? NULL : "id";
        if (what) {
            printf("fail a wrong %s in answer %u\n", what, id);
            return 1;
        }
        answered += open[id];
        open[id] = 0;
        last = now_ms();
        post_receive(wc.wr_id);
    }
    printf("answers %u\n", answered);
    fflush(stdout);
    if (is_fault("die")) {
        for (int i = 0; i < WINDOW; i++)
            post(sent + i, i % slots, i % slots);
        kill(getpid(), SIGKILL);
    }
    if (is_fault("last")) {
        struct pollfd lost = {.fd = fd, .events = POLLIN};
        if (poll(&lost, 1, 20000) != 1)
            return 1;
        printf("lost\n");
    }
    return 0;
}
