/* A ring kernel: adds the number at the end of each message to a sum that lives on. The message is, in its raw format, MessageId (16
 * bytes), Priority (1), CorrelationId (1 + 16), Add i32; the answer has the sum, an i64, in its place. */
#include "berth_tasklet.h"

enum { HEAD = 34 };

static uint64_t answer(const uint8_t *message, uint32_t len) {
    static int64_t sum;
    static uint8_t out[HEAD + 8];
    int32_t add;
    if (len != HEAD + sizeof add)
        return berth_failed(BERTH_BAD_INPUT);
    __builtin_memcpy(&add, message + HEAD, sizeof add);
    sum += add;
    for (int i = 0; i < HEAD; i++)
        out[i] = message[i];
    __builtin_memcpy(out + HEAD, &sum, sizeof sum);
    return berth_output(out, sizeof out);
}

BERTH_RING_KERNEL(answer)
