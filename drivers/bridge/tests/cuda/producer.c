/* Somebody else's ring, which Berth's dispatcher serves: pinned memory, and a kernel that is linked of Berth's texts and one's own.
 * usage: producer KERNELS REQUESTS BLOCKS; KERNELS is the folder with dispatch.ptx, handlers.ptx and example.ptx. */
#include <sched.h>
#include <string.h>

#include "driver.h"

enum { SLOTS = 64, SLOT_SIZE = 256, STRIDE = 256, MAX_BLOCKS = 8 };
enum { REQUEST = 0x43555152, ANSWER = 0x43555153, INCREMENT = 1, REVERSE = 2 };
enum { UNKNOWN_FUNCTION = -1, BAD_LENGTH = -2, SCHEMA_MISMATCH = -3 };
enum { BAD_FLAG = 2, SLOT_REUSED = 3, DRAIN = 1 };

struct header {
    uint32_t magic, code, len, request_id;
    uint64_t ptp_timestamp;
};

/* As docs/gpu.md tells. */
struct ring {
    uint64_t rx_flags, tx_flags, rx_data, tx_data, stride;
    uint32_t slots, slot_size, header, reserved;
};

struct shared {
    uint64_t rx_flags[SLOTS], tx_flags[SLOTS];
    uint8_t rx[SLOTS][STRIDE], tx[SLOTS][STRIDE];
    struct ring ring;
    uint32_t stop[16];
    uint64_t beats[MAX_BLOCKS][8];
};

#define TAKES "(.param .b64 in, .param .b64 out, .param .b32 arg_len, .param .b32 max_result_len, .param .b64 result_len)"

/* Of each function: id, flags, its least length, and what its length beyond that is a multiple of. */
static const char GLUE[] =
    ".version 6.3\n.target sm_70\n.address_size 64\n"
    ".extern .func (.param .b32 status) berth_rpc_increment " TAKES ";\n"
    ".extern .func (.param .b32 status) reverse " TAKES ";\n"
    ".visible .global .align 4 .u32 berth_count = 2;\n"
    ".visible .global .align 4 .u32 berth_sessions_lost = 0;\n"
    ".visible .global .align 8 .u64 berth_handlers[2] = {berth_rpc_increment, reverse};\n"
    ".visible .global .align 4 .u32 berth_functions[8] = {1, 0, 0, 1, 2, 0, 4, 2};\n";

static struct shared *shared;

static void *linked(const char *folder) {
    void *linker, *cubin, *module;
    size_t size;
    CU(cuda.link(0, NULL, NULL, &linker));
    CU(cuda.add(linker, CUDA_PTX, (void *)GLUE, sizeof GLUE, "glue", 0, NULL, NULL));
    for (const char **name = (const char *[]){"dispatch", "handlers", "example", NULL}; *name; name++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.ptx", folder, *name);
        char *text = text_of(path);
        CU(cuda.add(linker, CUDA_PTX, text, strlen(text) + 1, *name, 0, NULL, NULL));
        free(text);
    }
    CU(cuda.complete(linker, &cubin, &size));
    CU(cuda.load(&module, cubin));
    CU(cuda.unlink(linker));
    return module;
}

static uint32_t length(uint32_t id) { return 4 + id % 114 * 2; }

static void ask(uint32_t slot, uint32_t function, uint32_t id, uint32_t len, uint32_t magic, uint64_t flag) {
    struct header header = {magic, function, len, id, (uint64_t)id << 32};
    memcpy(shared->rx[slot], &header, sizeof header);
    for (uint32_t at = 0; at < len && at < STRIDE - sizeof header; at++) shared->rx[slot][sizeof header + at] = id + 3 * at;
    __atomic_store_n(&shared->rx_flags[slot], flag, __ATOMIC_RELEASE);
}

/* The flag of the answer, once it is there and the request is freed. */
static uint64_t answered(uint32_t slot) {
    uint64_t flag;
    while (!(flag = __atomic_load_n(&shared->tx_flags[slot], __ATOMIC_ACQUIRE))) sched_yield();
    while (__atomic_load_n(&shared->rx_flags[slot], __ATOMIC_ACQUIRE)) sched_yield();
    return flag;
}

