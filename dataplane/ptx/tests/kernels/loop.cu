#include "cuda.h"

// Integer work without memory: how fast instructions are run.
extern "C" __global__ void loop(u32 *out, u32 rounds) {
    u32 x = CTAID_X * NTID_X + TID_X + 1;
    for (u32 i = 0; i < rounds; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x += i;
    }
    out[CTAID_X * NTID_X + TID_X] = x;
}
