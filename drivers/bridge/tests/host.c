/* A server that loads the bridge by its path and serves its ring, or polls it, with no header of anybody.
 * usage: host LIBRARY ring|unified|hostile|cuda|cuda-early [OPTION...]; with a kernel as dispatcher BERTH_TEST_PTX is its text
 * Of requests it knows rpc_increment, and what 1 to 6 do wrong. It ends when its standard input does. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/driver.h"

enum { OK, INVALID_ARG, INTERNAL, CUDA, UNSUPPORTED };
enum { RING_BUFFER, UNIFIED };
enum { READY, EMPTY };

struct ring {
    uint64_t *rx_flags, *tx_flags;
    uint8_t *rx_data, *tx_data;
    size_t rx_stride, tx_stride;
    uint64_t *rx_flags_host, *tx_flags_host;
    uint8_t *rx_data_host, *tx_data_host;
};

struct dataplane {
    void *ctx;
    struct ring ring;
    int (*rx_poll)(void *, uint32_t *);
    int (*tx_publish)(void *, uint32_t);
};

struct bridge {
    int version;
    int (*create)(void **, int, char **);
    int (*destroy)(void *);
    int (*get_transport_context)(void *, int, void *);
    int (*connect)(void *);
    int (*launch)(void *);
    int (*disconnect)(void *);
    int (*get_cpu_dataplane)(void *, struct dataplane *);
    int (*get_endpoint_info)(void *, char *, size_t);
    int (*get_ring_geometry)(void *, uint32_t *, uint32_t *);
    void *set_function_table;
};

_Static_assert(sizeof(struct bridge) == 88 && sizeof(struct dataplane) == 104 && sizeof(struct ring) == 80, "LP64");

struct header {
    uint32_t magic, code, len, request_id;
    uint64_t ptp_timestamp;
};

enum { REQUEST = 0x43555152, ANSWER = 0x43555153, RPC_INCREMENT = 0x191B6322 };
/* What is done wrong: the last two are right. */
enum { NO_ANSWER = 1, ERROR_FLAG, NO_MAGIC, TOO_LONG, NO_ECHO, OWN_STATUS };

static struct bridge *bridge;
static volatile int stop;

