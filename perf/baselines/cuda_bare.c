/* The baselines on a GPU: NVIDIA's driver and kernels that do nothing but what they have to. Each answer is verified.
 * usage: cuda_bare TEXT MODE COUNT [BLOCKS]; TEXT is cuda_bare.ptx, BLOCKS those of `open`, and the mode is
 *   ping      a flag and 32 bytes to a kernel that never ends, and back: round trips in us
 *   flag      the flag alone
 *   open      64 slots of those, kept full: answers/s
 *   graph     a graph of one kernel is launched and answers 32 bytes: from the launch to its flag, in us
 *   launch    an empty kernel is launched and waited for, in us
 *   copy-in   1 MiB of pinned memory is copied to the GPU's and waited for, in us
 *   copy-out  the same back
 * Prints a line of JSON. Hiccups are times that a loop which polls did not run for over 100 us.
 * Build: cc -O2 -o cuda_bare cuda_bare.c -ldl */
#include <string.h>
#include <time.h>

#include "../../drivers/bridge/tests/cuda/driver.h"

enum { SLOTS = 64, WORDS = 8, COPIED = 1 << 20 };
static const uint64_t LEAVE = ~0ull;

struct shared {
    uint64_t in_flags[SLOTS], out_flags[SLOTS];
    uint32_t in[SLOTS][16], out[SLOTS][16];
};

static struct shared *shared;
static void *module, *stream;
static uint64_t hiccups, last_turn;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void wrong(const char *what) { fprintf(stderr, "%s\n", what), exit(1); }

static void run(const char *kernel, uint32_t blocks, uint32_t threads, uint32_t has_bytes) {
    void *function;
    CU(cuda.function(&function, module, kernel));
    uint64_t *in_flags = shared->in_flags, *out_flags = shared->out_flags;
    uint32_t *in = shared->in[0], *out = shared->out[0];
    void *params[] = {&in_flags, &out_flags, &in, &out, &has_bytes};
    CU(cuda.launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL));
}

static void ask(uint32_t slot, uint64_t flag, uint32_t words) {
    for (uint32_t at = 0; at < words; at++) shared->in[slot][at] = (uint32_t)flag + at;
    __atomic_store_n(&shared->in_flags[slot], flag, __ATOMIC_RELEASE);
}

/* One look of a loop that polls. */
static int answered(uint32_t slot, uint64_t flag, uint32_t words) {
    uint64_t time = now();
    hiccups += last_turn && time - last_turn > 100000;
    last_turn = time;
    if (__atomic_load_n(&shared->out_flags[slot], __ATOMIC_ACQUIRE) != flag) return 0;
    for (uint32_t at = 0; at < words; at++)
        if (shared->out[slot][at] != (uint32_t)flag + at + 1) wrong("a wrong answer");
    return 1;
}

static void wait_for(uint32_t slot, uint64_t flag, uint32_t words) {
    for (uint32_t turn = 1; !answered(slot, flag, words); turn++)
        if (turn % (1 << 20) == 0 && cuda.query(stream) != CUDA_NOT_READY && !answered(slot, flag, words))
            wrong("the kernel has ended and answered nothing");
}

static void leave(uint32_t slots) {
    for (uint32_t slot = 0; slot < slots; slot++) __atomic_store_n(&shared->in_flags[slot], LEAVE, __ATOMIC_RELEASE);
    CU(cuda.synchronize(stream));
}

static void ping(uint64_t *times, uint32_t count, uint32_t words) {
    run("pong", 1, 1, words > 0);
    for (uint32_t at = 0; at < count; at++) {
        uint64_t began = now();
        ask(0, at + 1, words);
        wait_for(0, at + 1, words);
        times[at] = now() - began;
    }
    leave(1);
}

static double answers_per_s(uint32_t count, uint32_t blocks) {
    if (blocks < 1 || SLOTS % blocks) wrong("BLOCKS divides 64");
    run("pong", blocks, SLOTS / blocks, 1);
    uint64_t began = now();
    for (uint32_t taken = 0, sent = 0; taken < count; taken++) {
        for (; sent < count && sent < taken + SLOTS; sent++) ask(sent % SLOTS, sent + 1, WORDS);
        wait_for(taken % SLOTS, taken + 1, WORDS);
    }
    double per_s = count / ((double)(now() - began) / 1e9);
    leave(SLOTS);
    return per_s;
}

