// pkg-config: libibverbs
/*
 * An RDMA client of a leased memory, written against libibverbs alone.
 *
 * usage: lease_rdma DEVICE GID_INDEX
 *
 * Obeys commands on standard input, one a line, and answers each by one line. Numbers are decimal or 0x...
 *
 *   new                     a fresh queue pair         -> local QPN PSN GID MTU
 *   connect QPN PSN GID     to the node's queue pair   -> ok | fail WHY
 *   key RKEY ADDR           the lease                  -> ok
 *   write OFFSET LEN BYTE   LEN bytes of BYTE          -> ok | fail STATUS
 *   read OFFSET LEN         LEN bytes                  -> ok FIRST LAST SUM | fail STATUS
 *   same OFFSET LEN BYTE    as read; all must be BYTE  -> ok | differ AT BYTE | fail STATUS
 *   writes OFFSET LEN BYTE COUNT   writes, one after another, until one fails  -> ok COUNT | fail STATUS AFTER
 *   reads OFFSET LEN COUNT         the same with reads
 *   flood OFFSET LEN        keeps reads and writes in flight until one fails -> flooding (at once), fail STATUS
 *   skip N                  `connect` then begins N packets too late -> ok
 *
 * STATUS is the completion's as ibv_wc_status_str has it, its spaces replaced by dashes, or `no-completion`.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <infiniband/verbs.h>

enum { PORT = 1, BUFFER = 1 << 20, DEPTH = 16 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static unsigned char *buffer;
static union ibv_gid gid;
static int gid_index;
static enum ibv_mtu mtu;
static uint32_t psn, psn_skip;
static uint32_t rkey;
static uint64_t remote;

static void say(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
}

static void die(const char *what)
{
    say("fatal %s: %s", what, strerror(errno));
    exit(1);
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void open_device(const char *name)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (int i = 0; i < count; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            context = ibv_open_device(list[i]);
    if (!context)
        die("no such device");
    ibv_free_device_list(list);
    struct ibv_port_attr port;
    if (ibv_query_port(context, PORT, &port))
        die("ibv_query_port");
    mtu = port.active_mtu;
    if (ibv_query_gid(context, PORT, gid_index, &gid))
        die("ibv_query_gid");
    if (!(pd = ibv_alloc_pd(context)))
        die("ibv_alloc_pd");
    if (!(cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)))
        die("ibv_create_cq");
    if (posix_memalign((void **)&buffer, 4096, BUFFER))
        die("posix_memalign");
    memset(buffer, 0, BUFFER);
    if (!(mr = ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE)))
        die("ibv_reg_mr");
}

static void new_queue_pair(void)
{
    if (qp)
        ibv_destroy_qp(qp);
    struct ibv_wc wc;
    while (ibv_poll_cq(cq, 1, &wc) > 0)
        ;
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    if (!(qp = ibv_create_qp(pd, &init)))
        die("ibv_create_qp");
    /* The node writes no bytes here now and then, to find out whether this client lives. */
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        die("to INIT");
    psn = ((uint32_t)random() ^ (uint32_t)now_ms()) & 0xffffff;
    psn_skip = 0;
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, gid.raw, text, sizeof text);
    say("local %u %u %s %u", qp->qp_num, psn, text, 128u << mtu);
}

static void connect_to(uint32_t qpn, uint32_t peer_psn, const char *peer_gid)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = qpn,
        .rq_psn = peer_psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = PORT, .grh = {.hop_limit = 64, .sgid_index = gid_index}},
    };
    if (inet_pton(AF_INET6, peer_gid, attr.ah_attr.grh.dgid.raw) != 1) {
        say("fail bad-gid");
        return;
    }
    if (ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) {
        say("fail to-RTR:-%s", strerror(errno));
        return;
    }
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = (psn + psn_skip) & 0xffffff;
    attr.timeout = 12; /* 17 ms */
    attr.retry_cnt = 5;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    if (ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_MAX_QP_RD_ATOMIC))
        say("fail to-RTS:-%s", strerror(errno));
    else
        say("ok");
}

static int post(bool read, uint64_t offset, uint32_t len)
{
    struct ibv_sge sge = {.addr = (uintptr_t)buffer, .length = len, .lkey = mr->lkey};
    struct ibv_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = remote + offset, .rkey = rkey},
    };
    struct ibv_send_wr *bad;
    return ibv_post_send(qp, &wr, &bad);
}

