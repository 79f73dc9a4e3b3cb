// Kernels of the baselines on a GPU: nothing but what each has to do.
#include "../../dataplane/ptx/tests/kernels/cuda.h"

typedef u32 quad __attribute__((ext_vector_type(4)));

static __device__ u64 acquire(const u64 *flag) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}

// Both loads come first: each goes to the host and back.
static __device__ void answer(u64 *flag, u64 value, const quad *in, quad *out, u32 has_bytes) {
    if (has_bytes) {
        quad one = in[0], two = in[1];
        out[0] = one + 1;
        out[1] = two + 1;
    }
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(flag), "l"(value) : "memory");
}

// Answers without end, a slot of 64 bytes by each thread, until its flag is all ones. An answer has the flag of its request.
extern "C" __global__ void pong(const u64 *in_flags, u64 *out_flags, const quad *in, quad *out, u32 has_bytes) {
    u32 slot = CTAID_X * NTID_X + TID_X;
    u64 last = 0;
    for (;;) {
        u64 flag = acquire(in_flags + slot);
        if (flag == ~0ull)
            break;
        if (flag != last)
            answer(out_flags + slot, flag, in + 4 * slot, out + 4 * slot, has_bytes);
        last = flag;
    }
}

// Answers once.
extern "C" __global__ void once(const u64 *in_flags, u64 *out_flags, const quad *in, quad *out, u32 has_bytes) {
    answer(out_flags, acquire(in_flags), in, out, has_bytes);
}

extern "C" __global__ void empty() {}