#define EXPECT(status, call) \
    do { \
        int is = (call); \
        if (is != (status)) fprintf(stderr, "line %d: %s is %d, not %d\n", __LINE__, #call, is, status), exit(1); \
    } while (0)
#define CHECK(condition) EXPECT(1, !!(condition))

static void *wait_for_the_end(void *unused) {
    char byte;
    while (read(0, &byte, 1) > 0) {}
    stop = 1;
    return unused;
}

/* Writes the answer; returns what the request is. */
static uint32_t answer(const uint8_t *rx, uint8_t *tx, size_t slot_size) {
    struct header request, header = {ANSWER, 0, 0, 0, 0};
    memcpy(&request, rx, sizeof request);
    CHECK(request.magic == REQUEST && request.len <= slot_size - sizeof request);
    header.len = request.len;
    header.request_id = request.request_id;
    header.ptp_timestamp = request.ptp_timestamp;
    switch (request.code) {
    case RPC_INCREMENT: break;
    case NO_MAGIC: header.magic = REQUEST; break;
    case TOO_LONG: header.len = slot_size - sizeof header + 1; break;
    case NO_ECHO: header.request_id = 0xAAAAAAAA, header.ptp_timestamp = 0xBBBB; break;
    case OWN_STATUS: header.code = 77; break;
    case NO_ANSWER:
    case ERROR_FLAG: return request.code;
    default: header.code = -1, header.len = 0;
    }
    memcpy(tx, &header, sizeof header);
    for (uint32_t i = 0; i < request.len; i++) tx[sizeof header + i] = rx[sizeof header + i] + 1;
    return request.code;
}

static uint64_t serve_ring(void *handle, uint32_t slots, uint32_t slot_size) {
    struct ring ring;
    uint64_t served = 0;
    EXPECT(OK, bridge->get_transport_context(handle, RING_BUFFER, &ring));
    CHECK(ring.rx_data == ring.rx_data_host && ring.rx_stride >= slot_size && ring.tx_stride >= slot_size);
    EXPECT(OK, bridge->connect(handle));
    EXPECT(OK, bridge->launch(handle));
    for (uint32_t slot = 0; !stop;) {
        uint64_t flag = __atomic_load_n(&ring.rx_flags[slot], __ATOMIC_ACQUIRE);
        if (!flag) {
            sched_yield();
            continue;
        }
        uint8_t *tx = ring.tx_data + slot * ring.tx_stride;
        uint32_t code = answer((const uint8_t *)flag, tx, slot_size);
        uint64_t answered = code == ERROR_FLAG ? 0xDEADull << 48 | 5 : (uint64_t)tx;
        if (code != NO_ANSWER) __atomic_store_n(&ring.tx_flags[slot], answered, __ATOMIC_RELEASE);
        __atomic_store_n(&ring.rx_flags[slot], 0, __ATOMIC_RELEASE);
        slot = slot + 1 == slots ? 0 : slot + 1;
        served++;
    }
    return served;
}

/* A kernel that never stops has the ring. */
static uint64_t serve_cuda(void *handle, uint32_t slots, uint32_t slot_size, uint32_t early) {
    struct words { uint64_t served; uint32_t stop; } *words = cuda_pinned(sizeof *words);
    uint32_t *word = &words->stop;
    struct ring ring;
    void *module, *kernel, *stream;
    EXPECT(OK, bridge->get_transport_context(handle, RING_BUFFER, &ring));
    char *text = text_of(getenv("BERTH_TEST_PTX"));
    CU(cuda.load(&module, text));
    CU(cuda.function(&kernel, module, "dispatch"));
    CU(cuda.stream(&stream, CUDA_NON_BLOCKING));
    CU(cuda.launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream,
                   (void *[]){&ring.rx_flags, &ring.tx_flags, &ring.tx_data, &ring.tx_stride, &slots, &slot_size, &early, &word,
                              &words},
                   NULL));
    EXPECT(OK, bridge->connect(handle));
    EXPECT(OK, bridge->launch(handle));
    while (!stop) {
        EXPECT(CUDA_NOT_READY, cuda.query(stream));
        usleep(1000);
    }
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    CU(cuda.synchronize(stream));
    uint64_t served = words->served;
    CU(cuda.unload(module));
    CU(cuda.host_free(words));
    free(text);
    return served;
}

static uint64_t serve_unified(void *handle, uint32_t slots, uint32_t slot_size) {
    struct dataplane plane;
    uint64_t served = 0;
    uint32_t slot, held[2], holds = 0;
    EXPECT(OK, bridge->get_cpu_dataplane(handle, &plane));
    EXPECT(OK, bridge->connect(handle));
    while (!stop) {
        int found = plane.rx_poll(plane.ctx, &slot);
        if (found == READY) {
            CHECK(slot < slots);
            answer(plane.ring.rx_data_host + slot * plane.ring.rx_stride,
                   plane.ring.tx_data_host + slot * plane.ring.tx_stride, slot_size);
            held[holds++] = slot;
            served++;
        } else {
            EXPECT(EMPTY, found);
        }
        /* Two at a time are published in the opposite order. */
        while (holds && (found == EMPTY || holds == 2)) {
            EXPECT(OK, plane.tx_publish(plane.ctx, held[--holds]));
            EXPECT(INTERNAL, plane.tx_publish(plane.ctx, held[holds]));
            if (found == READY) found = EMPTY;
        }
        if (found == EMPTY) sched_yield();
    }
    CHECK(plane.ring.rx_flags_host[0] == 0);
    return served;
}

/* Creates a bridge of up to three options. */
static int create(void **handle, char *a, char *b, char *c) {
    char *argv[] = {"server", "--transport=berth", a, b, NULL, c};
    return bridge->create(handle, 6, argv);
}

static void *connect_often(void *handle) {
    for (int status = OK; status != INVALID_ARG;) {
        status = bridge->connect(handle);
        CHECK(status == OK || status == INTERNAL || status == INVALID_ARG);
        bridge->disconnect(handle);
        bridge->launch(handle);
    }
    return NULL;
}

