#include "cuda.h"

// The sum of the block's values: shuffles in each warp, shared memory between warps.
extern "C" __global__ void reduce(const int *values, int *sums, int n) {
    __shared__ int warps[32];
    int i = CTAID_X * NTID_X + TID_X;
    int sum = i < n ? values[i] : 0;
    for (int by = 16; by > 0; by /= 2)
        sum += __nvvm_shfl_sync_down_i32(0xffffffff, sum, by, 31);
    if (TID_X % 32 == 0)
        warps[TID_X / 32] = sum;
    SYNC();
    if (TID_X < 32) {
        sum = TID_X < NTID_X / 32 ? warps[TID_X] : 0;
        for (int by = 16; by > 0; by /= 2)
            sum += __nvvm_shfl_sync_bfly_i32(0xffffffff, sum, by, 31);
        if (TID_X == 0)
            sums[CTAID_X] = sum;
    }
}
