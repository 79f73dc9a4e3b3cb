/* Adds the bytes of its first capability, a lease of memory, and returns the sum as text. */
#include "berth_tasklet.h"

static uint64_t run(const struct input *input) {
    static uint8_t piece[4096];
    static char out[21];
    struct berth_standing lease;
    if (input->cap_count == 0)
        return berth_failed(BERTH_INVALID_LEASE);
    struct berth_cap cap = berth_cap(input, 0);
    int32_t code = fbmu_query(cap.high, cap.low, &lease);
    uint64_t sum = 0;
    for (uint64_t at = 0; !code && at < lease.size; at += sizeof piece) {
        uint32_t len = lease.size - at < sizeof piece ? (uint32_t)(lease.size - at) : sizeof piece;
        code = fbmu_read_lease(cap.high, cap.low, at, len, piece);
        for (uint32_t i = 0; i < len; i++)
            sum += piece[i];
    }
    if (code)
        return berth_failed(code);
    uint32_t len = berth_decimal(sum, out);
    out[len++] = '\n';
    return berth_output(out, len);
}

BERTH_TASKLET(run)
