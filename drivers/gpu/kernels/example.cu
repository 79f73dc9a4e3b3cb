// Functions as users write them: the signature of DEVICE_CALL.
#include "../../../dataplane/ptx/tests/kernels/cuda.h"

typedef unsigned char u8;

#define HANDLER(name) \
    extern "C" __device__ int name(const void *in, void *out, u32 arg_len, u32 max_result_len, u32 *result_len)

HANDLER(reverse) {
    *result_len = arg_len;
    for (u32 at = 0; at < arg_len && arg_len <= max_result_len; at++)
        ((u8 *)out)[at] = ((const u8 *)in)[arg_len - 1 - at];
    return 0;
}

// All threads of the block call it: each adds up its part, the first one tells the sum.
HANDLER(sum_by_block) {
    static __shared__ u32 sums[1024];
    u32 sum = 0;
    for (u32 at = TID_X; at < arg_len; at += NTID_X)
        sum += ((const u8 *)in)[at];
    sums[TID_X] = sum;
    SYNC();
    if (TID_X == 0) {
        sum = 0;
        for (u32 at = 0; at < NTID_X; at++)
            sum += sums[at];
        *(u32 *)out = sum;
        *result_len = 4;
    }
    return 0;
}

// The first byte is its status, the second its result_len.
HANDLER(answer) {
    const signed char *say = (const signed char *)in;
    *result_len = arg_len > 1 ? ((const u8 *)in)[1] : 0;
    for (u32 at = 0; at < *result_len && at < max_result_len; at++)
        ((u8 *)out)[at] = 7;
    return arg_len > 0 ? say[0] : 0;
}

HANDLER(traps) {
    if (arg_len > 0)
        asm volatile("trap;");
    return 0;
}

HANDLER(strays) {
    *(volatile u64 *)(u64)0x1230 = arg_len;
    return 0;
}

// Never returns if the first byte is not 0.
HANDLER(hangs) {
    *result_len = 0;
    while (arg_len > 0 && *(volatile const u8 *)in != 0) {
    }
    return 0;
}

// As a graph: a kernel that is launched for a request, with its header of 24 bytes, and answers by itself.
struct context {
    const u8 *rx_slot;
    u8 *tx_slot;
    u64 *tx_flag;
    u64 tx_flag_value, tx_stride;
};

static __device__ void publish(const struct context *io, int status, u32 result_len) {
    u32 *answer = (u32 *)io->tx_slot;
    answer[0] = 0x43555153;
    answer[1] = status;
    answer[2] = result_len;
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(io->tx_flag), "l"(io->tx_flag_value) : "memory");
}

// The first byte is its status, if it is not 0; 255: it never answers; 100 and 101: with a result beyond its room, whose status
// with 101 is 0; else the bytes backwards.
extern "C" __global__ void reverse_graph(const struct context *io) {
    u32 len = ((const u32 *)io->rx_slot)[2];
    for (u32 at = TID_X; at < len; at += NTID_X)
        io->tx_slot[24 + at] = io->rx_slot[24 + len - 1 - at];
    asm volatile("fence.acq_rel.sys;" : : : "memory");
    SYNC();
    int status = len > 0 ? (signed char)io->rx_slot[24] : 0;
    if (TID_X == 0 && status != -1)
        publish(io, status == 101 ? 0 : status, status == 100 || status == 101 ? 5000 : len);
}

extern "C" __global__ void trapping_graph(const struct context *io) {
    if (io->tx_stride != 0)
        asm volatile("trap;");
}

// Never answers if the first byte is not 0.
extern "C" __global__ void hanging_graph(const struct context *io) {
    while (*(volatile const u8 *)(io->rx_slot + 24) != 0) {
    }
    publish(io, 0, 0);
}