/* How the oldest transfer ended; NULL for well. */
static const char *outcome(void)
{
    static char text[64];
    struct ibv_wc wc;
    uint64_t end = now_ms() + 20000;
    int got;
    while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
        if (now_ms() > end)
            return "no-completion";
    if (got < 0)
        return "ibv_poll_cq";
    if (wc.status == IBV_WC_SUCCESS)
        return NULL;
    snprintf(text, sizeof text, "%s", ibv_wc_status_str(wc.status));
    for (char *c = text; *c; c++)
        if (*c == ' ')
            *c = '-';
    return text;
}

static const char *transfer(bool read, uint64_t offset, uint32_t len)
{
    return post(read, offset, len) ? "ibv_post_send" : outcome();
}

static void flood(uint64_t offset, uint32_t len)
{
    int in_flight = 0, n = 0;
    say("flooding");
    for (;;) {
        while (in_flight < DEPTH) {
            if (post(n++ & 1, offset, len))
                break;
            in_flight++;
        }
        const char *failed = in_flight ? outcome() : "ibv_post_send";
        if (failed) {
            say("fail %s", failed);
            return;
        }
        in_flight--;
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        die("usage: lease_rdma DEVICE GID_INDEX");
    gid_index = atoi(argv[2]);
    srandom((unsigned)now_ms());
    open_device(argv[1]);
    new_queue_pair();

    char line[256], word[16], text[64];
    while (fgets(line, sizeof line, stdin)) {
        uint64_t a = 0, b = 0, c = 0, d = 0;
        int used = 0;
        if (sscanf(line, "%15s %n", word, &used) != 1)
            continue;
        if (!strcmp(word, "connect")) {
            if (sscanf(line + used, "%" SCNi64 " %" SCNi64 " %63s", &a, &b, text) == 3)
                connect_to((uint32_t)a, (uint32_t)b, text);
            else
                say("fail usage");
            continue;
        }
        sscanf(line + used, "%" SCNi64 " %" SCNi64 " %" SCNi64 " %" SCNi64, &a, &b, &c, &d);
        bool moves = !strcmp(word, "write") || !strcmp(word, "read") || !strcmp(word, "same") ||
                     !strcmp(word, "writes") || !strcmp(word, "reads") || !strcmp(word, "flood");
        if (moves && b > BUFFER) {
            say("fail the-buffer-has-%d-bytes", BUFFER);
            continue;
        }
        uint32_t len = (uint32_t)b;
        const char *failed;
        if (!strcmp(word, "new")) {
            new_queue_pair();
        } else if (!strcmp(word, "skip")) {
            psn_skip = (uint32_t)a;
            say("ok");
        } else if (!strcmp(word, "key")) {
            rkey = (uint32_t)a;
            remote = b;
            say("ok");
        } else if (!strcmp(word, "write")) {
            memset(buffer, (int)c, len);
            failed = transfer(false, a, len);
            failed ? say("fail %s", failed) : say("ok");
        } else if (!strcmp(word, "read") || !strcmp(word, "same")) {
            memset(buffer, ~(int)c, len);
            if ((failed = transfer(true, a, len))) {
                say("fail %s", failed);
            } else if (*word == 'r') {
                uint64_t sum = 0;
                for (uint32_t i = 0; i < len; i++)
                    sum += buffer[i];
                say("ok %u %u %" PRIu64, buffer[0], buffer[len - 1], sum);
            } else {
                uint32_t i = 0;
                while (i < len && buffer[i] == (unsigned char)c)
                    i++;
                i < len ? say("differ %u %u", i, buffer[i]) : say("ok");
            }
        } else if (!strcmp(word, "writes") || !strcmp(word, "reads")) {
            bool read = *word == 'r';
            uint64_t count = read ? c : d, done = 0;
            if (!read)
                memset(buffer, (int)c, len);
            failed = NULL;
            while (done < count && !(failed = transfer(read, a, len)))
                done++;
            failed ? say("fail %s %" PRIu64, failed, done) : say("ok %" PRIu64, done);
        } else if (!strcmp(word, "flood")) {
            flood(a, len);
        } else {
            say("fail unknown-command");
        }
    }
    return 0;
}
