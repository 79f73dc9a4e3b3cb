/* The baseline of the uring port: a multishot recvmsg into a buffer ring, answered from the same buffer; single
 * issuer, deferred task work, spinning on io_uring_submit_and_get_events.
 * Build: cc -O3 -o uring_echo uring_echo.c -luring    Run: uring_echo PORT CPU */
#define _GNU_SOURCE
#include "echo.h"

#include <liburing.h>
#include <sys/mman.h>

#define BUFFERS 256
#define STRIDE (MAX_FRAME + 128)
#define RECEIVE (~0ull)

static struct io_uring ring;
static struct io_uring_buf_ring *lent;
static char *buffers;
static struct msghdr template = {.msg_namelen = sizeof(struct sockaddr_in)};

static char *buffer(unsigned index) { return buffers + (size_t)index * STRIDE; }

static void lend(unsigned index) {
    io_uring_buf_ring_add(lent, buffer(index), STRIDE, (unsigned short)index, io_uring_buf_ring_mask(BUFFERS), 0);
    io_uring_buf_ring_advance(lent, 1);
}

static struct io_uring_sqe *request(void) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (!sqe)
        errx(1, "the submission queue is full");
    return sqe;
}

static void receive(void) {
    struct io_uring_sqe *sqe = request();
    io_uring_prep_recvmsg_multishot(sqe, 0, &template, 0);
    sqe->flags |= IOSQE_FIXED_FILE | IOSQE_BUFFER_SELECT;
    sqe->buf_group = 0;
    io_uring_sqe_set_data64(sqe, RECEIVE);
}

static void answer(unsigned index, int len) {
    struct io_uring_recvmsg_out *out = io_uring_recvmsg_validate(buffer(index), len, &template);
    if (!out)
        errx(1, "a short completion");
    unsigned payload = io_uring_recvmsg_payload_length(out, len, &template);
    struct io_uring_sqe *sqe = request();
    io_uring_prep_send(sqe, 0, io_uring_recvmsg_payload(out, &template), payload, 0);
    io_uring_prep_send_set_addr(sqe, io_uring_recvmsg_name(out), sizeof(struct sockaddr_in));
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, index);
}

static void complete(struct io_uring_cqe *cqe) {
    if (cqe->user_data != RECEIVE) {
        lend((unsigned)cqe->user_data);
        return;
    }
    if (cqe->flags & IORING_CQE_F_BUFFER)
        answer(cqe->flags >> IORING_CQE_BUFFER_SHIFT, cqe->res);
    if (!(cqe->flags & IORING_CQE_F_MORE))
        receive();
}

int main(int argc, char **argv) {
    int fd = start(argc, argv, SOCK_DGRAM);
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    int rc = io_uring_queue_init_params(1024, &ring, &params);
    if (rc < 0)
        errx(1, "io_uring: %s", strerror(-rc));
    const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    buffers = mmap(NULL, (size_t)BUFFERS * STRIDE, prot, flags, -1, 0);
    lent = mmap(NULL, BUFFERS * sizeof(struct io_uring_buf), prot, flags, -1, 0);
    if (buffers == MAP_FAILED || lent == MAP_FAILED)
        err(1, "mmap");
    io_uring_buf_ring_init(lent);
    struct io_uring_buf_reg reg = {.ring_addr = (unsigned long)lent, .ring_entries = BUFFERS, .bgid = 0};
    if (io_uring_register_buf_ring(&ring, &reg, 0) || io_uring_register_files(&ring, &fd, 1))
        errx(1, "registering the buffers and the socket");
    for (unsigned index = 0; index < BUFFERS; index++)
        lend(index);
    receive();
    ready(fd);
    while (!stopped) {
        struct io_uring_cqe *cqe;
        unsigned head, seen = 0;
        io_uring_submit_and_get_events(&ring);
        io_uring_for_each_cqe(&ring, head, cqe) {
            complete(cqe);
            seen++;
        }
        io_uring_cq_advance(&ring, seen);
    }
    io_uring_queue_exit(&ring);
    return 0;
}
