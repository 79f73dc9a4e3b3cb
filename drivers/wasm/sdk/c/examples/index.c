/* Writes where the lines of its first capability begin, a lease of memory, into a lease that it allocates: 8 bytes each, least significant
 * first. Its second capability is the token that allows the alloc. Returns the lease's id and the number of lines as text. */
#include "berth_tasklet.h"

enum { SECS = 3600 };

static uint32_t hex(uint64_t value, char *out) {
    for (int i = 0; i < 16; i++)
        out[i] = "0123456789abcdef"[value >> (60 - 4 * i) & 15];
    return 16;
}

static uint64_t run(const struct input *input) {
    static uint8_t piece[4096];
    static char out[64];
    struct berth_standing lease;
    struct berth_granted granted;
    if (input->cap_count == 0)
        return berth_failed(BERTH_INVALID_LEASE);
    struct berth_cap cap = berth_cap(input, 0);
    int32_t code = fbmu_query(cap.high, cap.low, &lease);
    if (code)
        return berth_failed(code);
    /* As many lines as bytes, at most. */
    uint64_t *index = lease.size < 1 << 24 ? berth_alloc((size_t)lease.size * 8) : NULL;
    if (!index)
        return berth_failed(BERTH_NO_CAPACITY);
    uint32_t lines = 0;
    int begins = 1;
    for (uint64_t at = 0; at < lease.size; at += sizeof piece) {
        uint32_t len = lease.size - at < sizeof piece ? (uint32_t)(lease.size - at) : sizeof piece;
        code = fbmu_read_lease(cap.high, cap.low, at, len, piece);
        if (code)
            return berth_failed(code);
        for (uint32_t i = 0; i < len; i++) {
            if (begins)
                index[lines++] = at + i;
            begins = piece[i] == '\n';
        }
    }
    code = fbmu_alloc((uint64_t)lines * 8, SECS, &granted);
    for (uint32_t at = 0; !code && at < lines * 8; at += sizeof piece) {
        uint32_t len = lines * 8 - at < sizeof piece ? lines * 8 - at : sizeof piece;
        code = fbmu_write_lease(granted.high, granted.low, at, (uint8_t *)index + at, len);
    }
    if (code)
        return berth_failed(code);
    uint32_t len = hex(granted.high, out);
    len += hex(granted.low, out + len);
    out[len++] = ' ';
    len += berth_decimal(lines, out + len);
    out[len++] = '\n';
    return berth_output(out, len);
}

BERTH_TASKLET(run)
