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