static void graphs(uint64_t *times, uint32_t count) {
    void *graph, *ready;
    CU(cuda.capture(stream, 0));
    run("once", 1, 1, 1);
    CU(cuda.captured(stream, &graph));
    CU(cuda.instantiate(&ready, graph, 0));
    for (uint32_t at = 0; at < count; at++) {
        uint64_t began = now();
        ask(0, at + 1, WORDS);
        CU(cuda.launch_graph(ready, stream));
        wait_for(0, at + 1, WORDS);
        times[at] = now() - began;
        CU(cuda.synchronize(stream));
    }
}

static void launches(uint64_t *times, uint32_t count) {
    void *function;
    CU(cuda.function(&function, module, "empty"));
    for (uint32_t at = 0; at < count; at++) {
        uint64_t began = now();
        CU(cuda.launch(function, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){NULL}, NULL));
        CU(cuda.synchronize(stream));
        times[at] = now() - began;
    }
}

static void copies(uint64_t *times, uint32_t count, int is_out) {
    uint8_t *host = cuda_pinned(2 * COPIED), *back = host + COPIED;
    uint64_t device;
    CU(cuda.alloc(&device, COPIED));
    for (uint32_t at = 0; at < COPIED; at++) host[at] = (uint8_t)(at * 7 + at / 256);
    CU(cuda.copy_in(device, host, COPIED, stream));
    CU(cuda.synchronize(stream));
    for (uint32_t at = 0; at < count; at++) {
        uint64_t began = now();
        if (is_out) CU(cuda.copy_out(back, device, COPIED, stream));
        else CU(cuda.copy_in(device, host, COPIED, stream));
        CU(cuda.synchronize(stream));
        times[at] = now() - began;
    }
    CU(cuda.copy_out(back, device, COPIED, stream));
    CU(cuda.synchronize(stream));
    if (memcmp(host, back, COPIED)) wrong("other bytes came back");
}

static int order(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    uint32_t count = argc > 3 ? (uint32_t)atoi(argv[3]) : 0;
    if (argc < 4 || argc > 5 || !count) return fprintf(stderr, "usage: cuda_bare TEXT MODE COUNT [BLOCKS]\n"), 2;
    const char *mode = argv[2];
    char name[256], address[32];
    cuda_open();
    CU(cuda.name(name, sizeof name, 0));
    CU(cuda.address(address, sizeof address, 0));
    shared = cuda_pinned(sizeof *shared);
    CU(cuda.stream(&stream, CUDA_NON_BLOCKING));
    char *text = text_of(argv[1]);
    CU(cuda.load(&module, text));
    uint64_t *times = calloc(count, sizeof *times);
    double per_s = 0, at[3] = {0.5, 0.99, 0.999};
    if (!times) wrong("no memory");
    if (!strcmp(mode, "ping")) ping(times, count, WORDS);
    else if (!strcmp(mode, "flag")) ping(times, count, 0);
    else if (!strcmp(mode, "open")) per_s = answers_per_s(count, argc > 4 ? (uint32_t)atoi(argv[4]) : 1);
    else if (!strcmp(mode, "graph")) graphs(times, count);
    else if (!strcmp(mode, "launch")) launches(times, count);
    else if (!strcmp(mode, "copy-in")) copies(times, count, 0);
    else if (!strcmp(mode, "copy-out")) copies(times, count, 1);
    else return fprintf(stderr, "no mode %s\n", mode), 2;
    qsort(times, count, sizeof *times, order);
    for (int n = 0; n < 3; n++) at[n] = (double)times[(uint32_t)(count * at[n])] / 1e3;
    printf("{\"mode\": \"%s\", \"device\": \"%s\", \"address\": \"%s\", \"count\": %u, ", mode, name, address, count);
    if (last_turn) printf("\"hiccups\": %lu, ", hiccups);
    if (per_s > 0) return printf("\"per_s\": %.1f}\n", per_s), 0;
    return printf("\"p50\": %.3f, \"p99\": %.3f, \"p99_9\": %.3f}\n", at[0], at[1], at[2]), 0;
}
