/* An NVMe controller over VFIO, by polling: `vfio_nvme DEVICE NAMESPACE read | write TEXT | hold`. It prints which controller it is
 * and which namespaces it has; `read` prints the text at the front of the namespace's first block. `hold` prints "ready", then
 * asks once a second until it is ended, and prints "silent" when no answer came. */
#include <endian.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 8
#define PAGE 4096
#define IOVA 0x100000
/* Pages of the memory that the controller sees. */
enum { ADMIN_SQ, ADMIN_CQ, IO_SQ, IO_CQ, DATA, PAGES };
/* Registers. */
enum { CAP = 0x00, CC = 0x14, CSTS = 0x1C, AQA = 0x24, ASQ = 0x28, ACQ = 0x30, DOORBELLS = 0x1000 };

static volatile uint8_t *registers;
static uint8_t *memory;
static unsigned stride;

struct queue {
    int id, tail, head, phase;
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static uint32_t get(unsigned at) { return le32toh(*(volatile uint32_t *)(registers + at)); }
static void set(unsigned at, uint32_t value) { *(volatile uint32_t *)(registers + at) = htole32(value); }

static void set_address(unsigned at, int page)
{
    set(at, IOVA + page * PAGE);
    set(at + 4, 0);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* The status of a command; -1 if no answer came in time. */
static int submit(struct queue *q, uint8_t opcode, uint32_t nsid, uint32_t dw10, uint32_t dw11, int page, double patience)
{
    uint32_t *sqe = (uint32_t *)(memory + (q->id ? IO_SQ : ADMIN_SQ) * PAGE + q->tail * 64);
    volatile uint16_t *cqe = (uint16_t *)(memory + (q->id ? IO_CQ : ADMIN_CQ) * PAGE + q->head * 16);
    memset(sqe, 0, 64);
    sqe[0] = htole32(opcode | (uint32_t)q->tail << 16);
    sqe[1] = htole32(nsid);
    sqe[6] = htole32(IOVA + page * PAGE);
    sqe[10] = htole32(dw10);
    sqe[11] = htole32(dw11);
    q->tail = (q->tail + 1) % DEPTH;
    __sync_synchronize();
    set(DOORBELLS + 2 * q->id * stride, q->tail);
    for (double end = now() + patience; (le16toh(cqe[7]) & 1) != q->phase; usleep(1000))
        if (now() > end)
            return -1;
    int status = le16toh(cqe[7]) >> 1;
    q->head = (q->head + 1) % DEPTH;
    q->phase ^= q->head == 0;
    set(DOORBELLS + (2 * q->id + 1) * stride, q->head);
    return status;
}

static void must(struct queue *q, const char *what, uint8_t opcode, uint32_t nsid, uint32_t dw10, uint32_t dw11, int page)
{
    int status = submit(q, opcode, nsid, dw10, dw11, page, 10);
    if (status) {
        printf("%s: status %#x\n", what, status);
        exit(1);
    }
}

static void open_device(const char *device)
{
    char path[256], target[256] = "", group_path[256];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/iommu_group", device);
    if (readlink(path, target, sizeof target - 1) < 0)
        fail(path);
    snprintf(group_path, sizeof group_path, "/dev/vfio/%s", strrchr(target, '/') + 1);
    int container = open("/dev/vfio/vfio", O_RDWR), group = open(group_path, O_RDWR);
    if (container < 0 || group < 0)
        fail(group_path);
    if (ioctl(group, VFIO_GROUP_SET_CONTAINER, &container) || ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU))
        fail("container");
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct vfio_iommu_type1_dma_map map = { .argsz = sizeof map,
                                            .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
                                            .vaddr = (uintptr_t)memory,
                                            .iova = IOVA,
                                            .size = PAGES * PAGE };
    if (ioctl(container, VFIO_IOMMU_MAP_DMA, &map))
        fail("memory");
    int fd = ioctl(group, VFIO_GROUP_GET_DEVICE_FD, device);
    if (fd < 0)
        fail("device");
    struct vfio_region_info config = { .argsz = sizeof config, .index = VFIO_PCI_CONFIG_REGION_INDEX };
    struct vfio_region_info bar = { .argsz = sizeof bar, .index = VFIO_PCI_BAR0_REGION_INDEX };
    if (ioctl(fd, VFIO_DEVICE_GET_REGION_INFO, &config) || ioctl(fd, VFIO_DEVICE_GET_REGION_INFO, &bar))
        fail("regions");
    /* Memory space and bus master of the command register. */
    uint16_t command;
    if (pread(fd, &command, 2, config.offset + 4) != 2)
        fail("configuration");
    command |= htole16(6);
    if (pwrite(fd, &command, 2, config.offset + 4) != 2)
        fail("configuration");
    registers = mmap(NULL, bar.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, bar.offset);
    if (registers == MAP_FAILED)
        fail("registers");
}

static void wait_for(unsigned ready)
{
    for (double end = now() + 10; (get(CSTS) & 1) != ready; usleep(1000))
        if (now() > end) {
            printf("the controller does not become ready: CSTS %#x\n", get(CSTS));
            exit(1);
        }
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    uint32_t namespace = atoi(argv[2]);
    struct queue admin = { .id = 0, .phase = 1 }, io = { .id = 1, .phase = 1 };
    setlinebuf(stdout);
    open_device(argv[1]);
    stride = 4u << (get(CAP + 4) & 0xF);
    set(CC, 0);
    wait_for(0);
    set(AQA, (DEPTH - 1) << 16 | (DEPTH - 1));
    set_address(ASQ, ADMIN_SQ);
    set_address(ACQ, ADMIN_CQ);
    /* Entries of 2^6 and 2^4 bytes, enabled. */
    set(CC, 4 << 20 | 6 << 16 | 1);
    wait_for(1);

    uint8_t *data = memory + DATA * PAGE;
    must(&admin, "Identify Controller", 0x06, 0, 1, 0, DATA);
    printf("controller %d\n", data[78] | data[79] << 8);
    must(&admin, "Active Namespaces", 0x06, 0, 2, 0, DATA);
    printf("namespaces");
    for (uint32_t *id = (uint32_t *)data; *id && id < (uint32_t *)(data + PAGE); id++)
        printf(" %u", le32toh(*id));
    printf("\n");
    if (!strcmp(argv[3], "hold")) {
        printf("ready\n");
        for (;; sleep(1))
            if (submit(&admin, 0x06, 0, 1, 0, DATA, 3) < 0) {
                printf("silent\n");
                pause();
            }
    }
    /* One pair of queues for I/O, without an interrupt. */
    must(&admin, "Number of Queues", 0x09, 0, 7, 0, DATA);
    must(&admin, "Create Completion Queue", 0x05, 0, (DEPTH - 1) << 16 | 1, 1, IO_CQ);
    must(&admin, "Create Submission Queue", 0x01, 0, (DEPTH - 1) << 16 | 1, 1 << 16 | 1, IO_SQ);
    memset(data, 0, PAGE);
    if (!strcmp(argv[3], "write") && argc == 5) {
        strncpy((char *)data, argv[4], 511);
        must(&io, "Write", 0x01, namespace, 0, 0, DATA);
    } else {
        must(&io, "Read", 0x02, namespace, 0, 0, DATA);
        printf("text %.511s\n", data);
    }
    /* An orderly end: nothing is on its way when memory is gone. */
    set(CC, 0);
    wait_for(0);
    return 0;
}