#define CHECK(condition) \
    if (!(condition)) fprintf(stderr, "line %d: request %u: not %s\n", __LINE__, id, #condition), exit(1)

static void take(uint32_t slot, uint32_t id, int status, uint32_t function) {
    struct header header;
    uint64_t flag = answered(slot);
    CHECK(flag == (uint64_t)shared->tx[slot]);
    memcpy(&header, shared->tx[slot], sizeof header);
    CHECK(header.magic == ANSWER && (int)header.code == status && header.request_id == id);
    CHECK(header.ptp_timestamp == (uint64_t)id << 32 && header.len == (status ? 0 : length(id)));
    for (uint32_t at = 0; at < header.len; at++) {
        uint8_t wanted = function == INCREMENT ? id + 3 * at + 1 : id + 3 * (header.len - 1 - at);
        CHECK(shared->tx[slot][sizeof header + at] == wanted);
    }
    __atomic_store_n(&shared->tx_flags[slot], 0, __ATOMIC_RELEASE);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    uint32_t count = atoi(argv[2]), blocks = atoi(argv[3]), id = 0;
    cuda_open();
    shared = cuda_pinned(sizeof *shared);
    shared->ring = (struct ring){(uint64_t)shared->rx_flags, (uint64_t)shared->tx_flags, (uint64_t)shared->rx,
                                 (uint64_t)shared->tx, STRIDE, SLOTS, SLOT_SIZE, sizeof(struct header), 0};
    void *module = linked(argv[1]), *kernel, *stream;
    CU(cuda.function(&kernel, module, "berth_dispatch"));
    CU(cuda.stream(&stream, CUDA_NON_BLOCKING));
    struct ring *ring = &shared->ring;
    uint32_t *stop = shared->stop, idle = 1000;
    uint64_t *beats = shared->beats[0], idle_after = 1000000;
    CU(cuda.launch(kernel, blocks, 1, 1, 32, 1, 1, 2 * STRIDE, stream,
                   (void *[]){&ring, &blocks, &stop, &beats, &idle_after, &idle}, NULL));
    for (uint32_t sent = 0; id < count; id++) {
        for (; sent < count && sent < id + SLOTS; sent++)
            ask(sent % SLOTS, 1 + sent % 2, sent, length(sent), REQUEST, (uint64_t)shared->rx[sent % SLOTS]);
        take(id % SLOTS, id, 0, 1 + id % 2);
    }
    /* What is wrong, and lies where the last one left off. */
    struct { uint32_t function, len, magic; uint64_t flag; int status; uint64_t error; } wrong[] = {
        {9, 4, REQUEST, 0, UNKNOWN_FUNCTION, 0},
        {INCREMENT, SLOT_SIZE, REQUEST, 0, BAD_LENGTH, 0},
        {REVERSE, 5, REQUEST, 0, SCHEMA_MISMATCH, 0},
        {INCREMENT, 4, ANSWER, 0, 0, SLOT_REUSED},
        {INCREMENT, 4, REQUEST, 8, 0, BAD_FLAG},
    };
    for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++, id++) {
        uint32_t slot = id % SLOTS;
        ask(slot, wrong[at].function, id, wrong[at].len, wrong[at].magic,
            wrong[at].flag ? wrong[at].flag : (uint64_t)shared->rx[slot]);
        if (!wrong[at].error) {
            take(slot, id, wrong[at].status, wrong[at].function);
            continue;
        }
        CHECK(answered(slot) == (0xDEADull << 48 | wrong[at].error));
        __atomic_store_n(&shared->tx_flags[slot], 0, __ATOMIC_RELEASE);
    }
    /* What is there when it is told to leave is answered. */
    for (uint32_t last = id; last < id + SLOTS; last++)
        ask(last % SLOTS, INCREMENT, last, length(last), REQUEST, (uint64_t)shared->rx[last % SLOTS]);
    CHECK(cuda.query(stream) == CUDA_NOT_READY);
    __atomic_store_n(stop, DRAIN, __ATOMIC_RELEASE);
    CU(cuda.synchronize(stream));
    for (uint32_t last = id + SLOTS; id < last; id++) take(id % SLOTS, id, 0, INCREMENT);
    for (uint32_t block = 0; block < blocks; block++) CHECK(shared->beats[block][0] > 0);
    CU(cuda.unload(module));
    CU(cuda.host_free(shared));
    return printf("answered %u\n", id), 0;
}
