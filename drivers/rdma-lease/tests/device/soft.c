/*
 * A libibverbs with one device, soft0, that reaches nothing: it only notes what it is asked to make and to end, a line each,
 * in the file `log` of the folder SOFT_VERBS. As long as that folder has a file `stuck`, no region can be deregistered. A
 * dma-buf says by its first four bytes which error to refuse it with, or 0.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

static struct ibv_device device = {.name = "soft0"};
static struct ibv_device *list[] = {&device, NULL};
static uint32_t objects;
/* What has completed, and where the last window begins. */
static struct ibv_wc done[64];
static unsigned first, end;
static uint64_t window;

static const char *file(const char *name)
{
    static __thread char path[200];
    snprintf(path, sizeof path, "%s/%s", getenv("SOFT_VERBS"), name);
    return path;
}

static void note(const char *format, ...)
{
    FILE *log = fopen(file("log"), "a");
    va_list list;
    va_start(list, format);
    vfprintf(log, format, list);
    va_end(list);
    fputc('\n', log);
    fclose(log);
}

static int ended(const char *what, uint32_t handle, void *object)
{
    note("end %s %" PRIu32, what, handle);
    free(object);
    return 0;
}

struct ibv_device **ibv_get_device_list(int *count)
{
    *count = 1;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) {}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    struct ibv_mw *mw = calloc(1, sizeof *mw);
    *mw = (struct ibv_mw){.context = pd->context, .pd = pd, .handle = ++objects, .type = type, .rkey = objects << 8};
    note("window %" PRIu32 " in %" PRIu32, mw->handle, pd->handle);
    return mw;
}

static int dealloc_mw(struct ibv_mw *mw)
{
    return ended("window", mw->handle, mw);
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
    int polled = 0;
    while (polled < count && first != end)
        wc[polled++] = done[first++ % 64];
    return polled;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    for (; wr; wr = wr->next) {
        struct ibv_wc *wc = &done[end++ % 64];
        *wc = (struct ibv_wc){.wr_id = wr->wr_id, .qp_num = qp->qp_num};
        if (wr->opcode == IBV_WR_BIND_MW)
            window = wr->bind_mw.bind_info.addr;
        else if (wr->opcode == IBV_WR_RDMA_READ && wr->wr.rdma.remote_addr != window)
            wc->status = IBV_WC_REM_ACCESS_ERR;
    }
    return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct ibv_context *context = calloc(1, sizeof *context);
    context->device = device;
    context->async_fd = open("/dev/null", O_RDONLY);
    context->ops.alloc_mw = alloc_mw;
    context->ops.dealloc_mw = dealloc_mw;
    context->ops.poll_cq = poll_cq;
    context->ops.post_send = post_send;
    snprintf(device->dev_path, sizeof device->dev_path, "%s", getenv("SOFT_VERBS"));
    return context;
}

int ibv_close_device(struct ibv_context *context)
{
    close(context->async_fd);
    free(context);
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    *attr = (struct ibv_device_attr){.phys_port_cnt = 1, .max_cqe = 64, .device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B};
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t size)
{
    entry->gid.raw[15] = 1;
    return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    return -1;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    *pd = (struct ibv_pd){.context = context, .handle = ++objects};
    note("domain %" PRIu32, pd->handle);
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    return ended("domain", pd->handle, pd);
}

static struct ibv_mr *registered(struct ibv_pd *pd)
{
    struct ibv_mr *mr = calloc(1, sizeof *mr);
    *mr = (struct ibv_mr){.context = pd->context, .pd = pd, .handle = ++objects, .rkey = objects << 8};
    return mr;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
    struct ibv_mr *mr = registered(pd);
    note("region %" PRIu32 " in %" PRIu32 ": %zu bytes, access %x", mr->handle, pd->handle, length, access);
    return mr;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
    int error = EBADF;
    if (pread(fd, &error, sizeof error, 0) != sizeof error || error) {
        errno = error;
        return NULL;
    }
    struct ibv_mr *mr = registered(pd);
    note("dma-buf %" PRIu32 " in %" PRIu32 ": %zu bytes at %" PRIx64 " as %" PRIx64 ", access %x", mr->handle, pd->handle,
         length, offset, iova, access);
    return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    return access(file("stuck"), F_OK) == 0 ? EBUSY : ended("region", mr->handle, mr);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *user, struct ibv_comp_channel *channel, int vector)
{
    struct ibv_cq *cq = calloc(1, sizeof *cq);
    cq->context = context;
    return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
    free(cq);
    return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp *qp = calloc(1, sizeof *qp);
    *qp = (struct ibv_qp){.context = pd->context, .pd = pd, .qp_num = ++objects};
    note("queue pair %" PRIu32 " in %" PRIu32, qp->qp_num, pd->handle);
    return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
    return ended("queue pair", qp->qp_num, qp);
}
