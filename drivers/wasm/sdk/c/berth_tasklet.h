/* Write WASM tasklets and ring kernels for Berth in C, without a C library.
 *
 * clang-14 --target=wasm32 -O2 -nostdlib -Wl,--no-entry -I. -o NAME.wasm NAME.c
 *
 * A tasklet defines `uint64_t run(const struct input *input)` and ends with BERTH_TASKLET(run); a ring kernel defines
 * `uint64_t answer(const uint8_t *message, uint32_t len)` and ends with BERTH_RING_KERNEL(answer). Both return
 * berth_output() or berth_failed(). One file a module.
 */
#ifndef BERTH_TASKLET_H
#define BERTH_TASKLET_H

#include <stddef.h>
#include <stdint.h>

#define BERTH_IMPORT(module, name) __attribute__((import_module(module), import_name(#name))) extern
#define BERTH_EXPORT(name) __attribute__((export_name(#name), used))

enum { BERTH_BLOCK_LEN = 512, BERTH_PAGE_LEN = 65536 };

/* What calls return when they fail. A tasklet's own codes are above 0. */
enum {
    BERTH_INVALID_LEASE = -1,
    BERTH_EXPIRED = -2,
    BERTH_FENCED = -3,
    BERTH_OUT_OF_RANGE = -4,
    BERTH_BAD_LENGTH = -5,
    BERTH_BUSY = -6,
    BERTH_INTERNAL = -7,
    BERTH_DENIED = -8,
    BERTH_NO_CAPACITY = -9,
    BERTH_BAD_PARAM = -10,
    BERTH_BAD_INPUT = 1,
};

enum { BERTH_ERROR, BERTH_WARN, BERTH_INFO, BERTH_DEBUG, BERTH_TRACE };

struct berth_granted { uint64_t high, low, expires_at, size; };
struct berth_granted_blocks { uint64_t high, low, expires_at, blocks; uint32_t block_len, zero; };
struct berth_standing { uint32_t status, zero; uint64_t expires_at, size; };
struct berth_standing_blocks { uint32_t status, block_len; uint64_t expires_at, blocks; };

BERTH_IMPORT("fabricbios_log_v0", fb_log) void fb_log(int32_t level, const void *at, uint32_t len);

#define BERTH_FBMU(name) BERTH_IMPORT("fabricbios_fbmu_v0", name)
BERTH_FBMU(fbmu_hello) int32_t fbmu_hello(void);
BERTH_FBMU(fbmu_get_size) int64_t fbmu_get_size(void);
BERTH_FBMU(fbmu_read) int32_t fbmu_read(uint64_t offset, uint32_t len, void *out);
BERTH_FBMU(fbmu_write) int32_t fbmu_write(uint64_t offset, const void *from, uint32_t len);
BERTH_FBMU(fbmu_alloc) int32_t fbmu_alloc(uint64_t min_bytes, uint32_t secs, struct berth_granted *out);
BERTH_FBMU(fbmu_query) int32_t fbmu_query(uint64_t high, uint64_t low, struct berth_standing *out);
BERTH_FBMU(fbmu_renew) int32_t fbmu_renew(uint64_t high, uint64_t low, uint32_t secs, uint64_t *expires_at);
BERTH_FBMU(fbmu_free) int32_t fbmu_free(uint64_t high, uint64_t low);
BERTH_FBMU(fbmu_read_lease)
int32_t fbmu_read_lease(uint64_t high, uint64_t low, uint64_t offset, uint32_t len, void *out);
BERTH_FBMU(fbmu_write_lease)
int32_t fbmu_write_lease(uint64_t high, uint64_t low, uint64_t offset, const void *from, uint32_t len);

#define BERTH_FBBU(name) BERTH_IMPORT("fabricbios_fbbu_v0", name)
BERTH_FBBU(fbbu_hello) int32_t fbbu_hello(void);
BERTH_FBBU(fbbu_get_size) int64_t fbbu_get_size(void);
BERTH_FBBU(fbbu_read_block) int32_t fbbu_read_block(uint64_t block, void *out);
BERTH_FBBU(fbbu_write_block) int32_t fbbu_write_block(uint64_t block, const void *from);
BERTH_FBBU(fbbu_alloc) int32_t fbbu_alloc(uint64_t min_blocks, uint32_t secs, struct berth_granted_blocks *out);
BERTH_FBBU(fbbu_query) int32_t fbbu_query(uint64_t high, uint64_t low, struct berth_standing_blocks *out);
BERTH_FBBU(fbbu_renew) int32_t fbbu_renew(uint64_t high, uint64_t low, uint32_t secs, uint64_t *expires_at);
BERTH_FBBU(fbbu_free) int32_t fbbu_free(uint64_t high, uint64_t low);
BERTH_FBBU(fbbu_read_block_lease) int32_t fbbu_read_block_lease(uint64_t high, uint64_t low, uint64_t block, void *out);
BERTH_FBBU(fbbu_write_block_lease)
int32_t fbbu_write_block_lease(uint64_t high, uint64_t low, uint64_t block, const void *from);

