/* Looks for its payload in its first capability, a lease of blocks, and returns the numbers of the blocks that have it. */
#include "berth_tasklet.h"

static int has(const uint8_t *block, const uint8_t *part, uint32_t len) {
    for (uint32_t at = 0; at + len <= BERTH_BLOCK_LEN; at++) {
        uint32_t same = 0;
        while (same < len && block[at + same] == part[same])
            same++;
        if (same == len)
            return 1;
    }
    return 0;
}

static uint64_t run(const struct input *input) {
    static uint8_t block[BERTH_BLOCK_LEN];
    struct berth_standing_blocks lease;
    if (input->cap_count == 0)
        return berth_failed(BERTH_INVALID_LEASE);
    if (input->payload_len == 0 || input->payload_len > BERTH_BLOCK_LEN)
        return berth_failed(BERTH_BAD_INPUT);
    struct berth_cap cap = berth_cap(input, 0);
    int32_t code = fbbu_query(cap.high, cap.low, &lease);
    if (code)
        return berth_failed(code);
    char *out = berth_alloc((size_t)lease.blocks * 21);
    if (!out)
        return berth_failed(BERTH_NO_CAPACITY);
    uint32_t len = 0;
    for (uint64_t number = 0; number < lease.blocks; number++) {
        code = fbbu_read_block_lease(cap.high, cap.low, number, block);
        if (code)
            return berth_failed(code);
        if (has(block, input->payload, input->payload_len)) {
            len += berth_decimal(number, out + len);
            out[len++] = '\n';
        }
    }
    return berth_output(out, len);
}

BERTH_TASKLET(run)