static void refuse(int status, char *a, char *b) {
    void *handle = &handle;
    EXPECT(status, create(&handle, a, b, "--unknown"));
    CHECK(handle == NULL);
}

static void null_everywhere(void *handle) {
    char text[256];
    struct ring ring;
    struct dataplane plane;
    uint32_t slots, size;
    void *strangers[] = {NULL, (void *)0xDEADBEEF, &ring};
    for (int i = 0; i < 3; i++) {
        EXPECT(INVALID_ARG, bridge->destroy(strangers[i]));
        EXPECT(INVALID_ARG, bridge->connect(strangers[i]));
        EXPECT(INVALID_ARG, bridge->launch(strangers[i]));
        EXPECT(INVALID_ARG, bridge->disconnect(strangers[i]));
        EXPECT(INVALID_ARG, bridge->get_transport_context(strangers[i], RING_BUFFER, &ring));
        EXPECT(INVALID_ARG, bridge->get_cpu_dataplane(strangers[i], &plane));
        EXPECT(INVALID_ARG, bridge->get_endpoint_info(strangers[i], text, sizeof text));
        EXPECT(INVALID_ARG, bridge->get_ring_geometry(strangers[i], &slots, &size));
    }
    EXPECT(INVALID_ARG, bridge->get_transport_context(handle, RING_BUFFER, NULL));
    EXPECT(INVALID_ARG, bridge->get_cpu_dataplane(handle, NULL));
    EXPECT(INVALID_ARG, bridge->get_endpoint_info(handle, NULL, sizeof text));
    EXPECT(INVALID_ARG, bridge->get_ring_geometry(handle, NULL, &size));
    EXPECT(INVALID_ARG, bridge->get_ring_geometry(handle, &slots, NULL));
    EXPECT(OK, bridge->get_endpoint_info(handle, text, sizeof text));
    EXPECT(INVALID_ARG, bridge->get_endpoint_info(handle, text, strlen(text)));
    EXPECT(OK, bridge->get_endpoint_info(handle, text, strlen(text) + 1));
}