/* Memory: from the end of what there is, never given back. NULL where there is no more. */
extern uint8_t __heap_base;

static inline void *berth_alloc(size_t len) {
    static uintptr_t next;
    if (!next)
        next = (uintptr_t)&__heap_base;
    uintptr_t start = (next + 15) & ~(uintptr_t)15;
    uint64_t end = (uint64_t)start + len;
    uint64_t have = (uint64_t)__builtin_wasm_memory_size(0) * BERTH_PAGE_LEN;
    if (end > have) {
        uint64_t pages = (end - have + BERTH_PAGE_LEN - 1) / BERTH_PAGE_LEN;
        if (end > UINT32_MAX || __builtin_wasm_memory_grow(0, (size_t)pages) == (size_t)-1)
            return NULL;
    }
    next = (uintptr_t)end;
    return (void *)start;
}

/* TaskletInputV0. */
struct berth_cap { uint64_t high, low; uint32_t rights; };
struct input { const uint8_t *caps; uint32_t cap_count; const uint8_t *payload; uint32_t payload_len; };

static inline uint64_t berth_big_endian(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    while (bytes--)
        value = value << 8 | *at++;
    return value;
}

/* The capability of this number; it must be below cap_count. */
static inline struct berth_cap berth_cap(const struct input *input, uint32_t number) {
    const uint8_t *at = input->caps + 20 * number;
    struct berth_cap cap = {
        berth_big_endian(at, 8),
        berth_big_endian(at + 8, 8),
        (uint32_t)berth_big_endian(at + 16, 4),
    };
    return cap;
}

/* Whether these bytes are an input; none are one without capabilities or payload. */
static inline int berth_input(const uint8_t *at, uint32_t len, struct input *input) {
    struct input none = {0, 0, 0, 0};
    *input = none;
    if (len == 0)
        return 1;
    if (len < 10 || berth_big_endian(at, 2) != 0)
        return 0;
    input->cap_count = (uint32_t)berth_big_endian(at + 4, 2);
    input->caps = at + 6;
    uint32_t before = 10 + 20 * input->cap_count;
    if (len < before)
        return 0;
    input->payload = at + before;
    input->payload_len = len - before;
    return berth_big_endian(at + before - 4, 4) == input->payload_len;
}

static inline uint64_t berth_output(const void *at, uint32_t len) {
    return (uint64_t)(uintptr_t)at << 32 | len;
}

static inline uint64_t berth_failed(int32_t code) {
    return (uint64_t)UINT32_MAX << 32 | (uint32_t)code;
}

static inline void berth_log(int32_t level, const char *text) {
    uint32_t len = 0;
    while (text[len])
        len++;
    fb_log(level, text, len);
}

/* Writes a number in decimal digits, and returns how many. */
static inline uint32_t berth_decimal(uint64_t value, char *out) {
    char digits[20];
    uint32_t len = 0;
    do
        digits[len++] = (char)('0' + value % 10);
    while (value /= 10);
    for (uint32_t i = 0; i < len; i++)
        out[i] = digits[len - 1 - i];
    return len;
}

#define BERTH_TASKLET(run)                                                                                             \
    BERTH_EXPORT(tasklet_alloc) void *tasklet_alloc(uint32_t len) { return berth_alloc(len); }                         \
    BERTH_EXPORT(tasklet_run) uint64_t tasklet_run(const uint8_t *at, uint32_t len) {                                  \
        struct input input;                                                                                            \
        return berth_input(at, len, &input) ? run(&input) : berth_failed(BERTH_BAD_INPUT);                             \
    }

#define BERTH_RING_KERNEL(answer)                                                                                      \
    BERTH_EXPORT(ring_kernel_alloc) void *ring_kernel_alloc(uint32_t len) { return berth_alloc(len); }                 \
    BERTH_EXPORT(ring_kernel_run) uint64_t ring_kernel_run(const uint8_t *at, uint32_t len) { return answer(at, len); }

#endif