static void hostile(void) {
    void *ring, *other, *unified;
    struct ring area;
    struct dataplane plane;
    uint32_t slots, size;
    char text[2][256], taken[32];
    CHECK(bridge->version == 3 && bridge->set_function_table == NULL);
    EXPECT(INVALID_ARG, bridge->create(NULL, 0, NULL));
    EXPECT(INVALID_ARG, bridge->create(&ring, 1, NULL));
    EXPECT(INVALID_ARG, bridge->create(&ring, -1, (char *[]){"server"}));
    char *wrong[] = {"--port=65536",  "--port=",        "--port=x",       "--port=-1",        "--num-slots=0",
                     "--num-slots=65537", "--slot-size=23", "--slot-size=1e3", "--unanswered-ms=x", "--port-name=a"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) refuse(INVALID_ARG, wrong[i], "--unified");
    refuse(INVALID_ARG, "--config=/nonexistent/berth.toml", "--port-name=a");
    refuse(CUDA, "--pinned-rings", "--num-slots=8");

    EXPECT(OK, bridge->create(&ring, 0, NULL));
    EXPECT(OK, bridge->get_ring_geometry(ring, &slots, &size));
    CHECK(slots == 8 && size == 256);
    null_everywhere(ring);
    EXPECT(OK, bridge->get_transport_context(ring, RING_BUFFER, &area));
    EXPECT(UNSUPPORTED, bridge->get_transport_context(ring, UNIFIED, &area));
    EXPECT(UNSUPPORTED, bridge->get_transport_context(ring, 2, &area));
    EXPECT(UNSUPPORTED, bridge->get_transport_context(ring, -1, &area));
    EXPECT(UNSUPPORTED, bridge->get_cpu_dataplane(ring, &plane));

    /* A file of the server's own is none of ours, and the last of two options counts. */
    EXPECT(OK, create(&other, "--config=server.yaml", "--num-slots=9", "--num-slots=3"));
    EXPECT(OK, bridge->get_ring_geometry(other, &slots, &size));
    CHECK(other != ring && slots == 3 && size == 256);
    EXPECT(OK, bridge->get_endpoint_info(ring, text[0], 256));
    EXPECT(OK, bridge->get_endpoint_info(other, text[1], 256));
    int ports[2] = {atoi(strstr(text[0], " port=") + 6), atoi(strstr(text[1], " port=") + 6)};
    CHECK(ports[0] > 0 && ports[1] > 0 && ports[0] != ports[1]);
    sprintf(taken, "--port=%d", ports[0]);
    refuse(INTERNAL, taken, "--unified");

    EXPECT(OK, create(&unified, "--unified", "--slot-size=100", "--num-slots=1"));
    null_everywhere(unified);
    struct { void *launch, *ctx; } loop = {&loop, &loop};
    EXPECT(UNSUPPORTED, bridge->get_transport_context(unified, RING_BUFFER, &area));
    EXPECT(OK, bridge->get_transport_context(unified, UNIFIED, &loop));
    CHECK(loop.launch == NULL && loop.ctx == NULL);
    EXPECT(OK, bridge->get_cpu_dataplane(unified, &plane));
    EXPECT(OK, bridge->launch(unified));
    EXPECT(EMPTY, plane.rx_poll(plane.ctx, &slots));
    EXPECT(EMPTY, plane.rx_poll(plane.ctx, NULL));
    EXPECT(EMPTY, plane.rx_poll(NULL, &slots));
    EXPECT(INTERNAL, plane.tx_publish(plane.ctx, 0));
    EXPECT(INTERNAL, plane.tx_publish(plane.ctx, 0xFFFFFFFF));
    EXPECT(INVALID_ARG, plane.tx_publish(NULL, 0));

    EXPECT(OK, bridge->disconnect(other));
    EXPECT(OK, bridge->launch(other));
    EXPECT(OK, bridge->launch(other));
    EXPECT(OK, bridge->disconnect(other));
    EXPECT(OK, bridge->disconnect(other));
    EXPECT(OK, bridge->destroy(other));
    EXPECT(INVALID_ARG, bridge->destroy(other));
    EXPECT(INVALID_ARG, bridge->launch(other));
    EXPECT(OK, bridge->destroy(unified));
    EXPECT(OK, bridge->destroy(ring));

    for (int i = 0; i < 20; i++) {
        pthread_t threads[2];
        EXPECT(OK, create(&ring, "--port=0", "--unknown=\xff", ""));
        for (int k = 0; k < 2; k++) CHECK(pthread_create(&threads[k], NULL, connect_often, ring) == 0);
        usleep(500 * i);
        EXPECT(OK, bridge->destroy(ring));
        for (int k = 0; k < 2; k++) CHECK(pthread_join(threads[k], NULL) == 0);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    struct bridge *(*get)(void) = (struct bridge * (*)(void)) dlsym(library, "cudaq_realtime_get_bridge_interface");
    bridge = get();
    CHECK(bridge && bridge == get());
    if (strcmp(argv[2], "hostile") == 0) return hostile(), puts("done"), 0;
    if (strcmp(argv[2], "version") == 0) return printf("version %d\n", bridge->version), 0;

    int is_cuda = strncmp(argv[2], "cuda", 4) == 0;
    /* The ring is to be memory of the context that the kernel runs in. */
    if (is_cuda) cuda_open();
    void *handle;
    char text[256];
    uint32_t slots, slot_size;
    int status = bridge->create(&handle, argc, argv);
    if (status != OK) return printf("create says %d\n", status), 0;
    EXPECT(OK, bridge->get_ring_geometry(handle, &slots, &slot_size));
    EXPECT(OK, bridge->get_endpoint_info(handle, text, sizeof text));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_the_end, NULL) == 0);
    printf("ready %s\n", text);
    fflush(stdout);
    uint64_t served = is_cuda ? serve_cuda(handle, slots, slot_size, strcmp(argv[2], "cuda-early") == 0)
        : (strcmp(argv[2], "ring") == 0 ? serve_ring : serve_unified)(handle, slots, slot_size);
    EXPECT(OK, bridge->disconnect(handle));
    EXPECT(OK, bridge->destroy(handle));
    pthread_join(thread, NULL);
    return printf("served %lu\n", served), 0;
}
